"""What the server tells of itself: one stream in all its parts, and the server as a whole.

Here it is gathered; api/inspection.py answers with it. All of it is bounded work, whatever the
number of streams and however long a stream's history is.

holdings.py       how much of a stream lies where
index_report.py   what there is of indexes over a stream; the pipeline will fill it
stream_report.py  the documents of `_index_status` and `_details`, and their tags
server_report.py  the documents of `/v1/server/_details` and `/v1/server/_mem`
memory_report.py  the parts of these that tell of memory
top_streams.py    which streams take most
high_water.py     the highest numbers seen
"""
