-- Obeys the Retry-After of a 503. wrk does not say whose answer it is; connections being all alike,
-- the next one to send waits instead. Load this after what defines `response`.
local seen, waits = response, {}

function response(status, headers, body)
  if status == 503 then
    waits[#waits + 1] = 1000 * (tonumber(headers["Retry-After"]) or 1)
  end
  if seen then seen(status, headers, body) end
end

function delay()
  return table.remove(waits) or 0
end
