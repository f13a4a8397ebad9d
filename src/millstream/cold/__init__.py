"""Moves streams and their content out of memory, and reads them back.

flusher.py, flush_planning.py       hot content to the object store
published_content.py                what is in the store and in memory still
checkpointer.py                     the state to disk now and then, so that the log stays short
eviction.py                         which streams leave memory
cold_reads.py, read_plans.py        reads of what is not in memory
catalog_uploads.py                  copies of the catalog in the store
garbage.py, pending_objects.py      objects that nothing refers to, and those that something will
retention.py                        content that buckets give up by age and size
room_maker.py                       what can be freed is freed when the disk is full
memory_keeper.py                    freed memory goes back to the system
blob_worker.py                      snapshots: stored, loaded, deleted
"""
