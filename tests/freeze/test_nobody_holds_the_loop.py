"""The worst request of each kind, while a watchdog looks at the event loop.

`held_ms` of a stall is what the server did to itself: the loop's own work, or a thread that did not
let go of the interpreter. What the machine did to it (other programs on the same processors) does
not count. A kind that is over the limit is tried again: only what comes again is the server's.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.freeze.watched import WatchedServer, request, too_long, wait_quiet, watched_server
from tests.support.http import Reply

JSON, TEXT, BINARY = "application/json", "text/plain", "application/octet-stream"
MIB = 1 << 20
TRIES = 3
# Bounded steps are bounded whatever their number; FREEZE_SCALE=25 is for runs by hand.
STREAMS = 4000 * int(os.environ.get("FREEZE_SCALE", "1"))
MESSAGES = 1_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedServer]:
    flags = ("--resident-streams", "2000", "--log-level", "warning")
    with watched_server(tmp_path_factory.mktemp("freeze"), *flags) as server:
        yield server


def never_holds(server: WatchedServer, work: Callable[[int], None]) -> None:
    """Runs `work(number of the try)`; the loop turns all the while."""
    worst = []
    for number in range(TRIES):
        wait_quiet(server)
        server.stalls()
        work(number)
        wait_quiet(server)
        held = too_long(server.stalls())
        if not held:
            return
        worst.append(held[0])
    raise AssertionError(json.dumps(worst, indent=1))


def ask(server: WatchedServer, method: str, path: str, *args: Any, **fields: Any) -> Reply:
    """On a connection of its own: what came before may have taken longer than one may be idle."""
    with contextlib.closing(server.client()) as client:
        reply: Reply = getattr(client, method)(path, *args, **fields)
        return reply


def read_all(server: WatchedServer, path: str, seconds: float | None = None) -> int:
    """How many bytes come, as fast as they can be taken; `seconds`: until none came so long."""
    size = 0
    with socket.create_connection(("127.0.0.1", server.port), 120) as connection:
        connection.sendall(request("GET", path, connection="close"))
        connection.settimeout(seconds or 120)
        with contextlib.suppress(TimeoutError):
            while part := connection.recv(MIB):
                size += len(part)
    return size


def append_tiny(server: WatchedServer, path: str, messages: int) -> None:
    """As many one-digit messages, in the largest appends that are allowed."""
    largest = 256 * 1024
    with contextlib.closing(server.client()) as client:
        for first in range(0, messages, largest):
            body = b"[" + b",".join([b"1"] * min(largest, messages - first)) + b"]"
            assert client.post(path, body, content_type=JSON).status == 204


# Bodies


BODIES = {
    "many more messages than allowed": (b"[" + b"1," * (31 * MIB) + b"1]", 413),
    "as many messages as allowed": (b"[" + b"1," * (256 * 1024 - 1) + b"1]", 204),
    "one long string": (b'"' + b"x" * (62 * MIB) + b'"', 204),
    "one long string of escapes": (b'"' + b"\\u0041" * (5 * MIB) + b'"', 204),
    "one value of many parts": (b'{"a":[' + b"1," * (15 * MIB) + b"1]}", 204),
    "objects inside of objects": (b"[" + b'{"a":{"b":[{}]}},' * 200_000 + b"1]", 204),
    "brackets that do not end": (b"[" * (8 * MIB), 400),
    "white space": (b"[1" + b" " * (30 * MIB) + b"]", 400),
    "an error at the very end": (b'["' + b"x" * (30 * MIB) + b'",]', 400),
    "a lone half of a character": (b'["\\ud800' + b"x" * (30 * MIB) + b'"]', 204),
}


@pytest.mark.parametrize("kind", BODIES)
def test_a_large_json_body(server: WatchedServer, kind: str) -> None:
    body, status = BODIES[kind]

    def work(number: int) -> None:
        with contextlib.closing(server.client()) as client:
            path = f"/v1/stream/bodies/{kind.replace(' ', '-')}-{number}"
            client.put(path, content_type=JSON)
            assert client.post(path, body, content_type=JSON).status == status
            client.delete(path)

    never_holds(server, work)


def test_the_largest_body_of_bytes(server: WatchedServer) -> None:
    def work(number: int) -> None:
        with contextlib.closing(server.client()) as client:
            path = f"/v1/stream/bodies/bytes-{number}"
            assert client.put(path, bytes(60 * MIB), content_type=BINARY).status == 201
            client.delete(path)

    never_holds(server, work)


def test_batches_of_frames(server: WatchedServer) -> None:
    def frame(payload: bytes) -> bytes:
        return struct.pack(">I", len(payload)) + payload

    def work(number: int) -> None:
        with contextlib.closing(server.client()) as client:
            client.put("/frames")
            url = f"/frames/s{number}"
            client.put(url, content_type=JSON)
            smallest = client.post(f"{url}/append-batch", bytes(31 * MIB), content_type=JSON)
            assert smallest.status == 413
            arrays = b"".join([frame(b"[" + b"1," * 499 + b"1]")] * 512)
            assert client.post(f"{url}/append-batch", arrays, content_type=JSON).status == 200
            long = b"".join([frame(b'"' + b"x" * 60_000 + b'"')] * 500)
            assert client.post(f"{url}/append-batch", long, content_type=JSON).status == 200
            client.delete(url)

    never_holds(server, work)


# A stream of very many tiny messages


def test_a_stream_of_tiny_messages_is_written_read_flushed_and_trimmed(
    server: WatchedServer,
) -> None:
    def work(number: int) -> None:
        path = f"/tiny/s{number}"
        with contextlib.closing(server.client()) as client:
            client.put("/tiny")
            client.put(path, content_type=JSON)
            append_tiny(server, path, MESSAGES)
            assert read_all(server, path) > 2 * MESSAGES
            deep = f"{MESSAGES // 2 + 1:016d}_{MESSAGES + 2:016d}"
            assert client.get(f"{path}?offset={deep}&max_bytes=10").status == 200
            assert read_all(server, f"{path}/bootstrap") > 50 * MESSAGES
            assert read_all(server, f"{path}?offset=-1&live=sse", 1.0) > 2 * MESSAGES
            assert read_all(server, f"{path}?offset=-1&live=long-poll", 1.0) > MESSAGES
            assert client.post(f"/__ursula/flush-cold{path}").status == 200
            place = f"{MESSAGES - 7:016d}_{2 * MESSAGES - 14:016d}"
            published = client.put(f"{path}/snapshot/{place}", bytes(30 * MIB), content_type=TEXT)
            assert published.status == 204
            client.delete(path)

    never_holds(server, work)


# Very many streams


def test_very_many_streams_are_born_listed_grow_and_end(server: WatchedServer) -> None:
    def work(number: int) -> None:
        names = [f"/many{number}/s{index:06d}" for index in range(STREAMS)]
        ask(server, "put", f"/many{number}")
        created = server.many(request("PUT", name, content_type=TEXT) for name in names)
        assert set(created) == {201}
        assert ask(server, "get", f"/many{number}/streams?prefix=zzz").json()["streams"] == []
        assert ask(server, "get", f"/many{number}/streams").status == 200
        assert ask(server, "get", f"/v1/streams?offset={STREAMS - 10}&limit=1000").status == 200
        assert ask(server, "get", "/metrics").status == 200
        grown = server.many(request("POST", name, b"x", content_type=TEXT) for name in names)
        assert set(grown) == {204}
        assert set(server.many(request("DELETE", name) for name in names)) == {204}
        assert ask(server, "delete", f"/many{number}").status == 204

    never_holds(server, work)


def test_subscriptions_to_very_many_streams(server: WatchedServer) -> None:
    def work(number: int) -> None:
        names = [f"/followed{number}/s{index:06d}" for index in range(STREAMS)]
        control = f"/v1/stream/__ds/subscriptions/many{number}"
        wanted = {"type": "pull-wake", "pattern": f"followed{number}/**", "wake_stream": "wakes"}
        ask(server, "put", "/v1/stream/wakes", content_type=JSON)
        ask(server, "put", f"/followed{number}")
        created = server.many(request("PUT", name, content_type=TEXT) for name in names)
        assert set(created) == {201}
        body = json.dumps(wanted).encode()
        assert ask(server, "put", control, body, content_type=JSON).status == 201
        assert ask(server, "get", control).json()["has_more"]
        grown = server.many(request("POST", name, b"x", content_type=TEXT) for name in names)
        assert set(grown) == {204}
        assert ask(server, "get", control).json()["pending_count"] == STREAMS
        claimed = ask(server, "post", f"{control}/claim", b'{"worker":"w"}', content_type=JSON)
        assert claimed.status == 200, claimed.body
        assert ask(server, "delete", control).status == 204
        assert set(server.many(request("DELETE", name) for name in names)) == {204}

    never_holds(server, work)


def test_very_many_streams_expire_at_once(server: WatchedServer) -> None:
    def work(number: int) -> None:
        names = [f"/v1/stream/mortal{number}/s{index}" for index in range(STREAMS)]
        began = time.monotonic()
        others = [name.replace("mortal", "lasting") for name in names[::10]]
        server.many(request("PUT", name, content_type=TEXT) for name in others)
        # By then all of them are there, however slow the machine is.
        seconds = 3 + 20 * (time.monotonic() - began)
        end = datetime.now(UTC) + timedelta(seconds=seconds)
        made = server.many(
            request("PUT", name, content_type=TEXT, stream_expires_at=end.isoformat()[:19] + "Z")
            for name in names
        )
        assert set(made) == {201}
        deadline = time.monotonic() + 90 + STREAMS // 500
        while ask(server, "get", f"/mortal{number}").json().get("streams"):
            assert time.monotonic() < deadline
            time.sleep(0.2)

    never_holds(server, work)


def test_very_many_forks_of_one_stream(server: WatchedServer) -> None:
    def work(number: int) -> None:
        root = f"/v1/stream/forks{number}"
        names = [f"{root}/f{index}" for index in range(STREAMS)]
        ask(server, "put", f"{root}/source", b"x" * 1000, content_type=TEXT)
        forked = server.many(
            request("PUT", name, content_type=TEXT, stream_forked_from=f"{root}/source")
            for name in names
        )
        assert set(forked) == {201}
        assert ask(server, "get", f"/forks{number}/streams").status == 200
        assert ask(server, "delete", f"{root}/source").status == 204
        assert set(server.many(request("DELETE", name) for name in names)) == {204}

    never_holds(server, work)


def test_very_many_producers_of_one_stream(server: WatchedServer) -> None:
    def work(number: int) -> None:
        path = f"/v1/stream/producers/s{number}"
        with contextlib.closing(server.client()) as client:
            client.put(path, content_type=TEXT)
            told = server.many(
                request(
                    *("POST", path, b"x"),
                    content_type=TEXT,
                    producer_id=f"producer-{index}",
                    producer_epoch="0",
                    producer_seq="0",
                )
                for index in range(STREAMS)
            )
            assert set(told) == {200}
            client.delete(path)

    never_holds(server, work)


# A start and a stop


def test_a_restart_with_all_that_in_the_log_and_a_stop_are_quick(tmp_path: Path) -> None:
    with watched_server(tmp_path) as server:
        with contextlib.closing(server.client()) as client:
            client.put("/v1/stream/tiny", content_type=JSON)
        append_tiny(server, "/v1/stream/tiny", 3 * MESSAGES)
        server.kill()
    began = time.monotonic()
    with watched_server(tmp_path) as server:
        with contextlib.closing(server.client()) as client:
            head = client.head("/v1/stream/tiny")
            assert head.headers["stream-next-offset"].startswith(f"{3 * MESSAGES:016d}_")
        wait_quiet(server)
        held = too_long(server.stalls())
        assert not held
        assert server.stop(60) == 0
    assert time.monotonic() - began < 60


# The watchdog itself


def test_the_watchdog_notices_who_holds_the_loop() -> None:
    with watched_server(None) as server:
        wait_quiet(server)
        server.stalls()
        server.hold_loop()
        wait_quiet(server)
        held = too_long(server.stalls())
        assert held


# Rules


SEARCH = {
    "primaryTimestampField": "at",
    "fields": {
        "at": {"kind": "date", "bindings": [{"version": 1, "jsonPointer": "/at"}], "column": True},
        "n": {
            "kind": "integer",
            "bindings": [{"version": 1, "jsonPointer": "/n"}],
            "exact": True,
            "column": True,
        },
    },
}
FIELDS = {f"f{number}": {"type": ["string", "integer", "null"]} for number in range(10)}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, **FIELDS}}


def install(server: WatchedServer, path: str, **update: Any) -> None:
    assert ask(server, "put", path, content_type=JSON).status == 201
    reply = ask(server, "post", f"{path}/_schema", json.dumps(update), content_type=JSON)
    assert reply.status == 200, reply.body


def test_the_largest_batches_under_a_schema(server: WatchedServer) -> None:
    entry = b'{"n":1,"f1":"x","f2":2,"f3":null},'
    bodies = [
        (b"[" + entry * 200_000 + b'{"n":2}]', 204),
        (b"[" + entry * 200_000 + b'{"n":"x"}]', 400),
        (b'{"f1":"' + b"x" * (30 * MIB) + b'"}', 413),
        (b'{"n":1,"other":[' + b"1," * (500 * 1024) + b"1]}", 204),
    ]

    def work(number: int) -> None:
        path = f"/v1/stream/rules/batch-{number}"
        install(server, path, schema=SCHEMA)
        for body, status in bodies:
            assert ask(server, "post", path, body, content_type=JSON).status == status
        ask(server, "delete", path)

    never_holds(server, work)


def test_schemas_as_large_as_they_may_be(server: WatchedServer) -> None:
    integers = {f"p{number}": {"type": "integer"} for number in range(4800)}
    patterns = {
        f"p{number}": {"type": "string", "pattern": f"^[a-z]{{1,20}}(foo{number}|bar)*$"}
        for number in range(99)
    }

    def work(number: int) -> None:
        for properties in (integers, patterns):
            path = f"/v1/stream/rules/large-{number}-{len(properties)}"
            install(server, path, schema={"type": "object", "properties": properties})
            entry = json.dumps(dict.fromkeys(integers, 1))
            ask(server, "post", path, entry, content_type=JSON)
            ask(server, "delete", path)

    never_holds(server, work)


def test_filters_that_look_at_everything(server: WatchedServer) -> None:
    path = "/v1/stream/rules/filtered"
    install(server, path, schema=SCHEMA, search=SEARCH)
    entries = json.dumps([{"n": n, "f1": "x" * 50} for n in range(20_000)])
    for _ in range(10):
        assert ask(server, "post", path, entries, content_type=JSON).status == 204

    def work(number: int) -> None:
        offset = "-1"
        while True:
            query = f"offset={offset}&filter=NOT%20n:>={number}"
            reply = ask(server, "get", f"{path}?{query}")
            assert reply.status == 200
            offset = reply.next_offset
            if reply.headers.get("stream-up-to-date"):
                return

    never_holds(server, work)
    ask(server, "delete", path)
