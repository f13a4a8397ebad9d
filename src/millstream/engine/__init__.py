"""Runs the state machine on a journal: submit, apply what is committed, wake, expire, checkpoint.

engine.py        the one place where committed commands become state and answers
lifetimes.py     sliding and absolute expiry
wakes.py         subscriptions: wakes, leases, retries
webhooks.py      sends webhooks, safely
compaction.py    which segments to rewrite, in which tasks, and whether the result is right
segment_swaps.py new segments take the place of old ones
job_table.py     jobs of the pipeline under way, and their leases
checkpointer.py  takes down what changed now and then, so that the log stays short

Content and streams leave memory:
flusher.py, flush_planning.py  hot content becomes segments; when is a pure function
held_content.py  published content that is still in memory
hot_budget.py    who waits or is refused when memory is full
residency.py     which streams stay in memory
memory_keeper.py gives freed memory back to the system
retention.py     content that buckets do not keep

And come back, or go for good:
windows.py, window_plans.py    reads of what is not in memory
catalog_uploads.py             copies of the catalog in the cold store
garbage.py, holds.py           what nobody needs any more, and what is on its way in
pipeline_process.py            the pipeline beside the server
off_loop.py      work in threads, results as callbacks
blob_worker.py   snapshots, off the loop
"""
