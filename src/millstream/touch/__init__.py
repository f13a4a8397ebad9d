"""Touches of state-protocol streams: which clients have to ask their database again.

    keys.py      the 64-bit keys that clients wait for, and their 32-bit ids
    changes.py   which keys one change record touches
    templates.py the shapes of queries that clients declared, and until when
    filter.py    when which key was touched last, in little memory and never too early
    journal.py   one stream's touches: generations, cursors, the waits on them
    meta.py      how a stream's touches are doing, for clients and operators
    stream.py    one stream: templates, journal, how far its records are looked at
    timers.py    one heap for all times that anything here is due
    service.py   the coroutine that looks at new records, flushes, answers and tidies up

All of it is in memory. A restart, or ten minutes without any interest, makes older cursors stale,
and they are told so.
"""
