"""Benchmarks: `python -m bench` measures Millstream beside the Node reference server.

A newcomer reads, in this order:

- `__main__.py`   options and exit code; `runner.py` is the loop over cases, repeats and servers
- `workloads/`    what is measured, one module per workload
- `servers.py`    the four servers under test; `processes.py` starts, reads and ends them
- `own_server.py` a server that a case starts, stops and kills itself; `payloads.py` its content
- `load.py`       POST load through wrk (`lua/append.lua`), or through Python where wrk is missing
- `wire.py`       the cheap HTTP client; `sse_readers.py` is the subscriber process of `fan_out`
- `measure.py`    percentiles, spreads and the disk; `figures.py` says what each number means
- `targets.py`    what we promised ourselves; `report.py` prints it
- `soak.py`       `make soak`: minutes of mixed load under a small hot budget, everything checked
- `soak_hostile.py` the clients of a soak who mean harm
- `stalls.py`     by hand: the server, telling what held its event loop up

Every repeat starts its server anew on an empty directory: no figure depends on what ran before.
"""
