-- A page of versions, oldest first.
dofile(os.getenv("BENCH_COMMON"))

function request()
  local namespace, name = bench.table()
  return bench.post(bench.operation(namespace, name, "version/list", "&limit=100"), "")
end
