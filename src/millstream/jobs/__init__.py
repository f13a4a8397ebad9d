"""What the pipeline may do: which jobs there are, which pipeline has them, what results change.

kinds.py                                    what a kind of job is: plan, check, commit
service.py, table.py                        jobs of all kinds: asked for, under way, committed
rewrites.py                                 the kinds `compact` and `erase`: segments are rewritten
compaction.py                               what is worth rewriting, and whether a result is right
erasure.py                                  content that must go, and by when
source.py                                   what jobs are made from: catalog and store
segment_swaps.py                            new segments take the place of old ones
pipeline_process.py, pipeline_requirements.py   the pipeline beside the server
eraser_process.py                           the promise of --erase-within, without Spark
"""
