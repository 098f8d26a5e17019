-- Versions with a path outside the table, which a catalog records and never touches.
dofile(os.getenv("BENCH_COMMON"))

local counter = bench.base

function request()
  counter = counter + 1
  local namespace, name = bench.nth_table(counter)
  local version = bench.nth_version(counter)
  local body = string.format(
    '{"id":["%s","%s"],"version":%d,"manifest_path":"bench/%s/%s/%d.manifest","manifest_size":461,"naming_scheme":"V2"}',
    namespace, name, version, namespace, name, version)
  return bench.post(bench.operation(namespace, name, "version/create"), body)
end
