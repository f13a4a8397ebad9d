"""The object store fails while writers write and readers read.

Appends go on until the hot budget is used, then the shards that used it up get 503; what is in
memory is read as always; what is not gets 503 in time; and when the store is back, so is all else.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cold.traffic import (
    busy,
    check_streams,
    code,
    path_in_shard,
    read_all,
)
from tests.conformance.api import Events
from tests.conformance.multipart import bootstrap
from tests.crash.rounds import DrainedServer
from tests.support.faulty_store import Fault, FaultyStore
from tests.support.http import Client
from tests.support.seaweed import SeaweedFS
from tests.support.server import ServerProcess
from tests.support.waiting import wait_until

SHARDS = 4
HOT_BYTES = 512 * 1024
FLAGS = (
    *("--shards", str(SHARDS), "--hot-bytes", str(HOT_BYTES), "--flush-bytes", "16KiB"),
    *("--cold-cache-bytes", "64KiB", "--checkpoint-wal-bytes", "64KiB", "--resident-streams", "4"),
    *("--cold-timeout", "2s", "--wal-segment-bytes", "64KiB"),
)


@contextlib.contextmanager
def serving(data_dir: Path | None, *flags: str) -> Iterator[DrainedServer]:
    assert data_dir is not None
    server = DrainedServer(data_dir, *FLAGS, *flags)
    try:
        yield server
    finally:
        server.kill()
        assert b"Traceback" not in server.output, server.output[-3000:].decode()


@pytest.fixture
def server(
    tmp_path: Path, seaweed: SeaweedFS, proxy: FaultyStore, prefix: str
) -> Iterator[DrainedServer]:
    seaweed.ensure_running()
    with serving(tmp_path / "data", *seaweed.flags(prefix, port=proxy.port)) as server:
        yield server
    seaweed.ensure_running()


FAULTS = {
    "500": Fault(status=500),
    "503": Fault(status=503),
    "reset": Fault(cut=True),
    "lost answers": Fault(lose_answer=True),
    "cut short": Fault(truncate=True, methods=("GET",)),
    "slow": Fault(delay_seconds=60.0),
    "now and then": Fault(status=500, every=2),
    "now and then lost": Fault(lose_answer=True, every=3),
    "puts only": Fault(status=500, methods=("PUT",)),
    "gets only": Fault(status=503, methods=("GET",)),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_everything_recovers_by_itself_when_the_store_does(
    server: DrainedServer, proxy: FaultyStore, fault: Fault
) -> None:
    paths = [path_in_shard(f"stream{n}", n % SHARDS, SHARDS) for n in range(3)]
    with busy(server, paths, 3000) as (writers, reader):
        wait_until(lambda: min(writer.acknowledged for writer in writers) >= 30)
        with proxy.failing(fault):
            time.sleep(1.0)  # long enough for many a try
            wait_until(lambda: proxy.faults >= 5, "the fault struck")
        before = [writer.acknowledged for writer in writers]
        wait_until(
            lambda: all(w.acknowledged > b + 20 for w, b in zip(writers, before, strict=True)),
            "every writer goes on",
        )
    print(sum((writer.answers for writer in writers), reader.answers))
    check_streams(server, writers)
    server.kill()
    with serving(server.data_dir, *server.flags[len(FLAGS) :]) as again:
        check_streams(again, writers)


def fill(client: Client, path: str, chunk: bytes = b"x" * 20_000) -> int:
    """Appends until the server asks to wait; how many bytes it took."""
    taken = 0
    while True:
        reply = client.post(path, chunk, content_type="text/plain")
        if reply.status == 503:
            assert code(reply) == "hot_budget_used"
            assert reply.headers["retry-after"]
            return taken
        assert reply.status == 204, reply
        taken += len(chunk)
        assert taken < 4 * HOT_BYTES, "the budget is never used up"


@pytest.mark.parametrize("how", ["killed", "paused"])
def test_without_the_store_only_the_shards_that_use_up_the_budget_wait(
    server: DrainedServer, seaweed: SeaweedFS, how: str
) -> None:
    full, free = (path_in_shard(name, shard, SHARDS) for name, shard in (("full", 0), ("free", 1)))
    client = server.client()
    for path in (full, free):
        assert client.put(path, content_type="text/plain").status == 201
        assert client.post(path, b"first", content_type="text/plain").status == 204
    if how == "killed":
        seaweed.kill()
    else:
        seaweed.pause()
    taken = fill(client, full)
    assert taken >= HOT_BYTES // 2
    for number in range(20):
        assert client.post(free, b"%d" % number, content_type="text/plain").status == 204
        assert client.post(full, b"more", content_type="text/plain").status == 503
    began = time.monotonic()
    assert client.get(f"{free}?offset=now").status == 200
    hot = client.get(f"{full}?offset={taken // 20_000:016d}_{taken + 5 - 20_000:016d}")
    assert (hot.status, hot.body) == (200, b"x" * 20_000)
    assert client.head(full).status == 200
    assert client.post(full, headers={"Stream-Closed": "true"}).status == 204  # needs no room
    assert time.monotonic() - began < 2, "what is in memory does not wait for the store"
    seaweed.ensure_running()
    waiting = path_in_shard("waiting", 0, SHARDS)
    assert client.put(waiting, content_type="text/plain").status == 201
    wait_until(
        lambda: client.post(waiting, b"go", content_type="text/plain").status == 204, seconds=40
    )
    assert read_all(client, full) == b"first" + b"x" * taken
    assert read_all(client, free) == b"first" + b"".join(b"%d" % n for n in range(20))
    client.close()


def make_cold(client: Client, path: str, count: int, size: int) -> bytes:
    """A stream whose beginning is in no memory any more: others have used the budget since."""
    assert client.put(path, content_type="text/plain").status == 201
    expected = b""
    for number in range(count):
        body = b"%06d" % number + b"c" * (size - 6)
        append(client, path, body)
        expected += body
    return expected


def append(client: Client, path: str, body: bytes) -> None:
    wait_until(lambda: client.post(path, body, content_type="text/plain").status == 204)


def answers_whole(client: Client, path: str) -> bool:
    """A store on its way back may fail behind the first part of an answer: that is cut off."""
    try:
        return client.get(path).status == 200
    except http.client.IncompleteRead:
        client.close()
        return False


@pytest.mark.parametrize("how", ["killed", "paused", "slow", "cut short"])
def test_a_cold_read_is_refused_in_time_and_a_hot_one_is_not(
    server: DrainedServer, seaweed: SeaweedFS, proxy: FaultyStore, how: str
) -> None:
    client = server.client()
    cold, hot = "/v1/stream/cold", "/v1/stream/hot"
    expected = make_cold(client, cold, 100, 10_000)
    newest = make_cold(client, hot, 60, 10_000)
    assert read_all(client, cold) == expected
    if how == "killed":
        seaweed.kill()
    elif how == "paused":
        seaweed.pause()
    elif how == "slow":
        proxy.fault = Fault(delay_seconds=60)
    else:
        proxy.fault = Fault(truncate=True, methods=("GET",))
    for query in ("offset=-1", "offset=-1&live=long-poll", f"offset={40:016d}_{400_000:016d}"):
        began = time.monotonic()
        reply = client.get(f"{cold}?{query}")
        assert time.monotonic() - began < 5, query
        assert reply.status == 503, (query, reply.status)
        assert code(reply) == "cold_unavailable"
        assert reply.headers["retry-after"]
    began = time.monotonic()
    last = client.get(f"{hot}?offset={59:016d}_{590_000:016d}")
    assert (last.status, last.body) == (200, newest[-10_000:])
    assert client.get(f"{cold}?offset=now").status == 200
    assert time.monotonic() - began < 2
    proxy.fault = Fault()
    seaweed.ensure_running()
    wait_until(lambda: answers_whole(client, f"{cold}?offset=-1"))
    assert read_all(client, cold) == expected
    assert read_all(client, hot) == newest
    client.close()


def test_an_event_stream_that_cannot_go_on_ends_and_can_be_taken_up_where_it_ended(
    server: DrainedServer, proxy: FaultyStore
) -> None:
    client = server.client()
    cold = "/v1/stream/cold"
    expected = make_cold(client, cold, 600, 10_000)
    shown, offset, rounds = b"", "-1", 0
    while len(shown) < len(expected):
        rounds += 1
        with contextlib.closing(
            Events(client.host, client.port, f"{cold}?offset={offset}&live=sse")
        ) as events:
            assert events.status in (200, 503)
            data = b""
            for event in events if events.status == 200 else ():
                if event.kind == "data":
                    data += event.data.encode()
                elif event.kind == "control":
                    shown, data = shown + data, b""
                    offset = event.json()["streamNextOffset"]
                    assert int(offset.split("_")[1]) == len(shown)
                    if event.json().get("upToDate"):
                        break
                    if rounds <= 3:
                        proxy.fault = Fault(status=503, methods=("GET",))
        proxy.fault = Fault()
        assert rounds < 50
    assert shown == expected
    print(f"{rounds} connections")
    client.close()


def test_a_bootstrap_that_cannot_go_on_is_cut_off_visibly(
    server: DrainedServer, proxy: FaultyStore
) -> None:
    client = server.client()
    assert client.put("/bucket").status == 201
    expected = make_cold(client, "/bucket/cold", 600, 10_000)
    connection = http.client.HTTPConnection(client.host, client.port, timeout=30)
    connection.request("GET", "/bucket/cold/bootstrap")
    response = connection.getresponse()
    assert response.status == 200
    proxy.fault = Fault(status=503, methods=("GET",))
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        response.read()
    connection.close()
    refused = client.get("/bucket/cold/bootstrap")
    assert (refused.status, code(refused)) == (503, "cold_unavailable")
    proxy.fault = Fault()
    wait_until(lambda: client.get("/bucket/cold?max_bytes=1").status == 200)
    assert b"".join(bootstrap(client, "/bucket/cold").messages) == expected
    client.close()


def test_many_cold_readers_of_a_dead_store_do_not_keep_appends_back(
    server: DrainedServer, seaweed: SeaweedFS
) -> None:
    client = server.client()
    expected = make_cold(client, "/v1/stream/cold", 100, 10_000)
    make_cold(client, "/v1/stream/hot", 60, 10_000)
    seaweed.pause()
    statuses = list[int]()

    def read(number: int) -> None:
        with contextlib.closing(server.client()) as reader:
            offset = f"{number % 50:016d}_{number % 50 * 10_000:016d}"
            statuses.append(reader.get(f"/v1/stream/cold?offset={offset}&max_bytes=1").status)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(100)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    times = list[float]()
    while any(thread.is_alive() for thread in threads):
        began_one = time.monotonic()
        reply = client.post("/v1/stream/hot", b"x", content_type="text/plain")
        assert reply.status in (204, 503)
        times.append(time.monotonic() - began_one)
        time.sleep(0.01)
    print(f"{time.monotonic() - began:.1f} s for all, longest append {max(times):.2f} s")
    assert set(statuses) == {503}
    assert time.monotonic() - began < 15, "no read waits for the failures of all before it"
    assert max(times) < 4
    seaweed.resume()
    wait_until(lambda: client.get("/v1/stream/cold").status == 200)
    assert read_all(client, "/v1/stream/cold") == expected
    client.close()


def test_a_server_killed_while_the_store_is_away_loses_nothing(
    server: DrainedServer, seaweed: SeaweedFS
) -> None:
    paths = [path_in_shard(f"stream{n}", n, SHARDS) for n in range(SHARDS)]
    with busy(server, paths, 2000) as (writers, reader):
        wait_until(lambda: min(writer.acknowledged for writer in writers) >= 20)
        seaweed.kill()
        time.sleep(1.5)
        reader.ending.set()
        for writer in writers:
            writer.ending.set()
        server.kill()
    flags = server.flags[len(FLAGS) :]
    with serving(server.data_dir, *flags) as second:  # still away: it starts without the store
        with contextlib.closing(second.client()) as client:
            for writer in writers:
                head = client.head(writer.path)
                assert int(head.next_offset.split("_")[0]) in (
                    writer.acknowledged,
                    writer.acknowledged + 1,
                )
        second.kill()
    seaweed.ensure_running()
    with serving(server.data_dir, *flags) as third:
        check_streams(third, writers)


def test_a_stop_while_the_store_is_away_is_clean_and_loses_nothing(
    server: DrainedServer, seaweed: SeaweedFS
) -> None:
    paths = [path_in_shard(f"stream{n}", n, SHARDS) for n in range(2)]
    with busy(server, paths, 2000) as (writers, _):
        wait_until(lambda: min(writer.acknowledged for writer in writers) >= 20)
        seaweed.pause()
        time.sleep(1.0)
    assert stop_in_time(server) == 0
    seaweed.ensure_running()
    with serving(server.data_dir, *server.flags[len(FLAGS) :]) as again:
        check_streams(again, writers)


def stop_in_time(server: ServerProcess) -> int:
    began = time.monotonic()
    code = server.stop(30)
    assert time.monotonic() - began < 15
    return code
