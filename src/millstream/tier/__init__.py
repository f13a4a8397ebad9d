"""What is too large or too old for memory.

objects.py        the object store; remote_objects.py is S3, GCS or Azure, object_folder.py a folder
cold_settings.py  where it lies and how to reach it
identity.py       whose store it is
backup.py         copies of the catalog in it
segments.py       reads of cold content, by range, through a bounded cache
shared_cache.py   what several threads want at once is loaded once
catalog.py        all streams and where their cold content lies, in SQLite; catalog_*.py its parts
store.py          the catalog as the state machine sees it
blobs.py          snapshots, stored whole under a name
"""
