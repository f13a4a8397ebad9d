"""Headers and query parameters, checked: raises InvalidRequest, touches no state."""

from __future__ import annotations

import re
from collections.abc import KeysView
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from millstream.errors import InvalidOffset, InvalidRequest
from millstream.limits import (
    INTEGER_MAX,
    LONG_POLL_SECONDS_MAX,
    PRODUCER_ID_BYTES_MAX,
    ROUTING_KEY_BYTES_MAX,
    STREAM_SEQ_BYTES_MAX,
    TIME_HINT_AHEAD_MS_MAX,
)
from millstream.protocol import durations
from millstream.protocol.offsets import NOW_TOKEN, Offset, decode_offset

_DIGITS = re.compile(rb"[0-9]{1,16}")
_STRICT_INTEGER = re.compile(rb"0|[1-9][0-9]{0,15}")

_PRODUCER_HEADERS = frozenset((b"producer-id", b"producer-epoch", b"producer-seq"))
# An append without any of these is data and nothing else.
ENTRY_HEADERS = frozenset((b"stream-key", b"stream-timestamp"))
WRITER_HEADERS = _PRODUCER_HEADERS | ENTRY_HEADERS | {b"stream-closed", b"stream-seq"}

Headers = dict[bytes, bytes]


class ProducerClaim(NamedTuple):
    producer_id: bytes
    epoch: int
    seq: int


def says_true(headers: Headers, name: bytes) -> bool:
    """Only `true` counts, in any case; everything else is as good as absent."""
    return name in headers and headers[name].strip().lower() == b"true"


def producer_claim(headers: Headers) -> ProducerClaim | None:
    """None when there is none: the three headers go together."""
    if _PRODUCER_HEADERS.isdisjoint(headers):
        return None
    producer_id = headers.get(b"producer-id")
    epoch = headers.get(b"producer-epoch")
    seq = headers.get(b"producer-seq")
    if producer_id is None or epoch is None or seq is None:
        raise InvalidRequest(
            "send Producer-Id, Producer-Epoch and Producer-Seq together or not at all"
        )
    if not producer_id.strip():
        raise InvalidRequest("Producer-Id must not be empty")
    if len(producer_id) > PRODUCER_ID_BYTES_MAX:
        raise InvalidRequest(f"Producer-Id must not exceed {PRODUCER_ID_BYTES_MAX} bytes")
    return ProducerClaim(
        producer_id, _integer(epoch, "Producer-Epoch"), _integer(seq, "Producer-Seq")
    )


def _integer(text: bytes, name: str) -> int:
    if _DIGITS.fullmatch(text):
        value = int(text)
        if value <= INTEGER_MAX:
            return value
    raise InvalidRequest(f"{name} must be an integer from 0 to {INTEGER_MAX}")


def stream_seq(headers: Headers) -> bytes | None:
    value = headers.get(b"stream-seq")
    if value is not None and len(value) > STREAM_SEQ_BYTES_MAX:
        raise InvalidRequest(f"Stream-Seq must not exceed {STREAM_SEQ_BYTES_MAX} bytes")
    return value


def routing_key(headers: Headers) -> bytes | None:
    """Of all entries of a request; empty is as good as absent."""
    key = headers.get(b"stream-key")
    if key is not None and len(key) > ROUTING_KEY_BYTES_MAX:
        raise InvalidRequest(f"Stream-Key must not exceed {ROUTING_KEY_BYTES_MAX} bytes")
    return key or None


def time_hint_ms(headers: Headers, now_ms: int) -> int | None:
    """When the entries happened, as their writer has it. Far ahead of this clock it is refused: it
    would be a mistake, and no later entry could come before it."""
    text = headers.get(b"stream-timestamp")
    if text is None:
        return None
    hint_ms = durations.decode_moment_ms(text, "Stream-Timestamp")
    if hint_ms > now_ms + TIME_HINT_AHEAD_MS_MAX:
        raise InvalidRequest(
            f"Stream-Timestamp is more than {TIME_HINT_AHEAD_MS_MAX // 60_000} minutes ahead of "
            "this server's clock"
        )
    return max(hint_ms, 0)


class Lifetime(NamedTuple):
    ttl_ms: int | None
    expires_at_ms: int | None

    @property
    def is_given(self) -> bool:
        return self.ttl_ms is not None or self.expires_at_ms is not None


def lifetime(headers: Headers) -> Lifetime:
    ttl, expires_at = headers.get(b"stream-ttl"), headers.get(b"stream-expires-at")
    if ttl is not None and expires_at is not None:
        raise InvalidRequest("send Stream-TTL or Stream-Expires-At, not both")
    return Lifetime(
        None if ttl is None else durations.decode_ttl_ms(ttl),
        None if expires_at is None else durations.decode_timestamp_ms(expires_at),
    )


class ForkRequest(NamedTuple):
    source: bytes  # raw URL path
    offset: Offset | None
    sub_offset: int


def fork_request(headers: Headers) -> ForkRequest | None:
    source = headers.get(b"stream-forked-from")
    offset = headers.get(b"stream-fork-offset")
    sub_offset = headers.get(b"stream-fork-sub-offset")
    if source is None:
        if offset is not None or sub_offset is not None:
            raise InvalidRequest("fork headers need Stream-Forked-From with the source's path")
        return None
    if sub_offset is not None and not _STRICT_INTEGER.fullmatch(sub_offset):
        raise InvalidRequest("Stream-Fork-Sub-Offset must be a whole number without leading zeros")
    return ForkRequest(
        source,
        None if offset is None else decode_offset(offset),
        0 if sub_offset is None else int(sub_offset),
    )


class Query:
    """The query string; unknown parameters are ignored."""

    def __init__(self, raw: bytes) -> None:
        self._values: dict[bytes, list[bytes]] = {}
        if raw:
            for pair in raw.split(b"&"):
                name, _, value = pair.partition(b"=")
                values = self._values.setdefault(_unescape(name), [])
                values.append(_unescape(value))

    def one(self, name: bytes) -> bytes | None:
        values = self._values.get(name)
        if values is None:
            return None
        if len(values) > 1:
            raise InvalidRequest(f"send the parameter {name.decode('latin-1')} only once")
        return values[0]

    def offset(self) -> bytes | None:
        """The token as it was sent: a sentinel or something decode_offset will judge."""
        values = self._values.get(b"offset")
        if values is None:
            return None
        if len(values) > 1:
            raise InvalidOffset("send the parameter offset only once")
        if not values[0]:
            raise InvalidOffset("offset must not be empty; leave it out to read from the start")
        return values[0]

    def live(self) -> bytes | None:
        live = self.one(b"live")
        if live in (None, b"sse", b"long-poll"):
            return live
        if live in (b"true", b"1"):
            return b"long-poll"
        if live in (b"", b"false", b"0"):
            return None
        raise InvalidRequest("live must be long-poll or sse")

    def names(self) -> KeysView[bytes]:
        """The parameters that were sent."""
        return self._values.keys()

    def max_bytes(self, limit: int) -> int | None:
        """At most the limit; None when the request does not say."""
        text = self.one(b"max_bytes")
        if text is None:
            return None
        if not _STRICT_INTEGER.fullmatch(text) or text == b"0":
            raise InvalidRequest("max_bytes must be a whole number from 1")
        return min(int(text), limit)

    def compress(self) -> bool | None:
        """`compress=true` or `compress=false`; None when the request leaves it open."""
        text = self.one(b"compress")
        if text not in (None, b"true", b"false"):
            raise InvalidRequest("compress must be true or false")
        return None if text is None else text == b"true"

    def timeout_seconds(self, default: float) -> float:
        """`timeout=5s` or `timeout_ms=5000`; capped, as proxies end longer waits."""
        text, text_ms = self.one(b"timeout"), self.one(b"timeout_ms")
        if text_ms is not None:
            if not _STRICT_INTEGER.fullmatch(text_ms):
                raise InvalidRequest("timeout_ms must be a whole number of milliseconds")
            return min(int(text_ms) / 1000, LONG_POLL_SECONDS_MAX)
        if text is None:
            return default
        milliseconds = durations.decode_duration_ms(text)
        if milliseconds is None:
            raise InvalidRequest("timeout must be seconds or a duration such as 5s")
        return min(milliseconds / 1000, LONG_POLL_SECONDS_MAX)


def _unescape(text: bytes) -> bytes:
    if b"%" in text or b"+" in text:
        return unquote_to_bytes(text.replace(b"+", b" "))
    return text


def is_now(token: bytes | None) -> bool:
    return token == NOW_TOKEN


def matches_etag(headers: Headers, etag: bytes) -> bool:
    """If-None-Match: a list of tags, weak ones included, or `*`."""
    wanted = headers.get(b"if-none-match")
    if wanted is None:
        return False
    if wanted.strip() == b"*":
        return True
    return any(tag.strip().removeprefix(b"W/") == etag for tag in wanted.split(b","))
