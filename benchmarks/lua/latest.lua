-- What a client asks to find the newest version.
dofile(os.getenv("BENCH_COMMON"))

function request()
  local namespace, name = bench.table()
  return bench.post(bench.operation(namespace, name, "version/list", "&limit=1&descending=true"), "")
end
