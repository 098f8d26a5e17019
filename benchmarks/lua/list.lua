dofile(os.getenv("BENCH_COMMON"))

function request()
  return bench.get("/v1/namespace/" .. bench.namespace() .. "/table/list?delimiter=%24&limit=100")
end
