-- As append.lua, with the patience of a client that obeys Retry-After.
dofile("bench/lua/append.lua")
dofile("bench/lua/patience.lua")
