"""What broke in other servers, one test each (reference: the Rust server's crash simulation)."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.content import Kind
from tests.crash.stories import State, Step, Story, check_state, tell
from tests.crash.wal_files import (
    load_wal,
    parse_header,
    parse_records,
    scan_records,
    segment_names,
)
from tests.crash.writers import BASE
from tests.support.http import Client, EventStream
from tests.support.server import ServerProcess, running_server
from tests.support.waiting import wait_until

SMALL = ("--wal-segment-bytes", "4096", "--long-poll-timeout", "0.5")


@contextlib.contextmanager
def client_of(server: ServerProcess) -> Iterator[Client]:
    client = server.client()
    try:
        yield client
    finally:
        client.close()


def append(stream: str, data: bytes) -> Step:
    return Step("POST", stream, Kind.TEXT, data)


def test_segment_rolls_between_boots_lose_nothing_over_many_generations(tmp_path: Path) -> None:
    """Theirs re-created the first segment on boot and took its zeros for the end of the log."""
    steps = [Step("PUT", "log", Kind.TEXT, b"")]
    state: State = {}
    for generation in range(5):
        with running_server(tmp_path / "data", *SMALL) as server:
            if generation:
                with client_of(server) as client:
                    check_state(client, state, ["log"])
            steps += [
                append("log", f"{generation}.{i} ".encode() * 250) for i in range(generation * 3)
            ]
            tell(server, [[step] for step in steps])
        for step in steps:
            state = step.change(state)
        steps = []
    names = segment_names(load_wal(tmp_path / "data" / "wal"))
    assert len(names) >= 8
    with running_server(tmp_path / "data", *SMALL) as server, client_of(server) as client:
        check_state(client, state, ["log"])


def test_recycled_segments_hold_old_records_and_do_no_harm(tmp_path: Path) -> None:
    """Checkpoints retire files, rolls reuse them: over and over, with a kill in between."""
    flags = ("--wal-segment-bytes", "8192", "--checkpoint-wal-bytes", "8192")
    state: State = {}
    wal = tmp_path / "data" / "wal"
    for generation in range(4):
        with running_server(tmp_path / "data", *flags) as server:

            def take(step: Step, server: ServerProcess = server) -> None:
                nonlocal state
                tell(server, [[step]])
                state = step.change(state)

            if not generation:
                take(Step("PUT", "log", Kind.TEXT, b""))
            for number in range(8):
                take(append("log", f"{generation}.{number};".encode()))
                take(Step("PUT", "scratch", Kind.TEXT, b"so that the state stays small"))
                for _ in range(8):
                    take(append("scratch", b"y" * 900))
                take(Step("DELETE", "scratch", Kind.TEXT, b""))
            wait_until(lambda: log_length(wal) <= 4, "what a checkpoint covers is let go of")
            for _ in range(200):
                if holds_old_records(newest(wal)):
                    break
                take(append("log", b"into the next file;" * 20))
        assert holds_old_records(newest(wal)), "no file was used twice"
    with running_server(tmp_path / "data", *flags) as server, client_of(server) as client:
        check_state(client, state, ["log", "scratch"])


def newest(wal: Path) -> bytes:
    """The file that is written: no checkpoint lets it go."""
    return max(wal.glob("*.wal")).read_bytes()


def log_length(wal: Path) -> int:
    """In files. The one that is written, those of two checkpoints' worth, and one to spare."""
    return sum(1 for path in wal.iterdir() if path.suffix == ".wal")


def holds_old_records(content: bytes) -> bool:
    header, records = parse_header(content), parse_records(content)
    return (
        header is not None
        and bool(records)
        and bool(scan_records(header, content, records[-1].end))
    )


def test_an_acknowledged_delete_stays_deleted(tmp_path: Path) -> None:
    """Theirs answered DELETE before it was durable, and the stream came back with its data."""
    for generation in range(4):
        stream = f"deleted-{generation}"
        with running_server(tmp_path / "data", *SMALL) as server:
            with client_of(server) as client:
                for earlier in range(generation):
                    assert client.head(f"{BASE}deleted-{earlier}").status == 404
            steps = [
                Step("PUT", stream, Kind.TEXT, b"secret"),
                append(stream, b"more"),
                Step("DELETE", stream, Kind.TEXT, b""),
            ]
            tell(server, [[step] for step in steps])


def test_readers_do_not_lag_behind_clients_that_leave(tmp_path: Path) -> None:
    """Whatever a client that left got into the log is shown at once, not with the next append."""
    with running_server(tmp_path / "data", *SMALL) as server:
        tell(server, [[Step("PUT", "log", Kind.TEXT, b"")]])
        with client_of(server) as client:
            for number in range(30):
                step = append("log", f"{number:04d};".encode())
                with socket.create_connection(("127.0.0.1", server.port)) as connection:
                    connection.sendall(step.encode())
                if number % 3 == 2:  # half a request: nothing may come of it
                    with socket.create_connection(("127.0.0.1", server.port)) as connection:
                        connection.sendall(step.encode()[:-2])
            shown = wait_until_still(client)
        server.kill()
    with running_server(tmp_path / "data", *SMALL) as server, client_of(server) as client:
        assert client.get(BASE + "log?offset=-1").body == shown
    pieces = shown.split(b";")[:-1]
    assert sorted(set(pieces)) == sorted(pieces)
    assert all(len(piece) == 4 for piece in pieces)


def wait_until_still(client: Client) -> bytes:
    """What the stream shows once two looks, 0.2 s apart, agree."""
    before = b"nothing yet"
    while (now := client.get(BASE + "log?offset=-1").body) != before:
        before = now
        time.sleep(0.2)
    return now


def test_a_waiting_reader_gets_the_append_of_a_client_that_left(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", *SMALL) as server:
        tell(server, [[Step("PUT", "log", Kind.TEXT, b"")]])
        events = EventStream("127.0.0.1", server.port, f"{BASE}log?live=sse&offset=-1")
        step = append("log", b"left before the answer;")
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall(step.encode())
                connection.recv(1)  # it is durable; the rest of the answer is not wanted
        count = 0
        for event in events:  # a silence of ten seconds fails the test
            count += event.data.count(";") if event.kind == "data" else 0
            if count >= 20:
                break
        events.close()
        events.response.close()
    assert count == 20


@pytest.mark.parametrize("signal_first", [False, True], ids=["kill", "stop"])
def test_an_idle_restart_changes_nothing(tmp_path: Path, signal_first: bool) -> None:
    """Recover, do nothing, end, recover again: theirs had an assertion that a second boot broke."""
    steps = [Step("PUT", "log", Kind.TEXT, b"")]
    steps += [append("log", f"{i} ".encode() * 400) for i in range(12)]
    with running_server(tmp_path / "data", *SMALL) as server:
        tell(server, [[step] for step in steps])
    state = Story(steps).state_after(len(steps))
    for _ in range(4):
        with running_server(tmp_path / "data", *SMALL) as server:
            with client_of(server) as client:
                check_state(client, state, ["log"])
            if signal_first:
                assert server.stop() == 0
