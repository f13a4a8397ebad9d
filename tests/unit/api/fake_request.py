"""A request whose answer is written down instead of sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from millstream.api.compression import Compression
from millstream.faults import Faults
from millstream.http.message import Body, Request

UNCOMPRESSED = Compression(is_on=False, faults=Faults())


class FakeRequest:
    def __init__(self, headers: dict[bytes, bytes] | None = None) -> None:
        self.headers = headers or {}
        self.chunked = True
        self.grant = None
        self.on_disconnect: Callable[[], None] | None = None
        self._answers: list[tuple[int, bytes, bytes]] = []

    @property
    def request(self) -> Request:
        """The same under the type that handlers take."""
        return cast(Request, self)

    def respond(self, status: int, headers: bytes = b"", body: Body = b"") -> None:
        whole = bytes(body) if isinstance(body, bytes | memoryview) else b"".join(body)
        self._answers.append((status, headers, whole))

    @property
    def is_answered(self) -> bool:
        return bool(self._answers)

    @property
    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the one answer."""
        ((status, head, body),) = self._answers
        assert head.endswith(b"\r\n")
        lines = head.decode().removesuffix("\r\n").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        assert len(headers) == len(lines), "a header is there twice"
        return status, headers, body
