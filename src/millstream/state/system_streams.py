"""Streams of the server's own: clients read them, and only the server writes.

`__registry__` tells what becomes of all other streams. Its records are written by `apply`, in the
same step as what they tell of, so each is there exactly once, whatever crashes. What is written to
`__stream_metrics__` comes as a command of its own (millstream/system_streams.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from millstream.errors import InvalidRequest, StreamExists, StreamNotFound
from millstream.formats.blocks import Keys
from millstream.formats.layout import StreamId
from millstream.protocol.content_types import JSON_CONTENT_TYPE
from millstream.protocol.durations import encode_timestamp
from millstream.protocol.offsets import encode_offset
from millstream.protocol.patterns import DEFAULT_BUCKET, text_of
from millstream.state.commands import AppendEntries, KeepSystemStream, WriteSystemStream
from millstream.state.outcomes import Done, Outcome
from millstream.state.rules import GENERIC, Rules
from millstream.state.stream import Stream

if TYPE_CHECKING:
    from millstream.state.machine import StateMachine

REGISTRY = DEFAULT_BUCKET + b"/__registry__"
STREAM_METRICS = DEFAULT_BUCKET + b"/__stream_metrics__"
SYSTEM_KEYS = frozenset((REGISTRY, STREAM_METRICS))
_DAY_MS = 86_400_000
AGES_MS = {REGISTRY: 30 * _DAY_MS, STREAM_METRICS: 7 * _DAY_MS}  # how long records are kept

# Rules of any kind refuse what comes without their revision: no plain append gets in.
_PLAIN = Rules(revision=1)


class Kept(NamedTuple):
    stream_id: StreamId
    is_kept: bool  # the server writes to it


class SystemStreams:
    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self.by_path: dict[bytes, Kept] = {}
        self.changed: set[bytes] = set()  # since the last checkpoint

    def appliers(self) -> dict[type, Callable[[Any], Outcome]]:
        return {KeepSystemStream: self._apply_keep, WriteSystemStream: self._apply_write}

    def owns(self, path: bytes) -> bool:
        """Not so of a stream that had the name before it was reserved."""
        return path in self.by_path

    def is_kept(self, path: bytes) -> bool:
        kept = self.by_path.get(path)
        return kept is not None and kept.is_kept

    @property
    def registry_id(self) -> StreamId | None:
        """Where commands that create, end or change streams leave a record."""
        kept = self.by_path.get(REGISTRY)
        return kept.stream_id if kept is not None and kept.is_kept else None

    def restore(self, path: bytes, kept: Kept) -> None:
        self.by_path[path] = kept
        self._machine.names.hide(path)

    def _apply_keep(self, command: KeepSystemStream) -> Outcome:
        path = command.path
        if path not in SYSTEM_KEYS:
            return InvalidRequest("no stream of the server's own has this name")
        kept = self.by_path.get(path)
        if not command.is_kept:
            if kept is None or not kept.is_kept:
                return Done.NOTHING
            return self._set(path, kept._replace(is_kept=False))
        existing = self._machine.find(path)
        if existing is not None and kept is not None and existing.stream_id == kept.stream_id:
            return self._set(path, kept._replace(is_kept=True))
        if existing is not None:
            return StreamExists("a stream of this name was there before the name was reserved")
        self._machine.names.hide(path)
        stream = self._machine.add_stream(path, JSON_CONTENT_TYPE, command.now_ms)
        rules = command.rules or _PLAIN
        boundaries = ((0, rules.version),) if rules.version else ()
        stream.rules = msgspec.structs.replace(rules, revision=1, boundaries=boundaries)
        self._machine.subscriptions.stream_created(stream)
        self._set(path, Kept(stream.stream_id, is_kept=True))
        return Done.CREATED

    def _set(self, path: bytes, kept: Kept) -> Outcome:
        self.by_path[path] = kept
        self.changed.add(path)
        return Done.ACCEPTED

    def _apply_write(self, command: WriteSystemStream) -> Outcome:
        kept = self.by_path.get(command.path)
        if kept is None or not kept.is_kept:
            return StreamNotFound("the server does not keep this stream")
        return self._write(
            kept, command.now_ms, command.data, command.ends, command.count, command.keys
        )

    def _write(
        self, kept: Kept, now_ms: int, data: bytes, ends: bytes, count: int, keys: Keys
    ) -> Outcome:
        stream = self._machine.find_by_id(kept.stream_id)
        if stream is None or stream.rules is None:
            return StreamNotFound("stream does not exist")
        entries = AppendEntries(now_ms, stream.stream_id, data, ends, count)
        entries.keys, entries.rules_revision = keys, stream.rules.revision
        outcome = self._machine.apply_entries(entries)
        if outcome is not Done.APPENDED:
            return outcome
        self._machine.outbox.grown.add(stream.stream_id)
        return Done.ACCEPTED  # none of the appends that clients made

    # The registry. These bytes are made again on replay: a change here needs a new command.

    def note_created(self, stream: Stream, now_ms: int) -> None:
        if self.registry_id is None:
            return
        record: dict[str, object] = {"content_type": stream.content_type.decode("latin-1")}
        if stream.ttl_ms is not None:
            record["ttl_seconds"] = stream.ttl_ms // 1000
        if stream.expires_at_ms is not None:
            record["expires_at"] = encode_timestamp(stream.expires_at_ms)
        if stream.closed:
            record["closed"] = True
        record |= _rules_fields(stream)
        if stream.origin is None:
            self._note("stream.created", stream, now_ms, record)
        else:
            record["source"] = _url(stream.origin.source_path)
            record["fork_offset"] = encode_offset(*stream.log.own)
            self._note("stream.forked", stream, now_ms, record)

    def note_deleted(self, stream: Stream, now_ms: int) -> None:
        self._note("stream.deleted", stream, now_ms, {"next_offset": stream.tail})

    def note_expired(self, stream: Stream, now_ms: int) -> None:
        self._note("stream.expired", stream, now_ms, {"next_offset": stream.tail})

    def note_rules(self, stream: Stream, now_ms: int) -> None:
        self._note("stream.rules_changed", stream, now_ms, _rules_fields(stream))

    def _note(self, kind: str, stream: Stream, now_ms: int, more: dict[str, object]) -> None:
        kept = self.by_path.get(REGISTRY)
        if kept is None or not kept.is_kept:
            return
        record = {"type": kind, "stream": _url(stream.path), "at": _moment(now_ms), **more}
        self._write(kept, now_ms, msgspec.json.encode(record) + b",", b"", 1, None)


@lru_cache(maxsize=1)  # those that end together end at the same moment
def _moment(now_ms: int) -> str:
    return encode_timestamp(now_ms)


def _url(path: bytes) -> str:
    return f"/v1/stream/{text_of(path)}"


def _rules_fields(stream: Stream) -> dict[str, object]:
    """What a schema asks is for `/_schema` to say; here is which one it is."""
    rules = stream.rules
    if rules is None:
        return {"profile": GENERIC, "schema_version": 0}
    return {"profile": rules.kind, "schema_version": rules.version}
