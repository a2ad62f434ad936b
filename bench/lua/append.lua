-- Appends SIZE bytes to COUNT streams in turn: wrk … -- PATH_PREFIX COUNT SIZE CONTENT_TYPE [TOKEN]
local requests, count, turn = {}, 0, 0

function init(args)
  local prefix, size, content_type = args[1], tonumber(args[3]), args[4]
  count = tonumber(args[2])
  local body = string.rep("x", size)
  local headers = { ["Content-Type"] = content_type }
  if args[5] then headers["Authorization"] = "Bearer " .. args[5] end
  for i = 0, count - 1 do
    requests[i] = wrk.format("POST", prefix .. i, headers, body)
  end
end

function request()
  local chosen = requests[turn]
  turn = turn + 1
  if turn == count then turn = 0 end
  return chosen
end

dofile("bench/lua/summary.lua")
