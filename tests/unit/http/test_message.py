from __future__ import annotations

from typing import cast

from millstream.http.connection import Connection
from millstream.http.message import Request


def test_a_request_that_is_printed_shows_neither_headers_nor_query_nor_body() -> None:
    headers = {b"authorization": b"Bearer secret"}
    connection = cast(Connection, None)
    request = Request(connection, b"GET", b"/a", b"key=secret", headers, b"secret")
    for shown in (repr(request), str(request), f"{request}", repr([request])):
        assert "/a" in shown
        assert "secret" not in shown
