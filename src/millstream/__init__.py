"""Millstream: durable, append-only streams over plain HTTP.

A map for the newcomer; imports only point down this list (`lint-imports` proves it).

    cli/         commands: parse, call, print, exit code
    pipeline/    jobs on Spark, always in a process of its own; nothing but cli imports it
    assemble.py  builds the running system from a Config; the one file that knows every room
    cold_tier.py, storage.py   the cold tier and what earlier runs left, as assemble.py wants them
    lake/        SQL over what streams hold
    offline/     a folder that no server uses: verify it, salvage it, build one from the cold store
    recover.py   from a data folder to a state
    listening.py which address has which routes, and which web pages are let in
    system/      the server's own streams: a registry of all others, and what it measures
    api/         one table of routes, handlers that translate, one table from errors to status codes
    inspection/  what the server tells of its streams and of itself
    http/        HTTP/1.1 on uvloop and httptools; knows nothing of streams
    jobs/        what the pipeline may do: kinds of jobs, leases, what results change
    subscriptions/  drives subscriptions: wakes, leases, webhooks
    touch/       tells who waits below /touch which rows of a state-protocol stream changed
    cold/        moves content out of memory and back: flush, checkpoint, eviction, cold reads,
                 uploads, garbage, retention, memory
    access/      keys, scopes, who may do what
    engine/      the core: submits commands, applies what is committed, answers, wakes, expires
    journal/     order, durability and recovery: one contract, two implementations, memory and wal
    tier/        object store, Parquet segments, SQLite catalog, snapshots
    schemas/     what streams ask of their entries: schemas, lenses, profiles; pure
    state/       the heart: commands, stream state, apply(command) -> outcome; pure
    formats/     byte layouts: WAL records, command codec, checkpoint blocks, Parquet segments
    protocol/    the words of the wire: offsets, cursors, JSON mode, SSE frames, durations
    telemetry.py config.py limits.py errors.py faults.py clock.py heap.py addresses.py   the floor
"""

__version__ = "0.1.0"
