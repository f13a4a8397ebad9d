"""The server's own streams: sees to it that they are there, and writes what it measures.

What the registry gets is written by state/system_streams.py, with what it tells of.
"""
