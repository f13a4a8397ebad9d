-- Creates streams, one name after the other, until wrk is told to stop. Called by bench/workloads/listing.py:
--   wrk ... -s create.lua URL -- PATH_PREFIX FIRST

local prefix, number

function init(args)
  prefix, number = args[1], tonumber(args[2])
  wrk.method = "PUT"
  wrk.headers["Content-Type"] = "text/plain"
  wrk.headers["Content-Length"] = "0"
end

function request()
  number = number + 1
  return wrk.format("PUT", string.format("%s%08d", prefix, number))
end
