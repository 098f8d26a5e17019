-- One body over and over. Each thread has one connection and its own table, so no two writers meet.
-- BENCH_REQUESTS is the body's file; beside it, in *.paths, stands each thread's path.

local threads = 0

function setup(thread)
  threads = threads + 1
  thread:set("number", threads)
end

-- A request that never changes is put together once: no million rows are copied for each.
function init()
  local file = assert(io.open(os.getenv("BENCH_REQUESTS"), "rb"))
  wrk.body = file:read("*a")
  file:close()
  local line = 0
  for path in io.lines(os.getenv("BENCH_REQUESTS") .. ".paths") do
    line = line + 1
    if line == number then wrk.path = path end
  end
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/vnd.apache.arrow.stream"
  wrk.headers["x-api-key"] = os.getenv("BENCH_KEY")
end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    'RESULT {"requests": %d, "seconds": %.6f, "p50": %d, "p99": %d, "bad": %d, "broken": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50), latency:percentile(99),
    e.status, e.connect + e.read + e.write + e.timeout))
end
