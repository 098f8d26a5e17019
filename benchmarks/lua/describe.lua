dofile(os.getenv("BENCH_COMMON"))

function request()
  local namespace, name = bench.table()
  return bench.post(
    bench.operation(namespace, name, "describe", "&with_table_uri=false&check_declared=false"),
    '{"id":["' .. namespace .. '","' .. name .. '"]}')
end
