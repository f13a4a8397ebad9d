"""Answers are compressed for those who ask, and nobody is given the wrong bytes from a cache."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
import zlib
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.conformance.api import BINARY, JSON, TEXT, Api
from tests.conformance.conftest import speak_to
from tests.conformance.multipart import split_by_hand
from tests.support.http import Reply
from tests.support.server import running_server

KIB, MIB = 2**10, 2**20
SIZES = [0, 100, KIB, 17 * KIB, 700 * KIB]
GZIP = {"Accept-Encoding": "gzip"}
ZSTD = {"Accept-Encoding": "gzip, deflate, br, zstd"}


def words(size: int) -> bytes:
    """Text of this size in which no place looks like another."""
    return b"".join(b"%07d " % number for number in range(size // 8 + 1))[:size]


def decoded(reply: Reply) -> bytes:
    encoding = reply.headers.get("content-encoding")
    if encoding == "gzip":
        return zlib.decompress(reply.body, zlib.MAX_WBITS | 16)
    if encoding == "zstd":
        content: bytes = pa.CompressedInputStream(pa.BufferReader(reply.body), "zstd").read()
        return content
    assert encoding is None
    return reply.body


@pytest.fixture(scope="module")
def plain_api() -> Iterator[Api]:
    with running_server(None, "--compress", "off") as server:
        yield from speak_to(server)


@pytest.mark.parametrize("content_type", [TEXT, JSON])
@pytest.mark.parametrize("size", SIZES)
def test_every_form_of_a_read_has_the_same_content_and_its_own_tag(
    api: Api, content_type: str, size: int
) -> None:
    pieces = [words(size)[start : start + 64 * KIB] for start in range(0, size, 64 * KIB)]
    if content_type == JSON:
        pieces = [json.dumps(piece.decode()).encode() for piece in pieces]
    path = api.stream(*pieces, content_type=content_type)
    plain = api.get(path)
    assert plain.headers["vary"] == "accept-encoding"
    tags = {"": plain.headers["etag"]}
    for name, headers in (("gzip", GZIP), ("zstd", ZSTD)):
        reply, head = api.get(path, headers=headers), api.head(path, headers=headers)
        is_compressed = len(plain.body) >= KIB
        assert reply.headers.get("content-encoding") == (name if is_compressed else None)
        assert decoded(reply) == plain.body
        assert reply.next_offset == plain.next_offset
        assert len(reply.body) < len(plain.body) or not is_compressed
        for of_head in ("etag", "vary", "content-encoding", "stream-next-offset"):
            assert head.headers.get(of_head) == reply.headers.get(of_head)
        tags[name] = reply.headers["etag"]
        assert (tags[name] == tags[""]) != is_compressed
    for asked, headers in (("", {}), ("gzip", GZIP), ("zstd", ZSTD)):
        for tag in tags.values():
            for method in ("GET", "HEAD"):
                reply = api.call(method, path, headers={**headers, "If-None-Match": tag})
                assert reply.status == (304 if tag == tags[asked] else 200)
                assert reply.headers["etag"] == tags[asked]
                assert reply.headers["vary"] == "accept-encoding"
                if reply.status == 304:
                    assert reply.body == b""


def test_what_is_no_text_goes_as_it_is(memory_api: Api) -> None:
    for content_type in (BINARY, "image/png", "application/zip", "video/mp4"):
        path = memory_api.stream(words(10 * KIB), content_type=content_type)
        assert "content-encoding" not in memory_api.get(path, headers=GZIP).headers
    for content_type in ("text/html; charset=utf-8", "application/ld+json", "image/svg+xml"):
        path = memory_api.stream(words(10 * KIB), content_type=content_type)
        assert memory_api.get(path, headers=GZIP).headers["content-encoding"] == "gzip"


@pytest.mark.parametrize("size", [10, 10 * KIB, 600 * KIB])
def test_who_takes_nothing_else_gets_it_compressed(memory_api: Api, size: int) -> None:
    path = memory_api.stream(words(size), content_type=BINARY)
    reply = memory_api.get(path, headers={"Accept-Encoding": "identity;q=0, *"})
    assert reply.headers["content-encoding"] == "gzip"
    assert decoded(reply) == words(size)


def test_a_request_can_say_no(memory_api: Api) -> None:
    path = memory_api.stream(words(10 * KIB))
    reply = memory_api.get(f"{path}?compress=false", headers=GZIP)
    assert "content-encoding" not in reply.headers
    assert reply.headers["etag"] == memory_api.get(path).headers["etag"]
    assert memory_api.get(f"{path}?compress=perhaps").status == 400


def test_a_server_can_say_no(plain_api: Api) -> None:
    path = plain_api.stream(words(10 * KIB))
    reply = plain_api.get(path, headers=GZIP)
    assert reply.body == words(10 * KIB)
    assert "content-encoding" not in reply.headers
    assert reply.headers["vary"] == "Origin"


@pytest.mark.parametrize("size", [10 * KIB, 100 * KIB])
def test_a_long_poll_is_compressed_for_who_asks_twice(memory_api: Api, size: int) -> None:
    path = memory_api.stream(words(size))
    query = f"{path}?offset=-1&live=long-poll"
    assert memory_api.get(query, headers=GZIP).body == words(size)
    reply = memory_api.get(f"{query}&compress=true", headers=GZIP)
    assert reply.headers["content-encoding"] == "gzip"
    assert (decoded(reply), reply.headers["vary"]) == (words(size), "accept-encoding")
    assert memory_api.get(f"{query}&compress=true").body == words(size)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_compressed_events_arrive_at_once(api: Api, encoding: str) -> None:
    path = api.stream("first", content_type=TEXT)
    with socket.create_connection(("127.0.0.1", api.server.port), timeout=10) as client:
        client.sendall(
            f"GET {path}?offset=-1&live=sse&compress=true HTTP/1.1\r\nHost: localhost\r\n"
            f"Accept-Encoding: {encoding}\r\n\r\n".encode()
        )
        received = client.makefile("rb")
        head = b"".join(iter(received.readline, b"\r\n"))
        assert f"content-encoding: {encoding}".encode() in head
        body = b""

        def read_until(word: str) -> None:
            nonlocal body
            while word not in events_in(encoding, body):
                size = int(received.readline(), 16)
                assert size, "the events ended"
                body += received.read(size + 2)[:size]

        read_until("data:first")
        large = words(20 * KIB).decode()
        for message in ("second", large, "third"):
            assert api.append(path, message).status == 204
            read_until("data:" + message)
        api.close_stream(path)
        read_until('"streamClosed":true')
        while size := int(received.readline(), 16):
            body += received.read(size + 2)[:size]
        assert decoded(Reply(200, {"content-encoding": encoding}, body)).endswith(b"\n\n")


def events_in(encoding: str, body: bytes) -> str:
    """As much as a client has by now."""
    if encoding == "gzip":
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(body).decode()
    seen = b""
    stream = pa.CompressedInputStream(pa.BufferReader(body), "zstd")
    try:
        while True:
            more = stream.read(1)
            if not more:
                break
            seen += more
    except OSError:
        pass  # the frame has not ended yet
    return seen.decode()


@pytest.mark.parametrize("query", ["", "&compress=false"])
def test_events_are_not_compressed_for_who_only_says_what_browsers_say(
    memory_api: Api, query: str
) -> None:
    path = memory_api.stream(words(10 * KIB))
    with socket.create_connection(("127.0.0.1", memory_api.server.port), timeout=10) as client:
        ask = f"GET {path}?offset=-1&live=sse{query} HTTP/1.1\r\nHost: localhost\r\n"
        client.sendall(f"{ask}Accept-Encoding: {ZSTD['Accept-Encoding']}\r\n\r\n".encode())
        received = client.makefile("rb")
        head = b"".join(iter(received.readline, b"\r\n"))
        assert head.startswith(b"HTTP/1.1 200")
        assert b"content-encoding" not in head


def test_listings_and_metrics_are_compressed(memory_api: Api) -> None:
    bucket = memory_api.bucket()
    for number in range(30):
        memory_api.stream(path=f"{bucket}/stream-{number}")
    for path in (f"{bucket}/streams", "/metrics", "/v1/streams?limit=100"):
        plain = memory_api.get(path)
        for headers in (GZIP, ZSTD):
            reply = memory_api.get(path, headers=headers)
            assert "content-encoding" in reply.headers
            assert len(reply.body) < len(plain.body)
            if path != "/metrics":
                assert decoded(reply) == plain.body
            head = memory_api.head(path, headers=headers)
            if path == "/metrics":
                assert head.headers["content-encoding"] == reply.headers["content-encoding"]


@pytest.mark.parametrize("size", [100, 20 * KIB, 2 * MIB])
def test_snapshots_and_bootstraps_are_compressed(api: Api, size: int) -> None:
    path = api.bucketed(b"one", words(50 * KIB))
    first = api.get(f"{path}?max_bytes=1").next_offset
    assert api.publish(path, first, words(size), TEXT).status == 204
    for headers in (GZIP, ZSTD):
        snapshot = api.get(f"{path}/snapshot/{first}", headers=headers)
        assert decoded(snapshot) == words(size)
        assert ("content-encoding" in snapshot.headers) == (size >= KIB)
        bootstrap = api.get(f"{path}/bootstrap", headers=headers)
        assert bootstrap.headers["content-encoding"] in ("gzip", "zstd")
        whole = Reply(200, bootstrap.headers, decoded(bootstrap))
        assert [part.body for part in split_by_hand(whole)] == [words(size), words(50 * KIB)]


def test_an_old_client_gets_it_as_it_is(memory_api: Api) -> None:
    path = memory_api.stream(words(2 * MIB))
    with socket.create_connection(("127.0.0.1", memory_api.server.port), timeout=10) as client:
        client.sendall(f"GET {path} HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n".encode())
        answer = b"".join(iter(lambda: client.recv(MIB), b""))
    assert answer.partition(b"\r\n\r\n")[2] == words(2 * MIB)


def test_a_compressed_answer_that_is_cut_short_is_seen_to_be(memory_api: Api) -> None:
    path = memory_api.stream(*[words(MIB)] * 40)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(20)
        client.connect(("127.0.0.1", memory_api.server.port))
        ask = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n"
        client.sendall(ask.encode())
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        assert memory_api.delete(path).status == 204
        received = b""
        try:
            while more := client.recv(MIB):
                received += more
        except ConnectionError:
            pass
    assert not received.endswith(b"0\r\n\r\n")


def test_a_reader_that_leaves_in_the_middle_frees_its_compressor(memory_api: Api) -> None:
    path = memory_api.stream(*[words(MIB)] * 8)
    ask = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n".encode()
    for _ in range(100):  # more than may be compressed at once
        with socket.create_connection(("127.0.0.1", memory_api.server.port)) as client:
            client.sendall(ask)
            client.recv(10)
    deadline = time.monotonic() + 20
    while "content-encoding" not in memory_api.get(path, headers=GZIP).headers:
        assert time.monotonic() < deadline, "compressors are not given back"


def test_compressing_does_not_hold_up_others(memory_api: Api) -> None:
    path = memory_api.stream(*[words(MIB)] * 30)
    small = memory_api.stream(b"small")
    stop = threading.Event()

    def read_again_and_again() -> None:
        reader = Api(memory_api.server)
        while not stop.is_set():
            assert reader.get(path, headers=GZIP).status == 200
        reader.close()

    thread = threading.Thread(target=read_again_and_again)
    thread.start()
    try:
        took = []
        for _ in range(100):
            began = time.monotonic()
            assert memory_api.get(small).body == b"small"
            took.append(time.monotonic() - began)
    finally:
        stop.set()
        thread.join()
    assert sorted(took)[len(took) // 2] < 0.25


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("size", [10 * KIB, 3 * MIB])
def test_curl_understands_it(api: Api, size: int) -> None:
    path = api.stream(words(size))
    url = f"http://127.0.0.1:{api.server.port}{path}"
    read = subprocess.run(["curl", "-sS", "--compressed", url], capture_output=True, check=True)
    assert read.stdout == words(size)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_node_understands_it(api: Api) -> None:
    path = api.stream(words(3 * MIB))
    url = f"http://127.0.0.1:{api.server.port}{path}"
    script = (
        f"const r = await fetch('{url}');"
        "const body = Buffer.from(await r.arrayBuffer());"
        "process.stdout.write(r.headers.get('content-encoding') + '\\n');"
        "process.stdout.write(body);"
    )
    command = ["node", "--input-type=module", "-e", script]
    read = subprocess.run(command, capture_output=True, check=True)
    assert read.stdout == b"gzip\n" + words(3 * MIB)
