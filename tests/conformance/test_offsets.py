"""Offsets name one position in two units; a token that names none is refused, never guessed at."""

from __future__ import annotations

import re

import pytest

from tests.conformance.api import BINARY, JSON, START, Api, halves, token

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
MODES = ["", "&live=long-poll", "&live=sse"]


def base32(ordinal: int, epoch: int = 0, in_block: int = 0) -> str:
    """Seed 004's form: epoch(32) ordinal(64) in_block(32), left-padded to 26 characters."""
    value = epoch << 96 | ordinal << 32 | in_block
    return "".join(CROCKFORD[value >> shift & 31] for shift in range(125, -1, -5))


def byte_form(byte: int) -> str:
    """Seed 003's form: the byte position in twenty digits."""
    return f"{byte:020d}"


def test_an_offset_counts_messages_and_bytes(api: Api) -> None:
    path = api.stream(content_type=BINARY)
    assert api.tail(path) == START
    position = 0
    for ordinal, size in enumerate((1, 10, 1000, 7), start=1):
        position += size
        assert api.append(path, b"x" * size, BINARY).next_offset == token(ordinal, position)
    assert api.get(path).next_offset == api.tail(path) == token(4, position)


def test_a_json_offset_counts_every_message_of_a_batch(api: Api) -> None:
    path = api.stream(content_type=JSON)
    assert halves(api.append(path, b"[1,2,3]", JSON).next_offset)[0] == 3
    assert halves(api.append(path, b'{"a":[1,2]}', JSON).next_offset)[0] == 4
    assert re.fullmatch(r"[0-9]{16}_[0-9]{16}", api.tail(path))


def test_a_read_can_start_at_every_offset_ever_returned(api: Api) -> None:
    messages = [b"one", b"", b"three", b"4"]
    path = api.stream()
    offsets = [START]
    offsets += [api.append(path, message).next_offset for message in messages if message]
    rests = [b"onethree4", b"three4", b"4", b""]
    assert [api.get(f"{path}?offset={offset}").body for offset in offsets] == rests


@pytest.mark.parametrize("mode", MODES)
def test_an_offset_beyond_the_tail_is_refused(memory_api: Api, mode: str) -> None:
    # Reference defect 10: beyond the tail a long-poll answers 200 and nothing, in a hot loop.
    path = memory_api.stream(b"one", b"two")
    for offset in (token(3, 7), token(2, 8), token(3, 6), token(9, 9), "9" * 16 + "_" + "9" * 16):
        assert memory_api.get(f"{path}?offset={offset}{mode}").status == 400
    for offset in (base32(3), base32(2**64 - 1), byte_form(7), "9" * 20):
        assert memory_api.get(f"{path}?offset={offset}{mode}").status == 400


@pytest.mark.parametrize("mode", MODES)
def test_halves_that_do_not_meet_on_a_boundary_are_refused(memory_api: Api, mode: str) -> None:
    path = memory_api.stream(b"one", b"two", b"three")
    for offset in (token(1, 2), token(1, 5), token(1, 6), token(2, 3), token(0, 3), token(1, 0)):
        assert memory_api.get(f"{path}?offset={offset}{mode}").status == 400
    assert memory_api.get(f"{path}?offset={byte_form(4)}{mode}").status == 400


def test_halves_that_do_not_meet_are_refused_in_json_too(memory_api: Api) -> None:
    path = memory_api.stream(b'["one","two","three"]', content_type=JSON)
    first = memory_api.get(f"{path}?max_bytes=1").next_offset
    second = memory_api.get(f"{path}?offset={first}&max_bytes=1").next_offset
    (one, byte_one), (two, byte_two) = halves(first), halves(second)
    assert (one, two) == (1, 2)
    for offset in (token(one, byte_two), token(two, byte_one), token(one, byte_one + 2)):
        assert memory_api.get(f"{path}?offset={offset}").status == 400
    assert memory_api.get(f"{path}?offset={byte_form(byte_one + 1)}").status == 400


@pytest.mark.parametrize("content_type", [BINARY, JSON])
@pytest.mark.parametrize("messages", [(b"11", b"222", b"3333"), (b"1", b"2", b"3")])
def test_one_byte_behind_a_boundary_is_that_boundary(
    api: Api, content_type: str, messages: tuple[bytes, ...]
) -> None:
    # The official Yjs server asks so after it has compacted a document.
    path = api.stream(*messages, content_type=content_type)
    offset = START
    for _ in range(len(messages) + 1):
        ordinal, byte = halves(offset)
        exact = api.get(f"{path}?offset={offset}")
        behind = api.get(f"{path}?offset={token(ordinal, byte + 1)}")
        assert (behind.status, behind.body) == (200, exact.body)
        assert behind.next_offset == exact.next_offset
        assert behind.headers["etag"] == exact.headers["etag"]
        assert api.get(f"{path}?offset={token(ordinal, byte + 2)}").status == 400
        offset = api.get(f"{path}?offset={offset}&max_bytes=1").next_offset


def test_a_live_read_one_byte_behind_the_tail_waits_there(api: Api) -> None:
    path = api.stream(b"one", b"two")
    ordinal, byte = halves(api.tail(path))
    behind = token(ordinal, byte + 1)
    waiting = api.wait(f"{path}?offset={behind}&live=long-poll")
    events = api.events(f"{path}?offset={behind}&live=sse")
    assert events.until_up_to_date()[-1].json()["streamNextOffset"] == token(ordinal, byte)
    assert api.append(path, b"three").status == 204
    polled = waiting.reply()
    assert (polled.status, polled.body) == (200, b"three")
    assert events.until_up_to_date()[0].data == "three"


def test_what_is_kept_for_good_begins_on_a_real_boundary(memory_api: Api) -> None:
    source = memory_api.bucketed(b"one", b"two")
    _, forked = memory_api.fork(source, offset=token(1, 4))
    assert forked.status == 400
    assert memory_api.publish(source, token(1, 4)).status == 400


@pytest.mark.parametrize("content_type", [BINARY, JSON])
def test_the_spellings_of_other_servers_are_understood(memory_api: Api, content_type: str) -> None:
    path = memory_api.stream(b"11", b"222", b"3", content_type=content_type)
    for start in (START, "-1"):
        assert memory_api.get(f"{path}?offset={start}").body == memory_api.get(path).body
    offset = START
    for ordinal in range(4):
        expected = memory_api.get(f"{path}?offset={offset}")
        byte = halves(offset)[1]
        for alias in (base32(ordinal), base32(ordinal).lower(), byte_form(byte)):
            read = memory_api.get(f"{path}?offset={alias}")
            assert (read.status, read.body) == (200, expected.body)
            assert read.next_offset == expected.next_offset
        offset = memory_api.get(f"{path}?offset={offset}&max_bytes=1").next_offset


def test_aliases_work_for_live_reads_and_forks(memory_api: Api) -> None:
    path = memory_api.stream(b"one", b"two")
    for alias in (base32(1), byte_form(3)):
        assert memory_api.get(f"{path}?offset={alias}&live=long-poll").body == b"two"
        data, _ = memory_api.events(f"{path}?offset={alias}&live=sse").until_up_to_date()
        assert data.data == "two"
        fork, created = memory_api.fork(path, offset=alias)
        assert (created.status, memory_api.get(fork).body) == (201, b"one")


@pytest.mark.parametrize(
    "offset",
    [
        "",
        "0",
        "1",
        "-2",
        "--1",
        "+1",
        "%20-1",
        "-1%20",
        "NOW",
        "now%0A",
        "null",
        "0000000000000000",
        "0000000000000000_",
        "000000000000000_000000000000000",
        "00000000000000000_00000000000000000",
        "0000000000000000-0000000000000000",
        "0000000000000000_0000000000000000%0A",
        "0000000000000000_0000000000000000%00",
        "0000000000000000_000000000000000a",
        "%EF%BC%90000000000000000_0000000000000000",
        "0000000000000000000",
        "000000000000000000000",
        "U0000000000000000000000000",
        "80000000000000000000000000",
        "ZZZZZZZZZZZZZZZZZZZZZZZZZZ",
        "0000000000000000000000000",
        "x" * 500,
    ],
)
def test_malformed_offsets_are_refused(memory_api: Api, offset: str) -> None:
    path = memory_api.stream(b"one")
    for mode in MODES:
        assert memory_api.get(f"{path}?offset={offset}{mode}").status == 400


def test_an_offset_given_twice_is_refused(memory_api: Api) -> None:
    path = memory_api.stream(b"one")
    assert memory_api.get(f"{path}?offset=-1&offset=-1").status == 400


def test_live_reads_need_an_offset(memory_api: Api) -> None:
    path = memory_api.stream(b"one")
    for live in ("long-poll", "true", "sse"):
        assert memory_api.get(f"{path}?live={live}").status == 400


def test_an_encoded_offset_is_decoded_once(memory_api: Api) -> None:
    path = memory_api.stream(b"one", b"two")
    assert memory_api.get(f"{path}?offset=0000000000000001%5F0000000000000003").body == b"two"
    assert memory_api.get(f"{path}?offset=%2D1").body == b"onetwo"
    assert memory_api.get(f"{path}?offset=%252D1").status == 400
