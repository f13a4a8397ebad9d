"""What all requests about subscriptions share: JSON bodies in and out, names of streams."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from millstream.api.headers import JSON
from millstream.api.paths import STREAM_ROOT, stream_key
from millstream.errors import BodyTooLarge, InvalidRequest, InvalidSubscriptionRequest
from millstream.http.message import Request
from millstream.limits import CONTROL_BODY_BYTES_MAX

BodyType = TypeVar("BodyType", bound=msgspec.Struct)


def parse_body(request: Request, body_type: type[BodyType]) -> BodyType:
    """The request's JSON, checked; fields we do not know are ignored."""
    if len(request.body) > CONTROL_BODY_BYTES_MAX:
        raise BodyTooLarge(f"the body must not exceed {CONTROL_BODY_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(request.body, type=body_type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidSubscriptionRequest(f"the body is not as it should be: {error}") from None


def respond_json(request: Request, status: int, value: Any) -> None:
    request.respond(status, JSON, msgspec.json.encode(value))


def stream_key_of(path: str) -> bytes:
    """The key of a stream named in JSON: its path below the stream root, spelled as in a URL."""
    try:
        return stream_key(STREAM_ROOT + path.strip("/").encode())
    except (InvalidRequest, UnicodeEncodeError) as error:
        raise InvalidSubscriptionRequest(f"stream {path!r}: {error}") from None
