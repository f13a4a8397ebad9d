"""A request and its one answer.

A handler is a plain function `handler(request)`. It calls `request.respond` (or `request.stream`)
once, now or later; nothing is awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from millstream.http.connection import Connection
    from millstream.http.streaming import BodyStream

STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}

Body = bytes | memoryview | Sequence[bytes | memoryview]


class Request(msgspec.Struct, eq=False, weakref=True):
    """`path` and `query` are the raw bytes of the URL; header names are in lower case."""

    connection: Connection
    method: bytes
    path: bytes
    query: bytes
    headers: dict[bytes, bytes]
    body: bytes
    keep_alive: bool = True
    chunked: bool = True  # the client understands a body of unknown length
    route: str = "other"  # the label this request is counted under
    charged_bytes: int = 0  # of the body, in the server's budget until this is answered
    on_disconnect: Callable[[], None] | None = None  # the client left before the answer
    on_half_close: Callable[[], None] | None = None  # it may have left: answer now
    grant: Any = None  # what its key allows (access.gate.Grant); None: there is no access control

    def __repr__(self) -> str:
        """Without headers and query: what is printed must not give a secret away."""
        return f"<Request {self.method!r} {self.path!r}>"

    def respond(self, status: int, headers: bytes = b"", body: Body = b"") -> None:
        """`headers` are complete lines, each ending in CRLF. A client that left gets nothing."""
        self.connection.send_response(self, status, headers, body)

    def stream(
        self, status: int, headers: bytes, length: int | None = None, *, is_finite: bool = False
    ) -> BodyStream:
        """Sends the head now; the body follows piece by piece, of this length if one is given."""
        return self.connection.start_stream(self, status, headers, length, is_finite)
