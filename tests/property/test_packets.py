"""The bytes of a conversation decide its answers, not the packets they came in."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.raw import RawConnection
from tests.property.driver import Server, running

COMMON = settings(deadline=None, print_blob=True)
# Most of one length, so that the same head comes again and again; one looks like a request.
BODIES = [b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"a" * 34, b"\r\n\r\n" * 8 + b"bb"]
BODIES += [b"c" * 7, b"Content-Length: 5\r\n\r\n" * 60]
# Small pieces that matter to a parser.
SPLINTERS = [
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b":",
    b" ",
    b"\t",
    b"\x00",
    b"\xff",
    b"HTTP/1.1",
    b"0",
]
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(None) as server:
        yield server
        assert server.process.stop() == 0
        assert "Traceback" not in server.process.finish_output()


def head(method: str, path: str, *headers: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


def append(path: str, body: bytes, chunked: bool) -> bytes:
    if not chunked:
        length = f"Content-Length: {len(body)}"
        return head("POST", path, "Content-Type: text/plain", length) + body
    lead = head("POST", path, "Content-Type: text/plain", "Transfer-Encoding: chunked")
    return lead + b"5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (body[:5], len(body) - 5, body[5:])


@settings(COMMON, max_examples=60)
@given(
    choices=st.lists(st.tuples(st.sampled_from(BODIES), st.booleans()), min_size=1, max_size=8),
    cuts=st.lists(st.integers(0, 2000), max_size=12),
)
def test_a_conversation_may_be_cut_anywhere(
    server: Server, choices: list[tuple[bytes, bool]], cuts: list[int]
) -> None:
    path = f"/v1/stream/{uuid.uuid4().hex}"
    create = head("PUT", path, "Content-Type: text/plain", "Content-Length: 0")
    appends = [append(path, body, chunked) for body, chunked in choices]
    conversation = b"".join([create, *appends, head("GET", path)])
    edges = sorted({0, len(conversation), *(cut % len(conversation) for cut in cuts)})
    with contextlib.closing(RawConnection(server.process.port)) as connection:
        for start, end in pairwise(edges):
            connection.send(conversation[start:end])
            server.client.get("/healthz")  # meanwhile the server reads what has been sent
        assert [connection.answer().status for _ in range(1 + len(appends))] == [
            201,
            *[204] * len(appends),
        ]
        assert connection.answer().body == b"".join(body for body, _ in choices)


@settings(COMMON, max_examples=300)
@given(
    chunked=st.booleans(),
    damage=st.lists(
        st.tuples(
            st.integers(0, 2000),
            st.integers(0, 3),
            st.sampled_from(SPLINTERS) | st.binary(min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_no_damage_to_a_request_makes_the_server_stumble(
    server: Server, chunked: bool, damage: list[tuple[int, int, bytes]]
) -> None:
    path = f"/v1/stream/{uuid.uuid4().hex}"
    create = head("PUT", path, "Content-Type: text/plain", "Content-Length: 0")
    sent = bytearray(create + append(path, BODIES[1], chunked) + head("GET", path))
    for place, removed, inserted in damage:
        start = place % len(sent)
        sent[start : start + removed] = inserted
    with contextlib.closing(RawConnection(server.process.port)) as connection:
        connection.send(bytes(sent))
        connection.finish_sending()
        answered = connection.file.read()
    statuses = [int(status) for status in STATUS.findall(answered)]
    assert 500 not in statuses
    assert server.client.get("/healthz").status == 200
