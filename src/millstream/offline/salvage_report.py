"""What a salvage found, brought along and left behind: for people and as JSON."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from millstream.formats.layout import StreamId
from millstream.protocol.offsets import Position


class Damage(NamedTuple):
    """Something that is not as it was written."""

    file: str  # a path, or the name of an object
    position: int | None
    problem: str


class Loss(NamedTuple):
    """Messages of a stream that are not in the new folder."""

    stream: str
    stream_id: StreamId
    first: Position
    end: Position
    reason: str


class Behind(NamedTuple):
    """A sound record behind the place where the log is damaged. It is not applied."""

    file: str
    position: int
    lsn: int
    kind: str
    stream: str | None
    stream_id: StreamId | None
    messages: int
    bytes: int


class Report(msgspec.Struct):
    folder: str
    out: str
    base: str = ""  # what the new folder was built from
    lsn: int = 0  # the position of the log up to which everything is in
    streams: int = 0
    messages: int = 0
    damaged: list[Damage] = []
    lost: list[Loss] = []  # messages
    behind: list[Behind] = []  # records
    lost_otherwise: list[str] = []
    leftovers: str | None = None  # the file with what is readable, but of no certain place

    @property
    def is_complete(self) -> bool:
        return not (self.lost or self.behind or self.lost_otherwise)

    def as_json(self) -> bytes:
        """The same, with names for the fields of what is listed."""
        listed = {name: getattr(self, name) for name in self.__struct_fields__}
        for name in ("damaged", "lost", "behind"):
            listed[name] = [each._asdict() for each in listed[name]]
        return msgspec.json.format(msgspec.json.encode(listed), indent=1) + b"\n"


def describe(report: Report) -> Iterator[str]:
    for damage in report.damaged:
        place = "" if damage.position is None else f" at byte {damage.position}"
        yield f"damaged: {damage.file}{place}: {damage.problem}"
    for loss in report.lost:
        first, end = loss.first, loss.end
        count, size = end.ordinal - first.ordinal, end.byte - first.byte
        yield (
            f"lost: {loss.stream} (stream {loss.stream_id}): messages {first.ordinal} to "
            f"{end.ordinal - 1} ({count:,}), bytes {first.byte} to {end.byte} ({size:,}): "
            f"{loss.reason}"
        )
    yield from (f"lost: {text}" for text in report.lost_otherwise)
    yield from _describe_behind(report.behind)


def _describe_behind(behind: Iterable[Behind]) -> Iterator[str]:
    """By stream; the JSON has them one by one."""
    by_stream: dict[str, list[Behind]] = {}
    for each in behind:
        by_stream.setdefault(each.stream or "no stream", []).append(each)
    for stream, records in by_stream.items():
        first, last = records[0], records[-1]
        messages, size = sum(r.messages for r in records), sum(r.bytes for r in records)
        yield (
            f"not applied: {stream}: {len(records):,} records behind the damage, log positions "
            f"{first.lsn} to {last.lsn}, from {first.file} at byte {first.position} on: "
            f"{messages:,} messages, {size:,} bytes"
        )


def readable(data: bytes) -> Any:
    """Text, or base64 for bytes that are none."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
