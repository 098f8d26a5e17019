-- The requests of a file, over and over: in each line "method<TAB>path<TAB>encoding<TAB>If-None-Match<TAB>body", the
-- last two may be empty. @ in a body becomes a number that no request had before, so that every commit changes something.
dofile(os.getenv("BENCH_COMMON"))

local headers = "Host: " .. os.getenv("BENCH_HOST") .. "\r\n"
if os.getenv("BENCH_CREDENTIALS") ~= "" then headers = headers .. os.getenv("BENCH_CREDENTIALS") .. "\r\n" end
local before, after = {}, {}
for line in io.lines(os.getenv("BENCH_REQUESTS")) do
  local method, path, encoding, etag, body = line:match("^([^\t]*)\t([^\t]*)\t([^\t]*)\t([^\t]*)\t(.*)$")
  local head = method .. " " .. path .. " HTTP/1.1\r\n" .. headers .. "Accept-Encoding: " .. encoding .. "\r\n"
  if etag ~= "" then head = head .. "If-None-Match: " .. etag .. "\r\n" end
  before[#before + 1], after[#after + 1] = head, body
end
local counter = bench.base

function request()
  counter = counter + 1
  local i = counter % #before + 1
  if after[i] == "" then return before[i] .. "\r\n" end
  local body = after[i]:gsub("@", string.format("%d", counter))
  return before[i] .. "Content-Type: application/json\r\nContent-Length: " .. #body .. "\r\n\r\n" .. body
end
