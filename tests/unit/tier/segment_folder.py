"""Segments as files below a folder, with every read noted."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

from millstream.errors import ObjectMissing, ObjectTooShort
from millstream.formats.runs import Segment
from millstream.formats.segment import EncodedSegment
from tests.unit.formats.segment_contents import segment_of


class SegmentFolder:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reads: list[tuple[str, int, int]] = []
        self._lock = Lock()

    def store(self, encoded: EncodedSegment, name: str = "segments/0003/one.parquet") -> Segment:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded.data)
        return segment_of(encoded, name)

    def get_range(self, name: str, start: int, length: int) -> bytes:
        with self._lock:
            self.reads.append((name, start, length))
        try:
            data = (self.folder / name).read_bytes()[start : start + length]
        except FileNotFoundError:
            raise ObjectMissing(f"there is no object {name}") from None
        if len(data) < length:
            raise ObjectTooShort(f"object {name} is too short")
        return data
