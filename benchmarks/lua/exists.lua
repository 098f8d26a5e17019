dofile(os.getenv("BENCH_COMMON"))

function request()
  local namespace, name = bench.table()
  return bench.post(
    bench.operation(namespace, name, "exists"), '{"id":["' .. namespace .. '","' .. name .. '"]}')
end
