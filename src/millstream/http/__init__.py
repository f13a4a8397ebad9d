"""HTTP/1.1 on uvloop and httptools. Knows nothing of streams.

message.py     requests, responses, status lines
refusals.py    requests that cannot be read to their end
known_heads.py heads seen before, read without the parser
pages.py       what web pages send: where rules about it are asked
streaming.py   a response body that is written piece by piece
reader.py      from bytes to requests: head, body, limits, deadlines
body_budget.py bytes of request bodies in memory, and who gives way when it is too many
connection.py  one client connection: dispatch in order, answer
access_log.py  a connection that tells of every answer
server.py      listens, keeps the connections, ends them
"""
