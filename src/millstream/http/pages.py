"""Requests that the web pages in a browser send: who decides about them, and how they are answered.

The rules are given (api/web_pages.py has ours); here is only where they are asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from millstream.http.message import Body, Request

if TYPE_CHECKING:
    from millstream.http.connection import Connection
    from millstream.http.streaming import BodyStream


class PageRules(Protocol):
    known_hosts: set[bytes]  # values of Host that were let in: a request with one needs no judge

    @property
    def is_open(self) -> bool:
        """Every page may do everything, and is answered like any other client."""
        ...

    def judge(self, method: bytes, host: bytes | None, origin: bytes | None) -> bytes:
        """Headers that the answer needs for the page that asks. Raises Refusal."""
        ...


class PageConnection:
    """The connection as the request of a page sees it: answers carry headers for that page."""

    __slots__ = ("_connection", "_headers")

    def __init__(self, connection: Connection, headers: bytes) -> None:
        self._connection = connection
        self._headers = headers

    def send_response(self, request: Request, status: int, headers: bytes, body: Body) -> None:
        self._connection.send_response(request, status, self._headers + headers, body)

    def start_stream(
        self, request: Request, status: int, headers: bytes, length: int | None, is_finite: bool
    ) -> BodyStream:
        headers = self._headers + headers
        return self._connection.start_stream(request, status, headers, length, is_finite)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)
