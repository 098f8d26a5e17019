-- Versions whose manifests were staged before: one "path<TAB>body" in each line of a file.
dofile(os.getenv("BENCH_COMMON"))

local lines = {}
for line in io.lines(os.getenv("BENCH_REQUESTS")) do lines[#lines + 1] = line end
local next_line = -1  -- wrk makes one request that it does not send, to look at it

function request()
  next_line = next_line + 1
  local line = lines[math.max(next_line, 1)]
  if line == nil then return bench.get("/no/staged/manifest/left") end
  local path, body = line:match("^([^\t]*)\t(.*)$")
  return bench.post(path, body)
end
