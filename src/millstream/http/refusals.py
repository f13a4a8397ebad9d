"""Requests that cannot be read to their end, and what their clients are told."""

from __future__ import annotations

URL_BYTES_MAX = 16 * 1024


class Refusal(Exception):
    """The request cannot be read any further; answered in its turn, then the connection ends."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.headers = b""  # beside those of every answer

    def bare(self) -> Refusal:
        """Without the frames it was raised through: they would hold the connection's buffers."""
        self.__context__ = self.__traceback__ = None
        return self


def url_too_long() -> Refusal:
    return Refusal(414, "url_too_long", f"the URL exceeds {URL_BYTES_MAX} bytes")


def headers_too_large(limit: int) -> Refusal:
    return Refusal(431, "headers_too_large", f"the request's headers exceed {limit} bytes")


def body_too_large(limit: int) -> Refusal:
    return Refusal(413, "body_too_large", f"the request's body exceeds {limit} bytes")


def too_slow(wanted: str) -> Refusal:
    return Refusal(408, "request_timeout", f"the request did not arrive in time: {wanted}")


def gave_way() -> Refusal:
    return Refusal(503, "overloaded", "too many large requests at once; try again later")
