-- Prints wrk's own counts as one line of JSON. `failed` counts answers of 400 and above.
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    'SUMMARY {"requests":%d,"duration_us":%d,"bytes":%d,"failed":%d,"timeouts":%d,"socket_errors":%d,'
      .. '"p50_us":%d,"p99_us":%d,"max_us":%d}\n',
    summary.requests, summary.duration, summary.bytes, e.status, e.timeout,
    e.connect + e.read + e.write,
    latency:percentile(50), latency:percentile(99), latency.max))
end
