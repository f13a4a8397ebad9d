"""Runs the state machine on a journal: submit, apply what is committed, wake, expire, checkpoint.

engine.py        the one place where committed commands become state and answers
lifetimes.py     sliding and absolute expiry
wakes.py         subscriptions: wakes, leases, retries
webhooks.py      sends webhooks, safely
compaction.py    which segments to rewrite, in which tasks, and whether the result is right
job_table.py     jobs of the pipeline under way, and their leases
checkpointer.py  writes the whole state now and then, so that the log stays short
"""
