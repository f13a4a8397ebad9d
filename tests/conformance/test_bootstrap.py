"""Bootstrap: the snapshot and every message behind it in one answer, then tailing without a gap.

The letters are those of the checklist in the reference: K1 and K2.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.conformance.api import BINARY, JSON, START, TEXT, Api, token
from tests.conformance.multipart import (
    Part,
    bootstrap,
    boundary_of,
    parse_bootstrap,
    split_by_email,
    split_by_hand,
)
from tests.conformance.raw import RawConnection
from tests.conformance.test_http_slow_readers import memory_bytes, stalled_reader
from tests.support.http import Client
from tests.support.server import ServerProcess, running_server

MIB = 1024 * 1024
NASTY = [
    b"\r\n",
    b"\r\n--\r\n",
    b"--",
    b"\r\n--millstream-0123456789abcdef0123456789abcdef\r\nContent-Type: text/plain\r\n\r\nx",
    b"--millstream---\r\n",
    b"Content-Type: evil\r\n\r\n",
    b"\n",
    b"\r",
    b"\0",
    bytes(range(256)),
    b"ends with CRLF\r\n",
    b"\r\nbegins with CRLF",
]


# K1: the shape of the answer


def test_k1_without_a_snapshot_the_first_part_is_empty(api: Api) -> None:
    path = api.bucketed(b"one", b"two")
    found = bootstrap(api, path)
    assert found.snapshot == Part(BINARY, b"")
    assert found.updates == [Part(TEXT, b"one"), Part(TEXT, b"two")]
    assert (found.snapshot_offset, found.next_offset) == ("-1", token(2, 6))
    assert split_by_email(found.reply) == [found.snapshot, *found.updates]


def test_k1_an_empty_stream_is_one_empty_part(api: Api) -> None:
    found = bootstrap(api, api.bucketed())
    assert (found.snapshot, found.updates) == (Part(BINARY, b""), [])
    assert (found.snapshot_offset, found.next_offset) == ("-1", START)


def test_k1_the_whole_answer_byte_for_byte(api: Api) -> None:
    path = api.bucketed(b"one", b"two", b"three", content_type="text/plain; charset=utf-8")
    assert api.publish(path, token(1, 3), b"<state>", "application/x-state; v=1").status == 204
    reply = api.get(f"{path}/bootstrap")
    boundary = boundary_of(reply).encode()
    assert reply.body == (
        b"--%(b)b\r\nContent-Type: application/x-state; v=1\r\n\r\n<state>\r\n"
        b"--%(b)b\r\nContent-Type: text/plain; charset=utf-8\r\n\r\ntwo\r\n"
        b"--%(b)b\r\nContent-Type: text/plain; charset=utf-8\r\n\r\nthree\r\n"
        b"--%(b)b--\r\n" % {b"b": boundary}
    )
    assert reply.headers["stream-snapshot-offset"] == token(1, 3)
    assert reply.next_offset == token(3, 11)
    assert reply.headers["stream-up-to-date"] == "true"
    assert reply.headers["cache-control"] == "no-store"
    assert "stream-closed" not in reply.headers


def test_k1_json_messages_come_one_by_one_and_without_commas(api: Api) -> None:
    path = api.bucketed(b'[1, {"a": [1,2]}]', b'"x"', b"[[3]]", content_type=JSON)
    found = bootstrap(api, path)
    assert found.messages == [b"1", b'{"a": [1,2]}', b'"x"', b"[3]"]
    assert {part.content_type for part in found.updates} == {JSON}
    assert api.publish(path, token(2, 15), b"{}", JSON).status == 204
    found = bootstrap(api, path)
    assert (found.snapshot.body, found.messages) == (b"{}", [b'"x"', b"[3]"])
    assert [json.loads(message) for message in found.messages] == ["x", [3]]


def test_k1_bytes_that_look_like_boundaries_survive(api: Api) -> None:
    path = api.bucketed(*NASTY, content_type=BINARY)
    found = bootstrap(api, path)
    assert found.messages == NASTY
    assert split_by_email(found.reply) == [found.snapshot, *found.updates]
    assert api.publish(path, token(3, 10), NASTY[3], "a/b").status == 204
    found = bootstrap(api, path)
    assert (found.snapshot.body, found.messages) == (NASTY[3], NASTY[3:])
    assert split_by_email(found.reply) == [found.snapshot, *found.updates]


def test_k1_a_boundary_learnt_from_one_answer_does_not_break_the_next(api: Api) -> None:
    path = api.bucketed(b"one", content_type=BINARY)
    first = boundary_of(api.get(f"{path}/bootstrap")).encode()
    attack = b"\r\n--" + first + b"\r\nContent-Type: text/plain\r\n\r\nforged\r\n--" + first + b"--"
    assert api.append(path, attack, BINARY).status == 204
    assert bootstrap(api, path).messages == [b"one", attack]
    assert bootstrap(api, path).messages == [b"one", attack]


def test_k1_boundaries_are_those_of_reads_whatever_way_messages_came(api: Api) -> None:
    path = api.bucketed(content_type=BINARY)
    messages = [b"a", b"bb", b"ccc", b"d" * 70_000, b"e"]
    assert api.append(path, messages[0], BINARY).status == 204
    batch = b"".join(len(m).to_bytes(4, "big") + m for m in messages[1:3])
    assert api.post(f"{path}/append-batch", batch, content_type=BINARY).status == 200
    for message in messages[3:]:
        assert api.append(path, message, BINARY).status == 204
    assert bootstrap(api, path).messages == messages
    offset, read = START, list[bytes]()
    while offset != api.tail(path):
        page = api.get(f"{path}?offset={offset}&max_bytes=1")
        read.append(page.body)
        offset = page.next_offset
        assert api.publish(path, offset, b"at " + offset.encode()).status == 204
    assert read == messages


def test_k1_many_small_messages_keep_their_boundaries(api: Api) -> None:
    path = api.bucketed(content_type=BINARY)
    messages = [b"%d" % number for number in range(2000)]
    for start in range(0, 2000, 400):
        group = messages[start : start + 400]
        batch = b"".join(len(m).to_bytes(4, "big") + m for m in group)
        assert api.post(f"{path}/append-batch", batch, content_type=BINARY).status == 200
    assert bootstrap(api, path).messages == messages
    cut = len(b"".join(messages[:777]))
    assert api.publish(path, token(777, cut)).status == 204
    assert bootstrap(api, path).messages == messages[777:]


def test_k1_a_closed_stream_says_so(api: Api) -> None:
    path = api.bucketed(b"one")
    api.close_stream(path)
    found = bootstrap(api, path)
    assert found.reply.headers["stream-closed"] == "true"
    assert found.messages == [b"one"]


def test_k1_a_stream_with_only_a_snapshot(api: Api) -> None:
    path = api.bucketed(b"one")
    assert api.publish(path, token(1, 3), b"all", JSON).status == 204
    found = bootstrap(api, path)
    assert (found.snapshot, found.updates) == (Part(JSON, b"all"), [])
    assert (found.snapshot_offset, found.next_offset) == (token(1, 3), token(1, 3))


def test_k1_a_snapshot_of_the_start_is_delivered_too(api: Api) -> None:
    path = api.bucketed(b"one")
    assert api.publish(path, START, b"seed").status == 204
    found = bootstrap(api, path)
    assert (found.snapshot.body, found.snapshot_offset) == (b"seed", START)
    assert found.messages == [b"one"]


def test_k1_a_missing_stream_is_404(api: Api) -> None:
    assert api.get(f"{api.bucket()}/missing/bootstrap").status == 404


def test_k1_old_clients_get_the_same_bytes_until_the_end(memory_api: Api) -> None:
    path = memory_api.bucketed(b"one", b"two")
    with contextlib.closing(RawConnection(memory_api.port)) as connection:
        connection.send(f"GET {path}/bootstrap HTTP/1.0\r\n\r\n")
        assert parse_bootstrap(connection.answer()).messages == [b"one", b"two"]
        assert connection.is_ended_by_server()


def test_k1_a_connection_goes_on_after_a_bootstrap(memory_api: Api) -> None:
    path = memory_api.bucketed(b"one")
    with contextlib.closing(RawConnection(memory_api.port)) as connection:
        request = f"GET {path}/bootstrap HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.send(request * 2 + f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert parse_bootstrap(connection.answer()).messages == [b"one"]
        assert parse_bootstrap(connection.answer()).messages == [b"one"]
        assert connection.answer().body == b"one"


# K2: one-shot, then tail


@pytest.mark.parametrize("live", ["sse", "long-poll", "true", "false", "", "x"])
def test_k2_bootstrap_is_not_live(memory_api: Api, live: str) -> None:
    path = memory_api.bucketed(b"one")
    assert memory_api.get(f"{path}/bootstrap?live={live}").status == 400
    assert memory_api.get(f"{path}/bootstrap?live").status == 400


def test_k2_other_parameters_mean_nothing(memory_api: Api) -> None:
    path = memory_api.bucketed(b"one", b"two")
    reply = memory_api.get(f"{path}/bootstrap?offset=now&max_bytes=1&foo=bar")
    assert parse_bootstrap(reply).messages == [b"one", b"two"]


def test_k2_tailing_goes_on_exactly_where_bootstrap_ended(api: Api) -> None:
    path = api.bucketed(b"one", b"two")
    assert api.publish(path, token(1, 3)).status == 204
    found = bootstrap(api, path)
    events = api.events(f"{path}?offset={found.next_offset}&live=sse")
    assert [event.kind for event in events.until_up_to_date()] == ["control"]
    waiting = api.wait(f"{path}?offset={found.next_offset}&live=long-poll")
    assert api.append(path, b"three").status == 204
    assert events.until_up_to_date()[0].data == "three"
    assert waiting.reply().body == b"three"
    assert api.get(f"{path}?offset={found.next_offset}").body == b"three"


class Writers:
    """Three clients that number their messages, and one that publishes snapshots meanwhile."""

    def __init__(self, api: Api, path: str, compacts: bool) -> None:
        self.path, self.ending, self.wrong = path, threading.Event(), list[str]()
        self.threads = [
            threading.Thread(target=self.append, args=(Client(api.host, api.port), name))
            for name in range(3)
        ]
        if compacts:
            client = Client(api.host, api.port)
            self.threads.append(threading.Thread(target=self.compact, args=(client,)))

    def append(self, client: Client, name: int) -> None:
        for number in range(10**6):
            if self.ending.is_set():
                break
            reply = client.post(self.path, f'{{"w":{name},"n":{number}}}', content_type=JSON)
            if reply.status != 204:
                self.wrong.append(f"append: {reply}")
        client.close()

    def compact(self, client: Client) -> None:
        """Folds what it reads into the counts per writer, as an application would."""
        while not self.ending.is_set():
            found = parse_bootstrap(client.get(f"{self.path}/bootstrap"))
            state = fold(found.snapshot.body, found.messages)
            url = f"{self.path}/snapshot/{found.next_offset}"
            reply = client.put(url, json.dumps(state), content_type=JSON)
            if reply.status != 204:
                self.wrong.append(f"publish: {reply}")
        client.close()

    def __enter__(self) -> Writers:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        for thread in self.threads:
            thread.join()


def fold(state: bytes, messages: list[bytes]) -> dict[str, int]:
    """How many messages of each writer; every one must be the next of its writer."""
    counts: dict[str, int] = json.loads(state) if state else {}
    for message in messages:
        value = json.loads(message)
        writer = str(value["w"])
        assert value["n"] == counts.get(writer, 0), (value, counts)
        counts[writer] = value["n"] + 1
    return counts


@pytest.mark.parametrize("compacts", [False, True])
def test_k2_clients_that_join_while_writers_are_active_miss_nothing_and_see_nothing_twice(
    api: Api, compacts: bool
) -> None:
    path = api.bucketed(content_type=JSON)
    joined = list[tuple[dict[str, int], str]]()
    with Writers(api, path, compacts) as writers:
        for _ in range(6):
            found = bootstrap(api, path)
            state = fold(found.snapshot.body, found.messages)
            offset = found.next_offset
            events = api.events(f"{path}?offset={offset}&live=sse")
            for event in events:
                if event.kind == "data":
                    values = [json.dumps(value).encode() for value in json.loads(event.data)]
                    state = fold(json.dumps(state).encode(), values)
                elif event.kind == "control":
                    offset = event.json()["streamNextOffset"]
                    if sum(state.values()) > 150 * len(joined):
                        break
            events.close()
            joined.append((state, offset))
    assert writers.wrong == []
    final = bootstrap(api, path)
    expected = fold(final.snapshot.body, final.messages)
    for state, offset in joined:
        rest = api.get(f"{path}?offset={offset}")
        if rest.status == 410:
            assert compacts
            continue
        values = [json.dumps(value).encode() for value in rest.json()]
        assert fold(json.dumps(state).encode(), values) == expected


def test_k2_a_bootstrap_under_way_shows_one_moment_only(memory_api: Api) -> None:
    api = memory_api
    path = api.bucketed(*[b"x" * 500_000] * 20, content_type=BINARY)
    tail = api.tail(path)
    with contextlib.closing(stalled_reader(api.port, path, "/bootstrap")) as slow:
        api.settle()
        assert api.append(path, b"later", BINARY).status == 204
        assert api.publish(path, api.tail(path), b"newer").status == 204
        received = bytearray()
        while not received.endswith(b"0\r\n\r\n"):
            part = slow.recv(1 << 20)
            assert part
            received += part
    assert f"stream-next-offset: {tail}".encode() in received
    assert b"stream-snapshot-offset: -1" in received
    assert received.count(b"x" * 100) > 0
    assert b"later" not in received
    assert b"newer" not in received


# Memory


@pytest.fixture
def patient_server() -> Iterator[ServerProcess]:
    with running_server(None, "--subscriber-stall-timeout", "60") as server:
        yield server


def test_slow_clients_of_a_large_bootstrap_cost_little_memory(
    patient_server: ServerProcess,
) -> None:
    with contextlib.closing(Api(patient_server)) as api, contextlib.ExitStack() as stack:
        path = api.bucketed(*[b"x" * 60_000] * 200, content_type=BINARY)
        before = memory_bytes(patient_server)
        for _ in range(30):
            stack.enter_context(stalled_reader(api.port, path, "/bootstrap"))
        api.settle()
        assert len(bootstrap(api, path).messages) == 200
        assert memory_bytes(patient_server) - before < 60 * MIB


def test_slow_clients_of_many_tiny_messages_cost_little_memory(
    patient_server: ServerProcess,
) -> None:
    with contextlib.closing(Api(patient_server)) as api, contextlib.ExitStack() as stack:
        path = api.bucketed(content_type=JSON)
        body = b"[" + b"1," * 19_999 + b"1]"
        for _ in range(20):
            assert api.append(path, body, JSON).status == 204
        before = memory_bytes(patient_server)
        for _ in range(30):
            stack.enter_context(stalled_reader(api.port, path, "/bootstrap"))
        api.settle()
        assert memory_bytes(patient_server) - before < 40 * MIB


def test_a_large_array_is_delivered_in_bounded_pieces(patient_server: ServerProcess) -> None:
    """A body of 500 KB becomes 250 000 parts, more than 20 MB: never in memory at once."""
    with contextlib.closing(Api(patient_server)) as api:
        path = api.bucketed(content_type=JSON)
        count = 250_000
        assert api.append(path, b"[" + b"1," * (count - 1) + b"1]", JSON).status == 204
        before = memory_bytes(patient_server)
        found = api.get(f"{path}/bootstrap")
        assert len(split_by_hand(found)) == count + 1
        assert memory_bytes(patient_server) - before < 16 * MIB


def test_a_client_that_reads_steadily_but_slowly_gets_everything() -> None:
    """Larger than what the socket takes at once, slower than the stall timeout."""
    flags = ("--subscriber-stall-timeout", "1")
    with running_server(None, *flags) as server, contextlib.closing(Api(server)) as api:
        path = api.bucketed(b"one")
        snapshot = bytes(24 * MIB)
        assert api.publish(path, token(1, 3), snapshot).status == 204
        for below in ("/bootstrap", f"/snapshot/{token(1, 3)}"):
            with contextlib.closing(stalled_reader(api.port, path, below)) as slow:
                assert read_steadily(slow, seconds=4.0, total=24 * MIB) > 24 * MIB


def read_steadily(reader: socket.socket, seconds: float, total: int) -> int:
    """Takes about `total` bytes in that many seconds, then whatever is left."""
    received, began = 0, time.monotonic()
    while part := reader.recv(1 << 18):
        received += len(part)
        ahead = received / total * seconds - (time.monotonic() - began)
        if ahead > 0:
            time.sleep(ahead)
        if received > total:
            break
    return received


def test_bootstrap_waits_for_nobody(api: Api) -> None:
    """A reader that does not read its bootstrap does not keep appends or other readers back."""
    path = api.bucketed(*[b"x" * 500_000] * 10, content_type=BINARY)
    with contextlib.closing(stalled_reader(api.port, path, "/bootstrap")):
        api.settle()
        for _ in range(20):
            assert api.append(path, b"y", BINARY).status == 204
        assert bootstrap(api, path).messages[-1] == b"y"
