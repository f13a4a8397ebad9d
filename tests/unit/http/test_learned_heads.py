"""What a connection has learned makes it quicker and changes nothing it understands."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.api.web_pages import WebPages
from millstream.clock import ManualClock
from millstream.http.connection import Connection
from millstream.http.message import Request
from millstream.http.server import HttpLimits, Listener, Server
from millstream.limits import CHARGED_BODY_BYTES

LIMITS = HttpLimits(
    header_bytes=8192,
    body_bytes=1 << 20,
    large_body_bytes=1 << 20,
    body_bytes_in_flight=1 << 24,
    connections=10,
    idle_seconds=60,
    request_seconds=60,
    body_seconds=60,
    body_rate_bytes=1,
    stall_seconds=60,
    write_buffer_bytes=1 << 16,
)


class FakeTransport:
    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def get_extra_info(self, name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int) -> None:
        pass


class Heard:
    """One connection, and what its server understood of it."""

    def __init__(self, limits: HttpLimits = LIMITS) -> None:
        self.understood: list[object] = []
        pages = WebPages(ManualClock(), hosts=None, origins=None)
        self.listener = Listener(self._answer, pages)
        self.connection = Connection(Server(limits, b""), self.listener)
        self.transport = FakeTransport()
        self.connection.connection_made(cast(asyncio.Transport, self.transport))

    def _answer(self, request: Request) -> None:
        others = {
            name: value for name, value in request.headers.items() if name != b"content-length"
        }
        self.understood.append((request.method, request.path, request.query, others, request.body))
        request.respond(204)

    def hear(self, *packets: bytes) -> None:
        for packet in packets:
            self.connection.data_received(packet)

    def hear_anew(self, packet: bytes) -> tuple[list[object], bytes]:
        """What is understood of this packet alone, and the first line of a refusal."""
        self.understood.clear()
        self.transport.written = b""
        self.hear(packet)
        status = self.transport.written.partition(b"\r\n")[0]
        return list(self.understood), b"" if self.understood else status


def append(size: int, length: bytes | None = None, name: bytes = b"Content-Length: ") -> bytes:
    spelled = b"%d" % size if length is None else length
    head = b"POST /a?b HTTP/1.1\r\nHost: x\r\n%b%b\r\nContent-Type: text/plain" % (name, spelled)
    return head + b"\r\n\r\n" + b"a" * size


def taught(limits: HttpLimits = LIMITS) -> Heard:
    listener = Heard(limits)
    listener.hear(append(1), append(20), append(300))
    assert len(listener.understood) == 3
    return listener


def parses(listener: Heard, packet: bytes) -> int:
    """How many requests of it the parser had to read."""
    before = listener.connection.reader.completed
    listener.hear(packet)
    return listener.connection.reader.completed - before


def test_bodies_of_any_length_need_no_parser_once_a_connection_has_sent_two() -> None:
    async def run() -> None:
        listener = Heard()
        assert [parses(listener, append(size)) for size in (7, 1000, 0, 54321)] == [1, 1, 0, 0]
        bodies = [cast("tuple[bytes, ...]", heard)[-1] for heard in listener.understood]
        assert bodies == [b"a" * size for size in (7, 1000, 0, 54321)]
        other = Heard()
        other.connection.known_heads = listener.listener.known_heads
        assert [parses(other, append(size)) for size in (1, 2, 3)] == [1, 1, 0]
        assert other.connection.shape is listener.connection.shape

    asyncio.run(run())


ODD = {
    "a number that is not the body's": append(20, b"21"),
    "a smaller number": append(20, b"1"),
    "a leading zero": append(20, b"020"),
    "a sign": append(20, b"+20"),
    "a space behind": append(20, b"20 "),
    "two spaces before": append(20, b" 20"),
    "no space before": append(20, name=b"Content-Length:"),
    "a tab before": append(20, name=b"Content-Length:\t"),
    "another case": append(20, name=b"content-LENGTH: "),
    "a space in the name": append(20, name=b"Content-Length : "),
    "twice, the same": append(20, b"20\r\nContent-Length: 20"),
    "twice, not the same": append(20, b"20\r\nContent-Length: 21"),
    "a list": append(20, b"20, 20"),
    "folded": append(20, b"\r\n 20"),
    "folded behind": append(20, b"20\r\n 1"),
    "no number": append(20, b""),
    "chunked besides": append(20, b"20\r\nTransfer-Encoding: chunked"),
    "a larger body than one that is not counted": append(CHARGED_BODY_BYTES + 1),
    "a larger body than allowed": append(LIMITS.body_bytes + 1),
    "two at once": append(20) + append(21),
    "half of the next one": append(20) + append(21)[:30],
    "only a part of the body": append(20)[:-3],
    "another line": append(20).replace(b"/a?b", b"/b"),
    "another version": append(20).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "wants to close": append(20, b"20\r\nConnection: close"),
    "wants to be asked": append(20, b"20\r\nExpect: 100-continue"),
}


@pytest.mark.parametrize("packet", ODD.values(), ids=ODD.keys())
def test_an_odd_head_means_what_it_means_to_a_new_connection(packet: bytes) -> None:
    async def run() -> None:
        assert taught().hear_anew(packet) == Heard().hear_anew(packet)

    asyncio.run(run())


PIECES = [b"\r\n", b" ", b"\t", b"0", b"7", b",", b":", b"Content-Length: 20", b"\x00", b"a"]


@settings(max_examples=300, deadline=None)
@given(
    size=st.sampled_from([0, 1, 20, 300, 1234]),
    damage=st.lists(
        st.tuples(st.integers(0, 110), st.integers(0, 3), st.sampled_from(PIECES)), max_size=3
    ),
)
@example(size=20, damage=[])
def test_whatever_comes_means_what_it_means_to_a_new_connection(
    size: int, damage: list[tuple[int, int, bytes]]
) -> None:
    packet = bytearray(append(size))
    for place, removed, inserted in damage:
        packet[place : place + removed] = inserted

    async def run() -> None:
        assert taught().hear_anew(bytes(packet)) == Heard().hear_anew(bytes(packet))

    asyncio.run(run())


def test_a_learned_head_gives_way_to_the_limits() -> None:
    async def run() -> None:
        small = replace(LIMITS, body_bytes=500)
        assert taught(small).hear_anew(append(501)) == Heard(small).hear_anew(append(501))
        assert taught(small).hear_anew(append(500))[0]
        # One more digit than the head that was learned has, and one too many.
        exact = len(b"HostxContent-Length300Content-Typetext/plain") + 3 * 4
        tight = replace(LIMITS, header_bytes=exact)
        assert taught(tight).hear_anew(append(999))[0]
        assert taught(tight).hear_anew(append(1000)) == Heard(tight).hear_anew(append(1000))

    asyncio.run(run())


def test_heads_that_differ_in_more_than_the_length_have_no_shape() -> None:
    async def run() -> None:
        listener = Heard()
        for number in range(4):
            listener.hear(append(number + 1, b"%d\r\nProducer-Seq: %d" % (number + 1, number)))
        assert listener.connection.shape is None

    asyncio.run(run())


def test_a_connection_that_goes_over_to_other_heads_learns_those() -> None:
    async def run() -> None:
        listener = taught()
        others = [append(size, name=b"X-Other: y\r\nContent-Length: ") for size in (1, 2, 3)]
        assert [parses(listener, packet) for packet in others] == [1, 1, 0]
        assert len(listener.listener.known_heads.shapes) == 2

    asyncio.run(run())


def test_heads_of_web_pages_are_read_by_the_parser_each_time() -> None:
    """What is answered to a page depends on its origin and on the method."""

    async def run() -> None:
        listener = Heard()
        page = b"Origin: http://localhost:1\r\nContent-Length: "
        packets = [append(size, name=page) for size in (1, 2, 3, 3, 3)]
        assert [parses(listener, packet) for packet in packets] == [1, 1, 1, 1, 1]

    asyncio.run(run())
