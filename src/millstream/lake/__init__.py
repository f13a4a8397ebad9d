"""SQL over everything that streams hold, for `millstream lake`.

A segment also holds rows that no reader may see any more, and around a compaction a message lies in
two of them. What is live is known to the catalog alone, so that is read first:

    live.py        which rows of which segments belong to which stream, at one position of the log
    rows.py        these rows for Arrow: only the columns and row groups that are asked for
    query.py       views over them in DuckDB. The only file with duckdb
"""
