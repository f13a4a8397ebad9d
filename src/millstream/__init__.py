"""Millstream: durable, append-only streams over plain HTTP.

A map for the newcomer; imports only point down this list (`lint-imports` proves it).

    cli/         commands: parse, call, print, exit code
    pipeline/    jobs on Spark, always in a process of its own; nothing but cli imports it
    assemble.py  builds the running system from a Config; the one file that knows every room
    lake/        SQL over what streams hold
    offline/     a folder that no server uses: verify it, salvage it, build one from the cold store
    recover.py   from a data folder to a state
    api/         routes and handlers; the one table that turns errors into status codes
    http/        HTTP/1.1 on uvloop and httptools; knows nothing of streams
    access/      keys, scopes, the gate that asks every request for one
    engine/      submits commands, applies what is committed, wakes, expires; flushes, checkpoints,
                 evicts, reads what is cold, hands out jobs
    journal/     one contract, two implementations: memory and wal
    tier/        object store, Parquet segments, SQLite catalog, snapshots
    state/       the heart: commands, stream state, apply(command) -> outcome; pure
    formats/     byte layouts: WAL records, command codec, checkpoint blocks, Parquet segments
    protocol/    the words of the wire: offsets, cursors, JSON mode, SSE frames, durations
    telemetry.py config.py limits.py errors.py faults.py clock.py heap.py      the floor
"""

__version__ = "0.1.0"
