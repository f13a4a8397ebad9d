"""What the pipeline may do: which jobs there are, who has them, and what their results change.

compaction.py                               what is worth rewriting, and whether a result is right
table.py                                    the jobs under way
source.py                                   what jobs are made from: catalog and store
segment_swaps.py                            new segments take the place of old ones
pipeline_process.py, pipeline_requirements.py   the pipeline beside the server
eraser_process.py                           the promise of --erase-within, without Spark
"""
