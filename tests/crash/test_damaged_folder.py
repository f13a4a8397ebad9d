"""Damaged data folders in front of a real server process, and damaged checkpoints.

The exhaustive cases are in test_damaged_wal.py; here is what an operator sees: the exit code, the
message, and a server that goes on where it may.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.errors import DamagedData
from millstream.formats.checkpoint import BLOCK_HEADER_BYTES
from millstream.journal.checkpoints import (
    checkpoint_name,
    encode_checkpoint,
    load_checkpoint,
    store_checkpoint,
)
from millstream.journal.disk import OsDisk
from millstream.journal.recovery import recover_log
from millstream.limits import SHARDS_DEFAULT
from millstream.state.commands import decode_command
from millstream.state.machine import StateMachine
from millstream.state.records import take_records
from tests.crash.content import Kind
from tests.crash.simulated_disk import SimulatedDisk
from tests.crash.stories import State, Step, Story, check_state, leave_reference_store, tell
from tests.crash.test_damaged_wal import FLAGS, Store, flip, load_store
from tests.crash.wal_files import (
    Header,
    build_record,
    load_wal,
    parse_records,
    scan_records,
    segment_names,
)
from tests.support.server import NO_OWN_STREAMS, ServerProcess, running_server

CHECKPOINTS, WAL = "/data/checkpoints", "/data/wal"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("reference") / "data"
    return load_store(folder, leave_reference_store(folder, *FLAGS))


@pytest.fixture
def folder(store: Store, tmp_path: Path) -> Path:
    return shutil.copytree(store.folder, tmp_path / "data")


def check_refused_start(folder: Path, *named: str) -> None:
    before = load_wal(folder / "wal")
    server = ServerProcess(folder, *FLAGS, wait=False)
    try:
        code = server.process.wait(20)
    finally:
        server.kill()
    output = server.finish_output() if not server.output else server.output.decode()
    assert code == 2, output
    for name in named:
        assert name in output, f"{name!r} is not in: {output}"
    assert "Traceback" not in output, output
    assert load_wal(folder / "wal") == before, "a refused start changed the log"


def check_serves(folder: Path, state: State, story: Story) -> None:
    """The state is there, goes on growing, and survives two more crashes."""
    names = [*story.names, "after"]
    for generation in range(3):
        with running_server(folder, *FLAGS) as server:
            client = server.client()
            try:
                check_state(client, state, names)
            finally:
                client.close()
            if "after" not in state:
                step = Step("PUT", "after", Kind.TEXT, b"")
                tell(server, [[step]])
                state = step.change(state)
            step = Step("POST", "after", Kind.TEXT, f"generation {generation};".encode() * 100)
            tell(server, [[step]])
            state = step.change(state)
    with running_server(folder, *FLAGS) as server:
        client = server.client()
        try:
            check_state(client, state, names)
        finally:
            client.close()


# --- the log ---------------------------------------------------------------------------------


def test_a_torn_last_record_is_cut_and_the_server_goes_on(store: Store, folder: Path) -> None:
    last = store.last_records[-1]
    path = folder / "wal" / store.last_name
    path.write_bytes(path.read_bytes()[: last.end - 1])
    check_serves(folder, store.story.state_after(last.lsn - 1), store.story)


def test_a_scribbled_tail_is_cut_and_the_server_goes_on(store: Store, folder: Path) -> None:
    record = store.last_records[-3]
    path = folder / "wal" / store.last_name
    content = path.read_bytes()
    noise = random.Random(3).randbytes(len(content) - record.position)
    path.write_bytes(content[: record.position] + noise)
    check_serves(folder, store.story.state_after(record.lsn - 1), store.story)


def test_a_stream_whose_only_append_was_torn_shows_nothing_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    steps = [Step("PUT", "only", Kind.TEXT, b""), Step("POST", "only", Kind.TEXT, b"torn " * 300)]
    with running_server(folder, *FLAGS) as server:
        tell(server, [[step] for step in steps])
    (path,) = (folder / "wal").glob("*.wal")
    record = parse_records(path.read_bytes())[-1]
    for keep in (30, 700, 1400):
        content = path.read_bytes()
        torn = content[: record.position + keep].ljust(len(content), b"\0")
        copy = shutil.copytree(folder, tmp_path / f"torn at {keep}")
        (copy / "wal" / path.name).write_bytes(torn)
        check_serves(copy, steps[0].change({}), Story(steps))


def test_a_flipped_bit_in_an_acknowledged_record_refuses_the_start(
    store: Store, folder: Path
) -> None:
    name = segment_names(store.files)[0]
    path = folder / "wal" / name
    record = parse_records(path.read_bytes())[3]
    path.write_bytes(flip(path.read_bytes(), record.end - 1, 0))
    check_refused_start(folder, str(path), f"byte {record.position}")


def test_a_flipped_bit_in_the_last_record_of_a_clean_stop_refuses_the_start(
    store: Store, folder: Path
) -> None:
    server = ServerProcess(folder, *FLAGS, *NO_OWN_STREAMS)
    tell(server, [[Step("PUT", "last", Kind.TEXT, b"the last words")]])
    assert server.stop() == 0
    path = folder / "wal" / segment_names(load_wal(folder / "wal"))[-1]
    written, mark = parse_records(path.read_bytes())
    path.write_bytes(flip(path.read_bytes(), written.end - 1, 0))
    check_refused_start(folder, str(path), f"byte {written.position}")
    assert mark.lsn == written.lsn + 1


def test_a_missing_segment_refuses_the_start(store: Store, folder: Path) -> None:
    (folder / "wal" / segment_names(store.files)[1]).unlink()
    check_refused_start(folder, str(folder / "wal"), "byte")


def test_a_segment_of_another_store_refuses_the_start(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    leave_reference_store(other, *FLAGS)
    name = segment_names(store.files)[1]
    shutil.copy(other / "wal" / name, folder / "wal" / name)
    check_refused_start(folder, str(folder / "wal" / name), store.store_id)


def test_a_record_inside_a_message_of_a_recycled_file_proves_nothing(tmp_path: Path) -> None:
    """A stream that carries log bytes (of another store, or made up) must not stop a restart."""
    folder = tmp_path / "data"
    flags = ("--wal-segment-bytes", "8192", "--checkpoint-wal-bytes", "8192")
    other = Header(1, 1, 0x0123456789ABCDEF, "0" * 32)
    looks_real = build_record(other, 0, 10**9, b"a record of some other log")
    steps = [Step("PUT", "backup", Kind.BINARY, b"")]
    server = ServerProcess(folder, *flags)
    try:
        tell(server, [[step] for step in steps])
        for _ in range(400):
            step = Step("POST", "backup", Kind.BINARY, b"some log: " + looks_real * 10)
            tell(server, [[step]])
            steps.append(step)
            if len(steps) > 30 and holds_foreign_record_behind_tail(folder, other):
                break
        else:
            raise AssertionError("no file was recycled")
    finally:
        server.kill()
    story = Story(steps)
    with running_server(folder, *flags) as server:
        client = server.client()
        try:
            check_state(client, story.state_after(len(steps)), story.names)
        finally:
            client.close()


def holds_foreign_record_behind_tail(folder: Path, other: Header) -> bool:
    files = load_wal(folder / "wal")
    content = files[segment_names(files)[-1]]
    records = parse_records(content)
    behind = records[-1].end if records else 64
    return any(record.lsn == 10**9 for record in scan_records(other, content, behind))


# --- checkpoints -----------------------------------------------------------------------------


def encode_first_checkpoint(store: Store, lsn: int) -> list[bytes]:
    """The whole state after record `lsn`, made from the log as the server would."""
    machine = StateMachine(SHARDS_DEFAULT)
    for payload in store.payloads[:lsn]:
        machine.apply(decode_command(payload))
    capture = machine.changes.begin_capture(lsn, take_records(machine))
    capture.take_some(len(capture.pending))
    changes, hot = capture.encode()
    return list(encode_checkpoint(store.store_id, changes, hot))


def put_checkpoint(store: Store, folder: Path, lsn: int) -> Path:
    path = folder / "checkpoints" / checkpoint_name(lsn)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(encode_first_checkpoint(store, lsn)))
    return path


def damage(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(flip(content, len(content) // 2, 5))


def remove_segments_below(store: Store, folder: Path, lsn: int) -> None:
    """What retiring does: files that hold nothing above `lsn` go."""
    for name in segment_names(store.files)[:-1]:
        if parse_records(store.files[name])[-1].lsn <= lsn:
            (folder / "wal" / name).unlink()


def last_lsn(store: Store, segment: int) -> int:
    name = segment_names(store.files)[segment]
    return parse_records(store.files[name])[-1].lsn


def test_a_checkpoint_and_the_log_behind_it_give_the_whole_state(
    store: Store, folder: Path
) -> None:
    lsn = last_lsn(store, 1) + 2
    put_checkpoint(store, folder, lsn)
    remove_segments_below(store, folder, lsn)
    check_serves(folder, store.story.state_after(len(store.payloads)), store.story)


def test_a_damaged_checkpoint_does_no_harm_while_an_older_one_is_there(
    store: Store, folder: Path
) -> None:
    put_checkpoint(store, folder, last_lsn(store, 0))
    damage(put_checkpoint(store, folder, last_lsn(store, 1)))
    remove_segments_below(store, folder, last_lsn(store, 0))
    check_serves(folder, store.story.state_after(len(store.payloads)), store.story)


def test_a_damaged_checkpoint_does_no_harm_while_the_whole_log_is_there(
    store: Store, folder: Path
) -> None:
    damage(put_checkpoint(store, folder, last_lsn(store, 1)))
    check_serves(folder, store.story.state_after(len(store.payloads)), store.story)


def test_a_damaged_checkpoint_whose_log_is_gone_refuses_the_start(
    store: Store, folder: Path
) -> None:
    path = put_checkpoint(store, folder, last_lsn(store, 1))
    damage(path)
    remove_segments_below(store, folder, last_lsn(store, 1))
    check_refused_start(folder, str(path), "byte")


def test_an_older_checkpoint_that_the_log_does_not_reach_refuses_the_start(
    store: Store, folder: Path
) -> None:
    put_checkpoint(store, folder, last_lsn(store, 0) - 1)
    damage(put_checkpoint(store, folder, last_lsn(store, 1)))
    remove_segments_below(store, folder, last_lsn(store, 1))
    check_refused_start(folder, str(folder), "byte")


def test_a_half_written_checkpoint_is_swept_away(store: Store, folder: Path) -> None:
    path = put_checkpoint(store, folder, last_lsn(store, 1))
    half = path.rename(path.with_name(path.name + ".new"))
    half.write_bytes(half.read_bytes()[:100])
    check_serves(folder, store.story.state_after(len(store.payloads)), store.story)
    assert not half.exists()


def test_a_checkpoint_ahead_of_a_torn_log_goes_on_behind_the_checkpoint(
    store: Store, folder: Path
) -> None:
    """The log's last records are lost, but the checkpoint holds them."""
    put_checkpoint(store, folder, len(store.payloads))
    record = store.last_records[1]
    path = folder / "wal" / store.last_name
    content = path.read_bytes()
    path.write_bytes(content[: record.position].ljust(len(content), b"\0"))
    check_serves(folder, store.story.state_after(len(store.payloads)), store.story)


def boot(store: Store, lsn: int, checkpoint: bytes) -> int:
    """Recovers in memory from a checkpoint and the last segment alone; the last lsn."""
    disk = SimulatedDisk()
    disk.put(CHECKPOINTS, {checkpoint_name(lsn): checkpoint})
    disk.put(WAL, {store.last_name: store.files[store.last_name]})
    loaded = load_checkpoint(disk, CHECKPOINTS, store.store_id, 0)
    assert loaded is not None
    return recover_log(disk, WAL, store.store_id, loaded.lsn, lambda *_: None).next_lsn - 1


def test_every_damage_to_a_checkpoint_that_is_needed_is_found(store: Store) -> None:
    lsn = store.last_records[2].lsn
    blocks = encode_first_checkpoint(store, lsn)
    assert boot(store, lsn, b"".join(blocks)) == len(store.payloads)
    for damaged in damaged_contents(blocks, random.Random(5)):
        with pytest.raises(DamagedData):
            boot(store, lsn, damaged)


def test_a_checkpoint_of_another_store_is_refused(store: Store) -> None:
    lsn = store.last_records[2].lsn
    other = replace(store, store_id="f" * 32)
    with pytest.raises(DamagedData):
        boot(store, lsn, b"".join(encode_first_checkpoint(other, lsn)))


def damaged_contents(blocks: list[bytes], dice: random.Random) -> Iterator[bytes]:
    """A flipped bit in each header byte and in the payload; cut before; left out; each block."""
    content, begin = b"".join(blocks), 0
    for block in blocks:
        end = begin + len(block)
        for place in (*range(begin, begin + BLOCK_HEADER_BYTES), dice.randrange(begin, end)):
            yield flip(content, place, dice.randrange(8))
        yield content[:begin]
        yield content[:begin] + content[end:]
        begin = end


def test_a_stored_checkpoint_replaces_the_older_ones(store: Store, folder: Path) -> None:
    disk, checkpoints = OsDisk(), str(folder / "checkpoints")
    for lsn in (3, 9):
        store_checkpoint(disk, checkpoints, lsn, encode_first_checkpoint(store, lsn))
    assert disk.list(checkpoints) == [checkpoint_name(9)]
    check_serves(folder, store.story.state_after(len(store.payloads)), store.story)
