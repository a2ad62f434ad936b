-- GETs of COUNT resources in turn: wrk … -- PATH_PREFIX COUNT PATH_SUFFIX
local requests, count, turn = {}, 0, 0

function init(args)
  count = tonumber(args[2])
  for i = 0, count - 1 do
    requests[i] = wrk.format("GET", args[1] .. i .. (args[3] or ""))
  end
end

function request()
  local chosen = requests[turn]
  turn = turn + 1
  if turn == count then turn = 0 end
  return chosen
end

dofile("bench/lua/summary.lua")
