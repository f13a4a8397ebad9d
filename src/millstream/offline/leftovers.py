"""Content that is readable, but whose place in a stream is not certain: one JSON line for each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from millstream.formats.blocks import Block, Keys, decode_ends
from millstream.formats.images import StreamImage
from millstream.formats.runs import Run
from millstream.offline.salvage_report import readable
from millstream.protocol import content_types
from millstream.state.commands import Append, AppendEntries, CreateStream


class Leftovers:
    """A file that is made when there is something to write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def add_command(
        self, stream: str | None, source: dict[str, Any], command: Append | CreateStream
    ) -> None:
        """What a record of the log would have appended."""
        kind = command.content_type or b""
        is_json = content_types.is_json(content_types.essence(kind))
        ends, time_ms = decode_ends(command.ends), command.now_ms
        keys = command.keys if isinstance(command, AppendEntries | CreateStream) else None
        if isinstance(command, AppendEntries) and command.hint_ms is not None:
            time_ms = min(command.hint_ms, time_ms)
        self._write(
            {
                "stream": stream,
                **source,
                "append_ms": time_ms,
                **_keys(keys),
                "messages": list(_messages(command.data, ends, is_json)),
            }
        )

    def add_run(self, image: StreamImage, segment: str, run: Run, block: Block) -> None:
        """What a segment holds of a stream that begins later now."""
        is_json = content_types.is_json(content_types.essence(image.content_type))
        self._write(
            {
                "stream": image.path.decode(errors="replace"),
                "segment": segment,
                "first_ordinal": run.first_ordinal,
                "first_byte": run.first_byte,
                "append_ms": block.times if isinstance(block.times, int) else list(block.times),
                **_keys(block.keys),
                "messages": list(_messages(block.data, block.ends, is_json)),
            }
        )

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is None:
            self._file = self._path.open("w", encoding="utf-8")
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def close(self) -> str | None:
        """The path of the file, if there is one."""
        if self._file is None:
            return None
        self._file.close()
        return str(self._path)


def _keys(keys: Keys) -> dict[str, Any]:
    """One for all messages, or one each; nothing where there are none."""
    if isinstance(keys, tuple):
        return {"keys": [None if key is None else readable(key) for key in keys]}
    return {} if keys is None else {"keys": readable(keys)}


def _messages(data: bytes, ends: Any, is_json: bool) -> Iterator[Any]:
    start = 0
    for end in [len(data)] if ends is None else ends:
        yield readable(data[start : end - is_json])  # without the comma behind it
        start = end
