-- Appends one body to many streams in turn. Called by bench/load.py:
--   wrk ... -s append.lua URL -- PATH_PREFIX STREAMS CONTENT_TYPE BODY_FILE [PATH_SUFFIX]
-- Requests are formatted once; a table lookup is all the script costs per request.

local requests = {}
local turn = 0

local function read_file(path)
  local file = assert(io.open(path, "rb"))
  local content = file:read("*a")
  file:close()
  return content
end

function init(args)
  local prefix, streams, content_type = args[1], tonumber(args[2]), args[3]
  local body, suffix = read_file(args[4]), args[5] or ""
  local headers = { ["Host"] = wrk.headers["Host"], ["Content-Type"] = content_type }
  for stream = 0, streams - 1 do
    requests[stream] = wrk.format("POST", prefix .. stream .. suffix, headers, body)
  end
end

function request()
  local chosen = requests[turn]
  turn = turn + 1
  if requests[turn] == nil then
    turn = 0
  end
  return chosen
end

function done(summary, latency)
  local errors = summary.errors
  local line = '{"requests":%d,"elapsed_us":%d,"p50_us":%d,"p99_us":%d,"not_2xx":%d,"socket_errors":%d}\n'
  io.write(line:format(
    summary.requests,
    summary.duration,
    latency:percentile(50),
    latency:percentile(99),
    errors.status,
    errors.connect + errors.read + errors.write + errors.timeout
  ))
end
