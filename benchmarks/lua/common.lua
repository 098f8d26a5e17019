-- What all scripts share. wrk runs one thread, so there is one `request` and one counter.

local key = os.getenv("BENCH_KEY") or ""
local headers = "Host: 127.0.0.1\r\nContent-Type: application/json\r\nx-api-key: " .. key .. "\r\n"

bench = {
  namespaces = tonumber(os.getenv("BENCH_NAMESPACES")),
  tables = tonumber(os.getenv("BENCH_TABLES")),
  base = tonumber(os.getenv("BENCH_BASE") or "0"),
}

math.randomseed(tonumber(os.getenv("BENCH_SEED") or "1"))

-- Whole requests as text: wrk.format costs the client several times as much.
function bench.post(path, body)
  return "POST " .. path .. " HTTP/1.1\r\n" .. headers .. "Content-Length: " .. #body .. "\r\n\r\n" .. body
end

function bench.get(path)
  return "GET " .. path .. " HTTP/1.1\r\n" .. headers .. "\r\n"
end

function bench.namespace()
  return string.format("ns%04d", math.random(0, bench.namespaces - 1))
end

function bench.table()
  return bench.namespace(), string.format("t%04d", math.random(0, bench.tables - 1))
end

-- The n-th table, round and round: neighbours in time are different tables.
function bench.nth_table(n)
  local i = n % (bench.namespaces * bench.tables)
  return string.format("ns%04d", i % bench.namespaces),
    string.format("t%04d", math.floor(i / bench.namespaces))
end

-- Its version at that time. The catalog refuses numbers that are far above the newest one.
function bench.nth_version(n)
  return math.floor(n / (bench.namespaces * bench.tables)) + 1
end

-- As lance-namespace clients spell it.
function bench.operation(namespace, name, operation, query)
  return "/v1/table/" .. namespace .. "%24" .. name .. "/" .. operation .. "?delimiter=%24" .. (query or "")
end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    'RESULT {"requests": %d, "seconds": %.6f, "p50": %d, "p99": %d, "bad": %d, "broken": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50), latency:percentile(99),
    e.status, e.connect + e.read + e.write + e.timeout))
end
