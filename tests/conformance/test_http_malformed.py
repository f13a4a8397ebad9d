"""Requests that two parsers could read differently are refused, and the connection ends there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.api import Api
from tests.conformance.raw import RawConnection

Connect = Callable[[], RawConnection]
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"

MALFORMED_HEADS = {
    "garbage": b"\x00\x01\x02\x03 garbage\r\n\r\n",
    "text": b"hello there, server\r\n\r\n",
    "a TLS greeting": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,
    "the HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no version": b"GET /healthz\r\nHost: localhost\r\n\r\n",
    "a version that is none": b"GET /healthz HTTP/1.x\r\nHost: localhost\r\n\r\n",
    "another protocol": b"GET /healthz HTTQ/1.1\r\nHost: localhost\r\n\r\n",
    "no path": b"GET  HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "space in the path": b"GET /heal thz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "space before the colon": GET + b"X-A : 1\r\n\r\n",
    "no colon": GET + b"X-A\r\n\r\n",
    "no name": GET + b": 1\r\n\r\n",
    "folded header": GET + b"X-A: 1\r\n 2\r\n\r\n",
    "folded first header": b"GET /healthz HTTP/1.1\r\n Host: localhost\r\n\r\n",
    "bare LF after the request line": b"GET /healthz HTTP/1.1\nHost: localhost\r\n\r\n",
    "bare LF after a header": b"GET /healthz HTTP/1.1\r\nHost: localhost\n\r\n",
    "bare LF everywhere": b"GET /healthz HTTP/1.1\nHost: localhost\n\n",
    "bare CR in a header": GET + b"X-A: 1\r2\r\n\r\n",
    "NUL in a header": GET + b"X-A: 1\x002\r\n\r\n",
    "a name with a space": GET + b"X A: 1\r\n\r\n",
    "a name with a letter that is none": GET + b"X\xe9: 1\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "two hosts": GET + b"Host: y\r\n\r\n",
}

POST = b"POST /v1/stream/malformed HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

MALFORMED_BODIES = {
    "two lengths": POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "a list of lengths": POST + b"Content-Length: 3, 4\r\n\r\nabcd",
    "length and chunks": POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "signed length": POST + b"Content-Length: +3\r\n\r\nabc",
    "negative length": POST + b"Content-Length: -3\r\n\r\nabc",
    "hexadecimal length": POST + b"Content-Length: 0x3\r\n\r\nabc",
    "length with a space": POST + b"Content-Length: 3 3\r\n\r\nabc",
    "length that is no number": POST + b"Content-Length: three\r\n\r\nabc",
    "length that overflows": POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\nabc",
    "empty length": POST + b"Content-Length:\r\n\r\nabc",
    "coding that does not end in chunked": POST + b"Transfer-Encoding: chunked, gzip\r\n\r\nabc",
    "unknown coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "chunk size that is none": CHUNKED + b"zz\r\nabc\r\n0\r\n\r\n",
    "negative chunk size": CHUNKED + b"-3\r\nabc\r\n0\r\n\r\n",
    "prefixed chunk size": CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
    "empty chunk size": CHUNKED + b"\r\nabc\r\n0\r\n\r\n",
    "chunk size that overflows": CHUNKED + b"f" * 17 + b"\r\nabc\r\n0\r\n\r\n",
    "chunk longer than its size": CHUNKED + b"2\r\nabc\r\n0\r\n\r\n",
    "chunk with a bare LF": CHUNKED + b"3\nabc\r\n0\r\n\r\n",
    "chunk data with a bare LF": CHUNKED + b"3\r\nabc\n0\r\n\r\n",
    "extension with a bare LF": CHUNKED + b"3;a\nb\r\nabc\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("sent", MALFORMED_HEADS.values(), ids=MALFORMED_HEADS.keys())
def test_a_malformed_head_is_refused_and_ends_the_connection(connect: Connect, sent: bytes) -> None:
    connection = connect()
    connection.send(sent + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    reply = connection.answer()
    assert reply.status in (400, 505)
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert connection.is_ended_by_server()


@pytest.mark.parametrize("sent", MALFORMED_BODIES.values(), ids=MALFORMED_BODIES.keys())
def test_a_malformed_body_is_refused_and_nothing_behind_it_is_read(
    memory_api: Api, connect: Connect, sent: bytes
) -> None:
    path = memory_api.stream(b"one")
    smuggled = f"DELETE {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    connection = connect()
    connection.send(sent.replace(b"/v1/stream/malformed", path.encode()) + smuggled)
    assert connection.answer().status in (400, 501)
    assert connection.is_ended_by_server()
    assert memory_api.get(path).body == b"one"


@pytest.mark.parametrize("sent", [MALFORMED_HEADS["garbage"], MALFORMED_BODIES["two lengths"]])
def test_what_came_before_the_garbage_is_answered_first(connect: Connect, sent: bytes) -> None:
    connection = connect()
    connection.send(GET + b"\r\n" + sent)
    assert [connection.answer().status for _ in range(2)] == [200, 400]
    assert connection.is_ended_by_server()


def test_a_connection_that_says_nothing_harms_nobody(memory_api: Api, connect: Connect) -> None:
    for _ in range(20):
        connect()
    half = connect()
    half.send(b"POST /v1/stream/x HTTP/1.1\r\nContent-Le")
    half.close()
    assert memory_api.get("/healthz").status == 200


def test_a_client_that_leaves_inside_a_body_appends_nothing(
    memory_api: Api, connect: Connect
) -> None:
    path = memory_api.stream(b"one")
    for body in (
        b"Content-Length: 10\r\n\r\nhalf",
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ):
        connection = connect()
        connection.send(POST.replace(b"/v1/stream/malformed", path.encode()) + body)
        connection.finish_sending()
        connection.close()
    memory_api.settle()
    assert memory_api.get(path).body == b"one"
