"""HTTP/1.1 on uvloop and httptools. Knows nothing of streams.

message.py     requests, responses, status lines
refusals.py    requests that cannot be read to their end
known_heads.py heads seen before, read without the parser
streaming.py   a response body that is written piece by piece
connection.py  one client connection: parse, dispatch in order, answer
server.py      listens, keeps the connections, ends them
"""
