"""Buckets: create, describe, list, delete; and the list of all streams."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice

import msgspec

from millstream.api.arguments import Query
from millstream.api.errors import respond_error
from millstream.api.paths import check_bucket_id, display_name
from millstream.clock import Clock
from millstream.engine.engine import Engine
from millstream.errors import BucketNotFound, InvalidRequest, StreamError
from millstream.http.message import Request
from millstream.protocol.durations import encode_timestamp
from millstream.protocol.patterns import DEFAULT_BUCKET
from millstream.state.buckets import Bucket, split_key
from millstream.state.commands import CreateBucket, DeleteBucket
from millstream.state.decisions import bucket_not_found
from millstream.state.outcomes import Done, Outcome
from millstream.state.stream import Stream

_JSON = b"content-type: application/json\r\ncache-control: no-store\r\n"
_NO_STORE = b"cache-control: no-store\r\n"
LIST_LIMIT_MAX = 1000
SKIPPED_AT_ONCE = 2000  # names passed over in one go, a few milliseconds


class NamespaceApi:
    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    # One bucket

    def create(self, request: Request, bucket: bytes) -> None:
        check_bucket_id(bucket, new=True)
        command = CreateBucket(self._clock.now_ms(), bucket)
        self._engine.submit(command, self._changed, request)

    def delete(self, request: Request, bucket: bytes) -> None:
        check_bucket_id(bucket)
        command = DeleteBucket(self._clock.now_ms(), bucket)
        self._engine.submit(command, self._changed, request)

    @staticmethod
    def _changed(request: Request, outcome: Outcome) -> None:
        if isinstance(outcome, StreamError):
            respond_error(request, outcome)
        else:
            request.respond(201 if outcome is Done.CREATED else 204, _NO_STORE)

    def describe(self, request: Request, bucket: bytes) -> None:
        found = self._find(bucket)
        body = {
            "bucket_id": bucket.decode(),
            "streams": found.streams,
            "created_at_ms": found.created_ms,
        }
        request.respond(200, _JSON, msgspec.json.encode(body))

    def _find(self, bucket: bytes) -> Bucket:
        check_bucket_id(bucket)
        found = self._engine.machine.names.buckets.get(bucket)
        if found is None:
            error = bucket_not_found()
            assert isinstance(error, BucketNotFound)
            raise error
        return found

    # Listings

    def list_bucket(self, request: Request, bucket: bytes, query: Query) -> None:
        self._find(bucket)
        limit = _limit(query, LIST_LIMIT_MAX)
        prefix, after = query.one(b"prefix") or b"", query.one(b"after")
        _check_utf8(prefix, "prefix")
        _check_utf8(after or b"", "after")
        wanted = bucket + b"/" + _key_form(prefix)
        found = list(islice(self._live_from(wanted, bucket, after), limit + 1))
        has_more, page = len(found) > limit, found[:limit]
        body = {
            "bucket_id": bucket.decode(),
            "prefix": prefix.decode(),
            "stream_count": len(page),
            "streams": [_bucket_entry(stream) for stream in page],
            "next_cursor": _stream_id(page[-1]) if has_more else None,
            "has_more": has_more,
        }
        request.respond(200, _JSON, msgspec.json.encode(body))

    def _live_from(self, wanted: bytes, bucket: bytes, after: bytes | None) -> Iterator[Stream]:
        """Streams whose key starts with `wanted`, behind `after`, in byte order."""
        machine, now_ms = self._engine.machine, self._clock.now_ms()
        first, inclusive = wanted, True
        if after is not None:
            cursor = bucket + b"/" + _key_form(after)
            if cursor >= wanted:
                first, inclusive = cursor, False
        for key in machine.names.keys_from(first, inclusive=inclusive):
            if not key.startswith(wanted):
                return
            stream = machine.look_up(key)
            if stream is not None and not self._engine.lifetimes.is_over(stream, now_ms):
                yield stream

    def list_all(self, request: Request, query: Query) -> None:
        """Every stream of the server as descriptors, in order of name."""
        limit = _limit(query, LIST_LIMIT_MAX, default=100)
        self._list_behind(request, b"", _whole_number(query, b"offset", 0), limit)

    def _list_behind(self, request: Request, after: bytes, skipped: int, limit: int) -> None:
        """Passes over `skipped` names, not too many at a time: others want the loop as well."""
        names = self._engine.machine.names
        keys = list(islice(names.keys_from(after, inclusive=False), min(skipped, SKIPPED_AT_ONCE)))
        if len(keys) < skipped and len(keys) == SKIPPED_AT_ONCE:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._list_behind, request, keys[-1], skipped - len(keys), limit)
            return
        found: list[bytes] = []
        if len(keys) == skipped:
            last = keys[-1] if keys else after
            found = list(islice(names.keys_from(last, inclusive=False), limit))
        now_ms = self._clock.now_ms()
        body = [
            _descriptor(stream)
            for stream in map(self._engine.machine.look_up, found)
            if stream is not None and not self._engine.lifetimes.is_over(stream, now_ms)
        ]
        request.respond(200, _JSON, msgspec.json.encode(body))


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


def _check_utf8(text: bytes, name: str) -> None:
    try:
        text.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name} must be UTF-8") from None


def _key_form(name: bytes) -> bytes:
    """Keys keep `%` escaped, and a slash that was sent as `%2F`; see paths.py."""
    return name.replace(b"%", b"%25").replace(b"%252F", b"%2F")


def _stream_id(stream: Stream) -> str:
    return display_name(split_key(stream.path)[1])


def _bucket_entry(stream: Stream) -> dict[str, object]:
    return {
        "stream_id": _stream_id(stream),
        "status": "Closed" if stream.closed else "Open",
        "content_type": stream.content_type.decode("latin-1"),
        "tail_offset": stream.log.tail_byte,
        "created_at_ms": stream.created_ms,
        "last_write_at_ms": stream.last_write_ms,
    }


def _descriptor(stream: Stream) -> dict[str, object]:
    bucket, name = split_key(stream.path)
    path = name if bucket == DEFAULT_BUCKET else stream.path
    deadline = stream.deadline_ms(max(stream.touched_ms, stream.accessed_ms))
    return {
        "name": display_name(path),
        "created_at": encode_timestamp(stream.created_ms),
        "expires_at": None if deadline is None else encode_timestamp(deadline),
        "epoch": 0,
        "next_offset": str(stream.log.tail_ordinal),
        "sealed_through": "-1",
        "uploaded_through": "-1",
        "profile": "generic",
    }
