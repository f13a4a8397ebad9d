"""What a read wants of its entries beside their place: a routing key, a filter, a format, and the
current form of what was written under an older schema."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from millstream.api.arguments import Query
from millstream.errors import InvalidRequest, InvalidSchema
from millstream.formats.blocks import Block
from millstream.limits import (
    FILTER_SCAN_BYTES_MAX,
    ROUTING_KEY_BYTES_MAX,
    RULES_ENTRY_BYTES_MAX,
)
from millstream.protocol.durations import decode_moment_ms
from millstream.protocol.offsets import AnyOffset, Position
from millstream.schemas.filters import Filter, parse_filter
from millstream.schemas.messages import decode_messages, encode_message
from millstream.schemas.promotion import promotion_of
from millstream.schemas.search_config import search_of
from millstream.state.rules import Rules
from millstream.state.stream import Stream

_SHAPING = frozenset((b"key", b"since", b"filter", b"format"))


class Shape(NamedTuple):
    key: bytes | None = None
    since_ms: int | None = None
    filter_text: bytes = b""
    is_raw: bool = False  # as stored, one behind the other

    @property
    def is_plain(self) -> bool:
        """Whether it asks for nothing that a plain read would not do, but for the start."""
        return self.key is None and not self.filter_text and not self.is_raw

    @property
    def tag(self) -> bytes:
        """The same for the same wish; part of ETags."""
        wish = repr((self.key, self.filter_text, self.is_raw)).encode()
        return hashlib.blake2b(wish, digest_size=6).hexdigest().encode()


def is_shaping(query: Query) -> bool:
    return not _SHAPING.isdisjoint(query.names())


def shape_of(query: Query, stream: Stream, path_key: bytes | None = None) -> Shape | None:
    """None: a read like any other. `path_key` stands in the path and wins over `key=`."""
    if path_key is None and not is_shaping(query):
        return None
    key = query.one(b"key") if path_key is None else path_key
    if key is not None and len(key) > ROUTING_KEY_BYTES_MAX:
        raise InvalidRequest(f"a routing key must not exceed {ROUTING_KEY_BYTES_MAX} bytes")
    since = query.one(b"since")
    shape = Shape(
        key or None,
        decode_moment_ms(since, "since") if since else None,
        query.one(b"filter") or b"",
        _is_raw(query.one(b"format"), stream),
    )
    if shape.filter_text and not stream.is_json:
        raise InvalidRequest("filter requires application/json stream content-type")
    if query.offset() is not None:  # it wins
        shape = shape._replace(since_ms=None)
    return None if shape.is_plain and shape.since_ms is None else shape


def _is_raw(text: bytes | None, stream: Stream) -> bool:
    if text not in (None, b"", b"json", b"raw") or (text == b"json" and not stream.is_json):
        raise InvalidRequest("invalid format")
    return text == b"raw" and stream.is_json


def needs_promotion(rules: Rules | None, offset: AnyOffset) -> bool:
    """Whether what is read from there on may have been written under an older schema."""
    return rules is not None and rules.promotes(offset.ordinal or 0)


def promoter(rules: Rules | None, first: int) -> Callable[[int, bytes], bytes] | None:
    """What makes message number `ordinal`, given as stored, one of the current version; None:
    from the first on, all of them are."""
    if rules is None or not rules.promotes(first):
        return None
    promotion, current = promotion_of(rules), rules.version

    def promote(ordinal: int, message: bytes) -> bytes:
        version = rules.version_at(ordinal)
        return message if version >= current else promotion.promote_bytes(version, message)

    return promote


class Shaper:
    """Makes what a reader gets of what is stored. Pure; runs in any thread."""

    def __init__(self, shape: Shape, rules: Rules | None, is_json: bool) -> None:
        """Raises InvalidRequest for a filter that is none."""
        self._shape = shape
        self._rules = rules
        self._comma_bytes = 1 if is_json else 0
        self._filter = _filter(shape.filter_text, rules)
        has_lenses = rules is not None and rules.version > 1
        self._promotion = promotion_of(rules) if rules is not None and has_lenses else None

    def shape(self, ordinal: int, wire: bytes) -> bytes | None:
        """The entry without a comma, or None when the reader does not get it."""
        stored, rules = wire[: len(wire) - self._comma_bytes], self._rules
        if rules is None:
            return stored
        version = rules.version_at(ordinal)
        is_old = version < rules.version and self._promotion is not None
        if self._filter is None and (not is_old or self._shape.is_raw):
            return stored
        if len(wire) > 2 * RULES_ENTRY_BYTES_MAX:  # from before there were rules
            return stored if self._filter is None else None
        try:
            value: Any = decode_messages(wire)[0]
            if is_old and self._promotion is not None:
                value = self._promotion.promote(version, value)
            if self._filter is not None and not self._filter.matches(value, rules.version):
                return None
            return encode_message(value) if is_old and not self._shape.is_raw else stored
        except RecursionError:
            raise InvalidSchema(f"message {ordinal} is nested too deeply to be shown") from None


def _filter(text: bytes, rules: Rules | None) -> Filter | None:
    if not text:
        return None
    search = None if rules is None else search_of(rules)
    if search is None:
        raise InvalidRequest("filter needs search fields; install them with POST …/_schema")
    try:
        return parse_filter(text.decode(), search)
    except UnicodeDecodeError:
        raise InvalidRequest("filter must be UTF-8") from None


class Scan:
    """Shaped entries of one answer, collected block by block until there are enough."""

    def __init__(self, shaper: Shaper, start: Position, bytes_max: int) -> None:
        self._shaper = shaper
        self._bytes_max = bytes_max
        self.position = start  # behind what was looked at
        self.entries: list[bytes] = []
        self.size = 0  # of the entries
        self.scanned_bytes = 0

    @property
    def is_limit_reached(self) -> bool:
        return self.scanned_bytes >= FILTER_SCAN_BYTES_MAX

    @property
    def is_full(self) -> bool:
        return self.size >= self._bytes_max or self.is_limit_reached

    def add(self, ordinal: int, wire: bytes) -> None:
        entry = self._shaper.shape(ordinal, wire)
        self.scanned_bytes += len(wire)
        if entry is not None:
            self.entries.append(entry)
            self.size += len(entry) + 1

    def take(self, first: Position, blocks: Sequence[Block], end: Position) -> None:
        """What lies in these blocks between the position and `end`, or enough of it.

        `first` is where the first block begins.
        """
        for ordinal, byte, wire in _messages(first, blocks):
            if ordinal < self.position.ordinal:
                continue
            if ordinal >= end.ordinal or self.is_full:
                return
            self.add(ordinal, wire)
            self.position = Position(ordinal + 1, byte + len(wire))


def _messages(first: Position, blocks: Sequence[Block]) -> Iterator[tuple[int, int, bytes]]:
    ordinal, byte = first
    for block in blocks:
        start = 0
        for end in block.message_ends:
            yield ordinal, byte + start, block.data[start:end]
            ordinal, start = ordinal + 1, end
        byte += len(block.data)
