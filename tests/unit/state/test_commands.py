from __future__ import annotations

import msgspec
import pytest

from millstream.formats.layout import StreamId
from millstream.state.commands import (
    AnyCommand,
    Append,
    CreateBucket,
    CreateStream,
    DeleteBucket,
    DeleteStream,
    ExpireStream,
    NoOp,
    PublishSnapshot,
    TouchStream,
    decode_command,
    encode_command,
    encode_in_parts,
)

EVERY_KIND: list[AnyCommand] = [
    CreateStream(5, b"a/b", b"text/plain"),
    CreateStream(5, b"\xff", b"a/b", 1, 2, True, b"d", b"e", 1, b"s", 3, 4, 5, False, False),
    Append(5, StreamId(7)),
    Append(5, StreamId(7), b"\x00\xff", b"ends", 2, b"a/b", True, b"p", 2**53 - 1, 2**53 - 1, b"s"),
    DeleteStream(5, StreamId(7)),
    TouchStream(5, StreamId(7)),
    ExpireStream(5, StreamId(7)),
    NoOp(5),
    CreateBucket(5, b"name"),
    DeleteBucket(5, b"name"),
    PublishSnapshot(5, StreamId(7), 2, 9, "7-2-cafe", b"a/b; c=d", 2**27, "0f" * 32),
]


@pytest.mark.parametrize("command", EVERY_KIND, ids=lambda command: type(command).__name__)
def test_a_command_decodes_to_what_was_encoded(command: AnyCommand) -> None:
    decoded = decode_command(encode_command(command))
    assert type(decoded) is type(command)
    assert decoded == command


LARGE: list[Append | CreateStream] = [
    Append(5, StreamId(7), b"", b"ends", 2, b"a/b", pieces=(b"x" * 70_000, b"y")),
    CreateStream(5, b"a/b", b"text/plain", count=1, pieces=(b"x" * 300,)),
    Append(5, StreamId(7), pieces=tuple(b"%d" % number for number in range(70_000))),
]


@pytest.mark.parametrize("command", [*EVERY_KIND, *LARGE], ids=lambda c: type(c).__name__)
def test_a_command_in_parts_decodes_to_the_same_and_copies_no_piece(command: AnyCommand) -> None:
    parts = encode_in_parts(command)
    assert decode_command(b"".join(parts)) == command
    if isinstance(command, Append | CreateStream):
        found = {id(part) for part in parts}
        assert all(id(piece) in found for piece in command.pieces)


def test_every_field_of_every_command_is_in_its_bytes() -> None:
    for command in EVERY_KIND:
        for field in command.__struct_fields__:
            value = {"path": b"?", "name": b"?", "blob": "?", "digest": "?"}.get(field, 1)
            other = msgspec.structs.replace(command, **{field: value})
            if getattr(other, field) != getattr(command, field):
                assert encode_command(other) != encode_command(command), field


def test_a_command_written_before_a_field_was_added_still_reads() -> None:
    old = msgspec.msgpack.encode([2, 5, 7, b"data"])
    assert decode_command(old) == Append(5, StreamId(7), b"data")


@pytest.mark.parametrize(
    ("written", "command"),
    [
        ([1, 5, b"a/b", b"text/plain"], CreateStream(5, b"a/b", b"text/plain")),
        ([2, 5, 7], Append(5, StreamId(7))),
        ([3, 5, 7], DeleteStream(5, StreamId(7))),
        ([4, 5, 7], TouchStream(5, StreamId(7))),
        ([5, 5, 7], ExpireStream(5, StreamId(7))),
        ([6, 5], NoOp(5)),
    ],
)
def test_every_kind_keeps_its_number_for_ever(written: list[object], command: AnyCommand) -> None:
    assert decode_command(msgspec.msgpack.encode(written)) == command


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([99, 5]),
        msgspec.msgpack.encode({"kind": 2}),
        b"\x92\x02",
    ],
)
def test_bytes_that_are_no_command_are_refused(payload: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_command(payload)
