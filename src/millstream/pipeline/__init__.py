"""The data pipeline: jobs that run on Spark, in a process of their own (docs/pipeline.md).

The only room with pyspark. A job asks the server for work, runs in executors, commits once.

runner.py        asks, runs, commits, waits; what `millstream pipeline run` starts
job_client.py    the requests of the job contract, for driver and executors
session.py       the one Spark session of the process
requirements.py  says what is missing, before Spark does in its own words
progress.py      a bar in a terminal, log lines elsewhere
compaction.py    the first job: many segments become few, in executors
rewrite.py       what a task does, without Spark
eraser.py        the same for content that must go, one task after the other, without Spark
merge.py         rows of many segments in the order of stream and ordinal
"""
