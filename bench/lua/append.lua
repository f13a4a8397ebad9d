-- Appends one body to many streams in turn. Called by bench/load.py:
--   wrk ... -s append.lua URL -- PATH_PREFIX STREAMS CONTENT_TYPE BODY_FILE BODIES [PATH_SUFFIX]
-- The file holds BODIES bodies of one size, one behind the other; each round over the streams takes others.
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
  local content, bodies, suffix = read_file(args[4]), tonumber(args[5]), args[6] or ""
  local size = #content / bodies
  local headers = { ["Host"] = wrk.headers["Host"], ["Content-Type"] = content_type }
  for turn = 0, math.max(streams, bodies) - 1 do
    local place = (turn % bodies) * size
    local body = content:sub(place + 1, place + size)
    requests[turn] = wrk.format("POST", prefix .. (turn % streams) .. suffix, headers, body)
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
