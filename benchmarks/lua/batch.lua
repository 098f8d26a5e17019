-- Ten such versions of ten tables in one commit.
dofile(os.getenv("BENCH_COMMON"))

local counter = bench.base

function request()
  local operations = {}
  for i = 1, 10 do
    counter = counter + 1
    local namespace, name = bench.nth_table(counter)
    local version = bench.nth_version(counter)
    operations[i] = string.format(
      '{"create_table_version":{"id":["%s","%s"],"version":%d,"manifest_path":"bench/%s/%s/%d.manifest","manifest_size":461,"naming_scheme":"V2"}}',
      namespace, name, version, namespace, name, version)
  end
  return bench.post("/v1/table/batch-commit", '{"operations":[' .. table.concat(operations, ",") .. "]}")
end
