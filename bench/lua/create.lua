-- Creates COUNT streams, each with SIZE bytes in it: wrk … -- PATH_PREFIX COUNT SIZE CONTENT_TYPE
-- What was refused is sent again, and so is what wrk only asked for and never sent: its first request.
local head, tail, count, left, turn = "", "", 0, 0, -1
local made = {}

function init(args)
  count = tonumber(args[2])
  left = count
  local headers = { ["Content-Type"] = args[4] }
  local request = wrk.format("PUT", args[1] .. "@NAME@", headers, string.rep("x", tonumber(args[3])))
  local first, last = request:find("@NAME@", 1, true)
  head, tail = request:sub(1, first - 1), request:sub(last + 1)
  for i = 0, count - 1 do made[i] = false end
end

function request()
  repeat
    turn = turn + 1
    if turn == count then turn = 0 end
  until left == 0 or not made[turn]
  return head .. turn .. tail
end

function response(status, headers)
  if status ~= 201 then return end
  local made_now = tonumber(headers["Location"]:match("(%d+)$"))
  if not made[made_now] then
    made[made_now] = true
    left = left - 1
  end
end

dofile("bench/lua/patience.lua")
dofile("bench/lua/summary.lua")
