"""A record that is sound and cannot be applied: a start says where it is, and can go on without."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import structlog

from millstream.clock import ManualClock
from millstream.config import Config
from millstream.errors import StartupError, UnusableRecord
from millstream.formats.layout import StreamId
from millstream.journal.checkpoints import encode_checkpoint, store_checkpoint
from millstream.journal.disk import OsDisk
from millstream.journal.folder import DataFolder
from millstream.journal.skipped import SKIPPED_FILE, load_skipped
from millstream.limits import KIB
from millstream.recover import Recovered, recover
from millstream.state.commands import AnyCommand, Append, CreateStream, encode_command
from millstream.state.machine import StateMachine
from millstream.state.outcomes import Outcome
from millstream.state.records import take_records
from tests.unit.journal.log_files import folder_journal
from tests.unit.state.content import Contents

NOW_MS = ManualClock().now_ms()


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[structlog.typing.EventDict]]:
    with structlog.testing.capture_logs() as found:
        yield found


class Place:
    """A data folder; records are written to its log as if they had been acknowledged."""

    def __init__(self, path: Path) -> None:
        self.config = Config(data_dir=path, shards=2, wal_segment_bytes=64 * KIB)
        self.folder = DataFolder(path)

    def write(self, *payloads: bytes) -> None:
        journal = folder_journal(self.folder)
        recover(self.config, self.folder, journal).catalog.close()
        journal._writer.write_batch(payloads)
        journal._writer.close()

    def start(self, *places: str) -> Recovered:
        named = tuple((file, int(at)) for file, at in (place.rsplit(":", 1) for place in places))
        config = dataclasses.replace(self.config, skip_record=named)
        return recover(config, self.folder, folder_journal(self.folder))

    def refused(self, *places: str) -> UnusableRecord:
        with pytest.raises(UnusableRecord) as raised:
            self.start(*places)
        return raised.value

    def messages(self, *places: str) -> dict[bytes, list[bytes]]:
        """What is there after a start."""
        recovered = self.start(*places)
        try:
            contents = Contents(recovered.machine)
            return {s.path: contents.messages(s) for s in recovered.machine.by_id.values()}
        finally:
            recovered.catalog.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path / "data")
    yield found
    found.folder.close()


def create(path: bytes) -> bytes:
    return encode_command(CreateStream(NOW_MS, path, b"text/plain"))


def append(path: bytes, data: bytes) -> bytes:
    machine = StateMachine(2)
    stream_id = 1 * 2 + machine.layout.shard_of_path(path)  # the first stream of the store
    return encode_command(Append(NOW_MS, StreamId(stream_id), data, b"", 1))


def break_apply(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """This append leaves half of itself behind, then fails."""
    apply = StateMachine.apply

    def broken(self: StateMachine, command: AnyCommand) -> Outcome:
        outcome = apply(self, command)
        if isinstance(command, Append) and command.data == data:
            raise RecursionError("maximum depth")
        return outcome

    monkeypatch.setattr(StateMachine, "apply", broken)


def test_a_start_names_file_place_number_and_kind(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write(create(b"a"), append(b"a", b"one"), append(b"a", b"two"))
    break_apply(monkeypatch, b"two")
    error = place.refused()
    position = 64 + sum(24 + len(p) for p in (create(b"a"), append(b"a", b"one")))
    assert (error.lsn, error.position, error.command) == (3, position, "Append")
    file = f"{place.folder.wal}/0000000000000001.wal"
    assert str(error).startswith(
        f"{file} at byte {position}: record 3 (Append) cannot be applied: "
        "RecursionError: maximum depth."
    )
    assert str(error).endswith(f"--skip-record 0000000000000001.wal:{position}")
    assert isinstance(error.__cause__, RecursionError)
    monkeypatch.undo()
    assert place.messages() == {b"a": [b"one", b"two"]}  # nothing was changed


def test_bytes_that_are_no_command_are_named_too(place: Place) -> None:
    unknown = msgspec.msgpack.encode([99, 5])
    place.write(create(b"a"), append(b"a", b"one"))
    place.write(b"\xc1", append(b"a", b"two"), unknown)
    first = place.refused()
    assert (first.lsn, first.command) == (3, "no command that this version knows")
    second = place.refused(f"0000000000000002.wal:{first.position}")
    assert second.lsn == 5
    named = [f"{error.file}:{error.position}" for error in (first, second)]
    assert place.messages(*named) == {b"a": [b"one", b"two"]}


def test_the_record_is_left_out_alone_wholly_loudly_and_for_ever(
    place: Place, monkeypatch: pytest.MonkeyPatch, logs: list[structlog.typing.EventDict]
) -> None:
    place.write(create(b"a"), *(append(b"a", data) for data in (b"one", b"two", b"three")))
    break_apply(monkeypatch, b"two")
    error = place.refused()
    assert place.messages(f"{Path(error.file).name}:{error.position}") == {b"a": [b"one", b"three"]}
    monkeypatch.undo()  # a program that could apply it must not: others were built on its absence
    logs.clear()
    assert place.messages() == {b"a": [b"one", b"three"]}
    [said] = [entry for entry in logs if entry["log_level"] == "error"]
    assert (said["lsn"], said["command"], said["position"]) == (3, "Append", error.position)
    [recovered] = [entry for entry in logs if entry["event"] == "recovered"]
    assert (recovered["records_replayed"], recovered["records_skipped"]) == (3, 1)


def test_only_a_record_that_fails_can_be_left_out(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write(create(b"a"), append(b"a", b"one"))
    wrong = ["0000000000000001.wal:64", "0000000000000009.wal:64", "x:1"]
    assert place.messages(*wrong) == {b"a": [b"one"]}
    assert load_skipped(place.folder.path) == {}
    break_apply(monkeypatch, b"one")
    error = place.refused(*wrong, f"other.wal:{64 + 24 + len(create(b'a'))}")
    assert error.lsn == 2


def test_another_record_of_that_number_is_not_meant(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write(create(b"a"), append(b"a", b"one"))
    break_apply(monkeypatch, b"one")
    error = place.refused()
    place.messages(f"{error.file}:{error.position}")
    monkeypatch.undo()
    (place.folder.path / "wal" / "0000000000000001.wal").unlink()
    place.write(create(b"a"), append(b"a", b"two"))
    assert place.messages() == {b"a": [b"two"]}


def test_once_a_checkpoint_has_passed_it_nothing_is_left_to_leave_out(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may even be lost then."""
    place.write(create(b"a"), append(b"a", b"one"), append(b"a", b"two"))
    break_apply(monkeypatch, b"one")
    error = place.refused()

    recovered = place.start(f"{error.file}:{error.position}")
    capture = recovered.machine.changes.begin_capture(
        recovered.lsn, take_records(recovered.machine)
    )
    capture.take_some(10)
    changes, hot = capture.encode()
    blocks = encode_checkpoint(place.folder.store_id, changes, hot)
    store_checkpoint(OsDisk(), place.folder.checkpoints, capture.lsn, blocks)
    recovered.catalog.merge(changes)
    recovered.catalog.close()
    (place.folder.path / SKIPPED_FILE).unlink()
    assert place.messages() == {b"a": [b"two"]}


def test_a_list_that_cannot_be_read_stops_the_start(place: Place) -> None:
    place.write(create(b"a"))
    (place.folder.path / SKIPPED_FILE).write_text("{}\n")
    with pytest.raises(StartupError, match="skipped-records"):
        place.start()


def test_the_list_is_lines_of_json(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write(create(b"a"), append(b"a", b"one"))
    break_apply(monkeypatch, b"one")
    error = place.refused()
    place.messages(f"{error.file}:{error.position}")
    [line] = (place.folder.path / SKIPPED_FILE).read_text().splitlines()
    written = json.loads(line)
    assert (written["lsn"], written["file"]) == (2, "0000000000000001.wal")
    assert written["error"] == "RecursionError: maximum depth"


def test_a_catalog_that_cannot_be_read_is_not_the_records_fault(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write(create(b"a"))

    def fail(self: StateMachine, command: AnyCommand) -> Outcome:
        raise OSError(5, "Input/output error", "shard-0000.sqlite")

    monkeypatch.setattr(StateMachine, "apply", fail)
    with pytest.raises(StartupError, match="Input/output error") as raised:
        place.start()
    assert not isinstance(raised.value, UnusableRecord)
