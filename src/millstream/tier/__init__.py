"""What is too large or too old for memory.

objects.py        the object store: a folder, S3, GCS or Azure
segments.py       reads of cold content, by range, through a bounded cache
shared_cache.py   what several threads want at once is loaded once
catalog.py        all streams and where their cold content lies, in SQLite
blobs.py          snapshots, stored whole under a name
"""
