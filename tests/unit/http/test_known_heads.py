from __future__ import annotations

import pytest

from millstream.http.known_heads import (
    BYTES_MAX,
    HEADS_MAX,
    LINES_MAX,
    HeadShape,
    KnownHead,
    KnownHeads,
    KnownLine,
)

LINE = b"POST /a?b HTTP/1.1"
MEANING = KnownLine(b"POST", b"/a", b"b")
BLOCK = b"\r\nhost: x\r\ncontent-length: 5"
HEADERS = {b"host": b"x", b"content-length": b"5"}


def remembered(
    line: bytes = LINE, block: bytes = BLOCK, headers: dict[bytes, bytes] = HEADERS
) -> KnownHeads:
    heads = KnownHeads()
    heads.remember(line, MEANING, block, headers)
    return heads


def test_a_remembered_head_is_found_by_its_very_bytes() -> None:
    heads = remembered()
    assert heads.blocks.get(BLOCK) == KnownHead(HEADERS, 5)
    assert heads.lines.get(LINE) == MEANING
    for other in (BLOCK.upper(), BLOCK + b" ", BLOCK.replace(b"5", b"6"), b""):
        assert heads.blocks.get(other) is None


def test_a_head_without_a_length_has_no_body() -> None:
    block = b"\r\nhost: x"
    assert remembered(block=block, headers={b"host": b"x"}).blocks[block].body_bytes == 0


@pytest.mark.parametrize("name", [b"connection", b"expect", b"upgrade", b"transfer-encoding"])
def test_a_head_that_changes_how_the_connection_works_is_never_remembered(name: bytes) -> None:
    heads = remembered(headers=HEADERS | {name: b"x"})
    assert not heads.blocks
    assert not heads.lines


def test_what_a_web_page_sent_is_remembered_only_where_all_pages_may_do_everything() -> None:
    headers = HEADERS | {b"origin": b"http://localhost"}
    assert not remembered(headers=headers).blocks
    heads = KnownHeads(with_origins=True)
    heads.remember(LINE, MEANING, BLOCK, headers)
    assert BLOCK in heads.blocks


@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9"])
def test_a_line_of_another_version_is_never_remembered(version: bytes) -> None:
    heads = remembered(line=b"GET / " + version)
    assert not heads.blocks
    assert not heads.lines


def test_a_long_head_is_not_remembered() -> None:
    fits = b"x" * (BYTES_MAX - len(LINE))
    assert fits in remembered(block=fits).blocks
    assert not remembered(block=fits + b"x").blocks


def test_the_memory_of_heads_is_bounded() -> None:
    heads = KnownHeads()
    for number in range(LINES_MAX + 5):
        heads.remember(b"GET /%d HTTP/1.1" % number, MEANING, b"%d" % number, {})
        assert len(heads.blocks) <= HEADS_MAX
        assert len(heads.lines) <= LINES_MAX
        named = b"\r\nx: %d\r\ncontent-length: 5" % number
        heads.remember_shape(LINE, MEANING, named, HEADERS, 100)
        assert 1 <= len(heads.shapes) <= HEADS_MAX
    assert b"%d" % (LINES_MAX + 4) in heads.blocks


def test_a_shape_is_the_block_without_the_digits_of_its_length() -> None:
    heads = KnownHeads()
    block = b"\r\nHost: 5\r\nContent-LENGTH: 5\r\nx: y"
    shape = heads.remember_shape(LINE, MEANING, block, HEADERS | {b"x": b"y"}, 100)
    lead, rest = b"\r\nHost: 5\r\nContent-LENGTH: ", b"\r\nx: y"
    assert shape == HeadShape(lead, rest, 100, KnownHead({b"host": b"x", b"x": b"y"}, 0))
    assert heads.lines == {LINE: MEANING}
    assert not heads.blocks


@pytest.mark.parametrize(
    ("block", "length"),
    [
        (b"\r\nhost: x", None),
        (b"\r\ncontent-length:5", b"5"),
        (b"\r\ncontent-length: 5 ", b"5"),
        (b"\r\ncontent-length:  5", b"5"),
        (b"\r\ncontent-length: 05", b"05"),
        (b"\r\ncontent-length: 5\r\n 6", b"5 6"),
        (b"\r\ncontent-length: 5\r\ncontent-length: 5", b"5, 5"),
        (b"\r\ncontent-length: 5\r\nContent-Length: 5", b"5"),
        (b"\r\nx: \r\n content-length: 5", None),
    ],
)
def test_what_is_not_spelled_in_the_usual_way_has_no_shape(
    block: bytes, length: bytes | None
) -> None:
    headers = {} if length is None else {b"content-length": length}
    heads = KnownHeads()
    assert heads.remember_shape(LINE, MEANING, block, headers, 100) is None
    assert not heads.lines


@pytest.mark.parametrize("name", [b"connection", b"expect", b"upgrade", b"transfer-encoding"])
def test_a_head_that_changes_how_the_connection_works_has_no_shape(name: bytes) -> None:
    heads = KnownHeads()
    assert heads.remember_shape(LINE, MEANING, BLOCK, HEADERS | {name: b"x"}, 100) is None
