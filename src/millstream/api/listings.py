"""What there is: the streams of a bucket, all streams, all buckets.

Each listing is in the byte order of the names it shows, in the one notation of paths.py, and what
it shows as a name can be given back as `after` to go on behind it. A long listing takes a few
names at a time and lets others have the loop in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

import msgspec

from millstream.access.gate import Grant
from millstream.access.scopes import Scope
from millstream.api.arguments import Query
from millstream.api.compression import Compression
from millstream.api.headers import JSON
from millstream.api.steps import Steps, take_steps
from millstream.clock import Clock
from millstream.engine.engine import Engine
from millstream.errors import InvalidRequest
from millstream.http.message import Request
from millstream.inspection.stream_report import profile_kind, sealed_through
from millstream.limits import LISTED_PLACE_MAX
from millstream.protocol.content_types import JSON_CONTENT_TYPE
from millstream.protocol.durations import encode_timestamp
from millstream.protocol.patterns import DEFAULT_BUCKET, path_of, text_of
from millstream.state.buckets import Bucket, split_key
from millstream.state.stream import Stream

_END = b"\xff"  # behind every UTF-8
_DEFAULT_ROOT = DEFAULT_BUCKET + b"/"
LIST_LIMIT_MAX = 1000
LIST_ALL_DEFAULT = 100
KEYS_AT_ONCE = 1000  # names looked at before others get the loop: a few milliseconds
STREAMS_AT_ONCE = 50  # streams looked up before that: one at rest is read from the catalog

Wanted = Callable[[bytes], bool]
Entry = dict[str, object]  # of one stream
KeysFrom = Callable[..., Iterator[bytes]]  # `Namespace.keys_from`


class Listings:
    def __init__(self, engine: Engine, clock: Clock, compression: Compression) -> None:
        self._engine = engine
        self._compression = compression
        self._names = engine.machine.names
        self._clock = clock

    def _respond(self, request: Request, body: object) -> None:
        self._compression.respond(request, JSON, msgspec.json.encode(body), JSON_CONTENT_TYPE)

    def list_bucket(self, request: Request, bucket: bytes, query: Query) -> None:
        """The bucket must exist."""
        limit = _limit(query, LIST_LIMIT_MAX)
        prefix, after = _text(query, b"prefix"), _text(query, b"after")
        root = bucket + b"/"
        readable = _readable(request)
        names = self._shown_names(request, query)
        keys = _Range(names, root + prefix, root + prefix + _END, readable)
        keys.go_behind(root + after)

        def respond(streams: list[Entry]) -> None:
            page, has_more = streams[:limit], len(streams) > limit
            body = {
                "bucket_id": bucket.decode(),
                "prefix": prefix.decode(),
                "stream_count": len(page),
                "streams": page,
                "next_cursor": page[-1]["stream_id"] if has_more else None,
                "has_more": has_more,
            }
            self._respond(request, body)

        at_once = _at_once(limit + 1, readable)
        steps = self._collect([keys], 0, limit + 1, at_once, _bucket_entry, respond)
        take_steps(self._engine, request, steps)

    def list_all(self, request: Request, query: Query) -> None:
        """Every stream of the server as descriptors; by place (`offset`) or behind a name."""
        limit = _limit(query, LIST_LIMIT_MAX, default=LIST_ALL_DEFAULT)
        skipped, after = _place(query), _text(query, b"after")

        def respond(streams: list[Entry]) -> None:
            self._respond(request, streams)

        readable = _readable(request)
        ranges = self._all_keys(after, readable, self._shown_names(request, query))
        at_once = _at_once(skipped + limit, readable)
        steps = self._collect(ranges, skipped, limit, at_once, _descriptor, respond)
        take_steps(self._engine, request, steps)

    def _shown_names(self, request: Request, query: Query) -> KeysFrom:
        """The server's own streams are shown to clients that ask for them and may read them."""
        keys_from = self._names.keys_from
        if (query.one(b"system") or b"").lower() != b"true":
            return keys_from
        grant: Grant | None = request.grant
        if grant is not None and not grant.allows_everything(Scope.READ):
            return keys_from
        return partial(keys_from, with_hidden=True)

    @staticmethod
    def _all_keys(after: bytes, readable: Wanted | None, names: KeysFrom) -> list[_Range]:
        """Names in the default bucket are shown without it, but for those that would then seem to
        be in another bucket: two orders that have to be merged."""
        end = _DEFAULT_ROOT + _END
        bare = _Range(names, _DEFAULT_ROOT, end, _both(lambda key: path_of(key) != key, readable))
        whole = [
            _Range(names, b"", _DEFAULT_ROOT, readable),
            _Range(names, _DEFAULT_ROOT, end, _both(lambda key: path_of(key) == key, readable)),
            _Range(names, end, _END, readable),
        ]
        if after:
            bare.go_behind(_DEFAULT_ROOT + after)
            for keys in whole:
                keys.go_behind(after)
        return [bare, *whole]

    def _collect(
        self,
        ranges: list[_Range],
        skipped: int,
        limit: int,
        at_once: int,
        describe: Callable[[Stream], Entry],
        respond: Callable[[list[Entry]], None],
    ) -> Steps:
        found: list[Entry] = []
        looked_up = 0
        now_ms = self._clock.now_ms()
        while len(found) < limit:
            empty = [keys for keys in ranges if not keys.ahead]
            if empty:
                for keys in empty:
                    keys.look_ahead(at_once)
                ranges = [keys for keys in ranges if keys.ahead or not keys.is_over]
                if not ranges:
                    break
                yield
                continue
            key = min(ranges, key=_Range.shown_next).ahead.popleft()
            if skipped:
                skipped -= 1
                continue
            stream = self._engine.machine.look_up(key)
            if stream is not None and not self._engine.lifetimes.is_over(stream, now_ms):
                found.append(describe(stream))
            looked_up += 1
            if looked_up % STREAMS_AT_ONCE == 0:
                yield
        respond(found)

    def list_buckets(self, request: Request, query: Query) -> None:
        limit = _limit(query, LIST_LIMIT_MAX)
        prefix, after = _text(query, b"prefix"), _text(query, b"after")

        def respond(found: list[Bucket]) -> None:
            page, has_more = found[:limit], len(found) > limit
            body = {
                "prefix": prefix.decode(),
                "bucket_count": len(page),
                "buckets": [_bucket_line(bucket) for bucket in page],
                "next_cursor": page[-1].name.decode() if has_more else None,
                "has_more": has_more,
            }
            self._respond(request, body)

        readable = _readable(request)
        steps = self._collect_buckets(prefix, after, limit + 1, readable, respond)
        take_steps(self._engine, request, steps)

    def _collect_buckets(
        self,
        prefix: bytes,
        after: bytes,
        limit: int,
        readable: Wanted | None,
        respond: Callable[[list[Bucket]], None],
    ) -> Steps:
        """Those that may be read whole: how many streams a bucket has is told of all of them."""
        buckets, at_once = self._names.buckets, _at_once(limit, readable)
        found: list[Bucket] = []
        while True:
            names = list(islice(self._bucket_names(prefix, after), at_once))
            found += [buckets[name] for name in names if readable is None or readable(name + b"/")]
            if len(names) < at_once or len(found) >= limit:
                break
            after = names[-1]
            yield
        respond(found[:limit])

    def _bucket_names(self, prefix: bytes, after: bytes) -> Iterator[bytes]:
        is_behind = after >= prefix and after != b""
        first = after if is_behind else prefix
        return self._names.buckets.irange(first, prefix + _END, inclusive=(not is_behind, False))


class _Range:
    """The keys from one place up to another, in order; those that are not `wanted` left out."""

    def __init__(
        self,
        keys_from: KeysFrom,
        first: bytes,
        end: bytes,
        wanted: Wanted | None = None,
    ) -> None:
        self._keys_from = keys_from
        self._next, self._is_inclusive = first, True
        self._end = end
        self._wanted = wanted
        self.ahead: deque[bytes] = deque()
        self.is_over = False

    def go_behind(self, key: bytes) -> None:
        if key >= self._next:
            self._next, self._is_inclusive = key, False

    def look_ahead(self, count: int) -> None:
        """Anew each time: names come and go between two looks."""
        if self.is_over:
            return
        found = self._keys_from(self._next, inclusive=self._is_inclusive)
        looked_at = 0
        for key in islice(found, count):
            if key >= self._end:
                break
            looked_at += 1
            self._next, self._is_inclusive = key, False
            if self._wanted is None or self._wanted(key):
                self.ahead.append(key)
        self.is_over = looked_at < count

    def shown_next(self) -> bytes:
        return path_of(self.ahead[0])


def _readable(request: Request) -> Wanted | None:
    """Which streams may be shown; None: all of them."""
    grant: Grant | None = request.grant
    return None if grant is None else lambda key: grant.allows(Scope.READ, key)


def _at_once(wanted: int, readable: Wanted | None) -> int:
    """Names to look at in one go; where many are left out, more than are wanted."""
    return min(KEYS_AT_ONCE, wanted) if readable is None else KEYS_AT_ONCE


def _both(one: Wanted, other: Wanted | None) -> Wanted:
    return one if other is None else lambda key: one(key) and other(key)


def _limit(query: Query, maximum: int, default: int | None = None) -> int:
    limit = _whole_number(query, b"limit", default or maximum)
    if not 1 <= limit <= maximum:
        raise InvalidRequest(f"limit must be from 1 to {maximum}")
    return limit


def _whole_number(query: Query, name: bytes, default: int) -> int:
    text = query.one(name)
    if text is None:
        return default
    if not text.isdigit() or len(text) > 15:
        raise InvalidRequest(f"{name.decode()} must be a whole number")
    return int(text)


def _place(query: Query) -> int:
    """Names before the place are passed over one by one: deep in a long list, that takes long."""
    place = _whole_number(query, b"offset", 0)
    if place > LISTED_PLACE_MAX:
        raise InvalidRequest(
            f"offset must not exceed {LISTED_PLACE_MAX}; go on behind the last name you were"
            " shown with after=NAME"
        )
    return place


def _text(query: Query, name: bytes) -> bytes:
    text = query.one(name) or b""
    try:
        text.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name.decode()} must be UTF-8") from None
    return text


def _bucket_line(bucket: Bucket) -> dict[str, object]:
    return {
        "bucket_id": bucket.name.decode(),
        "streams": bucket.streams,
        "created_at_ms": bucket.created_ms,
    }


def _bucket_entry(stream: Stream) -> Entry:
    return {
        "stream_id": split_key(stream.path)[1].decode(),
        "status": "Closed" if stream.closed else "Open",
        "content_type": stream.content_type.decode("latin-1"),
        "tail_offset": stream.tail,
        "created_at_ms": stream.created_ms,
        "last_write_at_ms": stream.last_write_ms,
    }


def _descriptor(stream: Stream) -> Entry:
    deadline = stream.deadline_ms(max(stream.touched_ms, stream.accessed_ms))
    sealed = sealed_through(stream)
    return {
        "name": text_of(stream.path),
        "created_at": encode_timestamp(stream.created_ms),
        "expires_at": None if deadline is None else encode_timestamp(deadline),
        "epoch": 0,
        "next_offset": stream.tail,
        "sealed_through": sealed,
        "uploaded_through": sealed,  # a segment is in the store before the state hears of it
        "profile": profile_kind(stream),
    }
