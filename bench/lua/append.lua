-- Appends to many streams in turn. Called by bench/load.py:
--   wrk ... -s append.lua URL -- PATH_PREFIX STREAMS CONTENT_TYPE BODIES_FILE BODIES [PATH_SUFFIX]
-- The file holds the size of each body on a line, then the bodies, one behind the other; each round over the
-- streams takes others.
-- Requests are formatted once; a table lookup is all the script costs per request.

local requests = {}
local turn = 0

local function read_bodies(path, count)
  local file = assert(io.open(path, "rb"))
  local sizes, bodies = {}, {}
  for number = 0, count - 1 do
    sizes[number] = tonumber(file:read("*l"))
  end
  for number = 0, count - 1 do
    bodies[number] = file:read(sizes[number])
  end
  file:close()
  return bodies
end

function init(args)
  local prefix, streams, content_type = args[1], tonumber(args[2]), args[3]
  local count, suffix = tonumber(args[5]), args[6] or ""
  local bodies = read_bodies(args[4], count)
  local headers = { ["Host"] = wrk.headers["Host"], ["Content-Type"] = content_type }
  for turn = 0, math.max(streams, count) - 1 do
    local path = prefix .. (turn % streams) .. suffix
    requests[turn] = wrk.format("POST", path, headers, bodies[turn % count])
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
