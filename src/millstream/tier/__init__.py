"""What is too large or too old for memory.

blobs.py     snapshots, stored whole under a name
catalog.py   all streams and where their cold content lies, in SQLite
"""
