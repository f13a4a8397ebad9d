"""What is too large or too old for memory.

blobs.py          snapshots, stored whole under a name
segments.py       reads of cold content, by range, through a bounded cache
shared_cache.py   what several threads want at once is loaded once
"""
