"""Storage across restarts: checkpoint, log and lock together. tests/conformance has the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from millstream.assemble import _supervised, running
from millstream.clock import ManualClock
from millstream.cold.checkpointer import Checkpointer
from millstream.cold.room_maker import RoomMaker
from millstream.cold_tier import ColdTier
from millstream.config import Config
from millstream.engine.engine import Engine
from millstream.engine.timings import Timings
from millstream.errors import DamagedData, StartupError
from millstream.faults import Faults
from millstream.formats.layout import StreamId
from millstream.state.commands import AnyCommand, Append, CreateStream, DeleteStream, NoOp
from millstream.state.machine import StateMachine
from millstream.storage import Stop, Storage, open_storage
from tests.unit.state.store import describe

NOW_MS = ManualClock().now_ms()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


def config_of(folder: Path, **fields: Any) -> Config:
    return Config(data_dir=folder, wal_segment_bytes=4096, shards=1, **fields)


def live(folder: Path, *commands: AnyCommand, checkpoint: bool = False) -> dict[str, Any]:
    """One run of a server: recovers, commits, stops. Its state at the end."""

    async def run() -> dict[str, Any]:
        storage = open_storage(config_of(folder), Stop(), Faults())
        assert storage.disk is not None
        loop = asyncio.get_running_loop()
        engine = Engine(storage.machine, storage.journal, ManualClock(), storage.lsn)
        engine.start(loop, storage.disk.catalog)
        config = config_of(folder, checkpoint_wal_bytes=1 if checkpoint else 10**9)
        cold = ColdTier(config, engine, storage, storage.disk, Timings())
        async with asyncio.TaskGroup() as group, cold.running(group):
            for command in commands:
                engine.submit_and_forget(command)
            await engine.perform(NoOp(NOW_MS))
        await storage.journal.close()
        return close(storage)

    return asyncio.run(run())


def close(storage: Storage) -> dict[str, Any]:
    """Lets go of the folder; the state that was there."""
    assert storage.disk is not None
    wake_all(storage.machine)
    state = describe(storage.machine)
    storage.disk.catalog.close()
    storage.disk.folder.close()
    return state


def wake_all(machine: StateMachine) -> None:
    for key in list(machine.names.keys_from(b"")):
        machine.find(key)


def look(folder: Path) -> tuple[Storage, dict[str, Any]]:
    storage = open_storage(config_of(folder), Stop(), Faults())
    return storage, close(storage)


def create(path: bytes) -> CreateStream:
    return CreateStream(NOW_MS, path, b"text/plain")


def append(stream_id: int, data: bytes) -> Append:
    return Append(NOW_MS, StreamId(stream_id), data, b"", 1)


def test_a_restart_finds_the_state_it_left(tmp_path: Path) -> None:
    left = live(
        tmp_path, create(b"a"), append(1, b"x"), create(b"b"), DeleteStream(NOW_MS, StreamId(2))
    )
    storage, found = look(tmp_path)
    assert found == left
    assert storage.lsn == 5


def test_a_restart_goes_on_behind_a_checkpoint(tmp_path: Path) -> None:
    live(tmp_path, create(b"a"), append(1, b"before"), checkpoint=True)
    assert list((tmp_path / "checkpoints").iterdir())
    left = live(tmp_path, append(1, b"after"), append(1, b"later"))
    assert look(tmp_path)[1] == left
    kept = [each.data for each in left["streams"][b"a"]["messages"]]
    assert kept == [b"before", b"after", b"later"]


def test_many_restarts_with_checkpoints_lose_nothing(tmp_path: Path) -> None:
    live(tmp_path, create(b"a"))
    for number in range(6):
        live(tmp_path, append(1, b"%d" % number * 1500), checkpoint=number % 2 == 0)
    _, found = look(tmp_path)
    kept = [each.data for each in found["streams"][b"a"]["messages"]]
    assert kept == [b"%d" % n * 1500 for n in range(6)]
    assert len(list((tmp_path / "wal").glob("*.wal"))) <= 4


def test_what_ended_in_an_earlier_run_wakes_nobody_in_this_one(tmp_path: Path) -> None:
    live(tmp_path, create(b"a"), DeleteStream(NOW_MS, StreamId(1)))
    assert look(tmp_path)[0].machine.outbox.ended == []


def test_a_damaged_log_is_refused_and_the_folder_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Checkpointer, "_is_last_due", lambda self: False)
    live(tmp_path, create(b"a"))
    live(tmp_path, create(b"b"))
    first = tmp_path / "wal" / "0000000000000001.wal"
    data = bytearray(first.read_bytes())
    data[70] ^= 0xFF
    first.write_bytes(data)
    for _ in range(2):  # the second time it would be in use if the first had kept the lock
        with pytest.raises(DamagedData, match=r"0000000000000001\.wal"):
            look(tmp_path)


def test_two_servers_cannot_share_a_folder(tmp_path: Path) -> None:
    storage = open_storage(config_of(tmp_path), Stop(), Faults())
    with pytest.raises(StartupError, match="in use"):
        open_storage(config_of(tmp_path), Stop(), Faults())
    close(storage)


def test_a_server_in_memory_touches_no_disk(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    storage = open_storage(Config(memory=True, data_dir=folder), Stop(), Faults())
    assert storage.disk is None
    assert not folder.exists()


def test_a_stop_remembers_the_worst_exit_code() -> None:
    stop = Stop()
    stop.request(exit_code=1)
    stop.request()
    assert stop.requested.is_set()
    assert stop.exit_code == 1


def test_what_fails_beside_the_tasks_comes_out_as_it_is() -> None:
    """The command line knows a StartupError, and not a group of them."""

    async def block() -> None:
        async with _supervised():
            raise StartupError("the port is in use")

    with pytest.raises(StartupError, match="in use"):
        asyncio.run(block())


def test_an_error_that_a_task_did_not_deal_with_ends_the_block() -> None:
    async def fail() -> None:
        raise KeyError("x")

    async def block() -> None:
        async with _supervised() as group:
            group.create_task(fail())
            await asyncio.Event().wait()

    with pytest.raises(KeyError):
        asyncio.run(block())


def test_an_error_that_escapes_a_service_ends_the_server_loudly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def escape(self: RoomMaker) -> None:
        await asyncio.sleep(0.05)
        raise ZeroDivisionError("nobody caught this")

    monkeypatch.setattr(RoomMaker, "_run", escape)

    async def story() -> None:
        config = config_of(tmp_path, listen="127.0.0.1:0", pipeline="off")
        async with running(config, Stop()), asyncio.timeout(20):
            await asyncio.Event().wait()

    for _ in range(2):  # the second time the folder would be in use if the first had kept it
        with pytest.raises(ZeroDivisionError, match="nobody caught this"):
            asyncio.run(story())


def test_an_error_at_the_start_is_told_as_it_is(tmp_path: Path) -> None:
    async def story() -> None:
        config = config_of(tmp_path / "one", listen="127.0.0.1:0", pipeline="off")
        async with running(config, Stop()) as url:
            taken = config_of(tmp_path / "two", listen=url.removeprefix("http://"), pipeline="off")
            async with running(taken, Stop()):
                raise AssertionError("two servers on one port")

    with pytest.raises(StartupError, match="is in use"):
        asyncio.run(story())
