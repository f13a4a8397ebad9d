"""HTTP/1.1 on uvloop and httptools. Knows nothing of streams.

message.py     requests, responses, status lines
streaming.py   a response body that is written piece by piece
connection.py  one client connection: parse, dispatch in order, answer
server.py      listens, keeps the connections, ends them
"""
