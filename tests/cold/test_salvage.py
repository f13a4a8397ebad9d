"""What is readable of a damaged folder is in the new one, and all else is listed."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import re
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from millstream.clock import SystemClock
from millstream.config import Config
from millstream.errors import FolderInUse, StartupError
from millstream.journal.folder import DataFolder, ReadFolder, load_identity
from millstream.lake.live import load_stopped
from millstream.lake.query import Answer, run_query
from millstream.offline.salvage import salvage
from millstream.offline.salvage_report import Report
from millstream.offline.verify import verify
from millstream.recover import recover
from millstream.state.commands import CreateBucket, RevokeKey, encode_command
from millstream.tier.objects import ObjectStore, cold_settings
from tests.cold.backup_world import EAGER, QUIET, Writer, run_command, serving
from tests.cold.test_any_byte import files_of, write_a_bit_of_everything
from tests.crash.stories import check_state, leave_reference_store
from tests.crash.wal_files import parse_records
from tests.support.keys import key_id, make_key_offline
from tests.support.server import running_server
from tests.unit.journal.log_files import folder_journal

SHARDS = 2
SECONDS_MAX = 60.0


def config_of(folder: Path) -> Config:
    return Config(data_dir=folder, shards=SHARDS)


def quiet(what: str, done: int, total: int) -> None:
    pass


class Content(NamedTuple):
    """A stream as its readers see it: places as (ordinal, byte), then the messages."""

    first: str
    next: str
    messages: dict[int, bytes]


def contents(folder: Path, shards: int = SHARDS) -> dict[str, Content]:
    config = Config(data_dir=folder, shards=shards)
    read = ReadFolder(folder)
    try:
        read.store_id = load_identity(folder) or ""
        live = load_stopped(config, read, SystemClock().now_ms())
    finally:
        read.close()
    rows: list[tuple[str, int, bytes]] = []

    def show(answer: Answer) -> None:
        answer.columns()
        for batch in answer.batches(1000):
            rows.extend(batch)

    sql = "select stream, ordinal, data from messages"
    run_query(lambda: live, ObjectStore(cold_settings(config)), sql, show)
    found = {
        stream.stream: Content(
            "_".join(map(str, stream.image.first)), "_".join(map(str, stream.image.tail)), {}
        )
        for stream in live.streams
    }
    for stream, ordinal, data in rows:
        found[stream].messages[ordinal] = data
    return found


def salvaged(folder: Path, out: Path) -> Report:
    """The report; the old folder is as it was, the new one is sound."""
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files_of(folder)}
    report = salvage(config_of(folder), out, quiet)
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files_of(folder)}
    assert before == after, "the damaged folder was changed"
    found = verify(config_of(out), 20, quiet)
    assert found.differences == []
    assert (found.streams, found.messages) == (report.streams, report.messages)
    json.loads(report.as_json())
    return report


def check_explained(before: dict[str, Content], after: dict[str, Content], report: Report) -> None:
    """Each message is where it was, or it is listed; nothing is anywhere else."""
    lost = {
        (loss.stream.removeprefix("_default/"), loss.first[0], loss.end[0]) for loss in report.lost
    }
    behind = {each.stream for each in report.behind}
    unlisted = 0
    assert after.keys() <= before.keys()
    for stream, content in before.items():
        if stream not in after:
            assert report.behind or report.lost_otherwise, stream
            continue
        for ordinal, data in content.messages.items():
            if ordinal in after[stream].messages:
                assert after[stream].messages[ordinal] == data, (stream, ordinal)
                continue
            is_listed = any(s == stream and a <= ordinal < b for s, a, b in lost)
            unlisted += not is_listed and stream not in behind
        assert after[stream].messages.keys() <= content.messages.keys(), stream
        kept = sorted(after[stream].messages)
        assert kept == list(range(kept[0], kept[-1] + 1)) if kept else True, "joined over a hole"
    assert unlisted <= unreadable_records(report), "messages are missing that are not listed"


def unreadable_records(report: Report) -> float:
    """Nobody can tell which streams they were about; each held one message at most."""
    found = [re.match(r"records (\d+) (to (\d+)|on) of", text) for text in report.lost_otherwise]
    return sum(
        math.inf if each[3] is None else int(each[3]) - int(each[1]) + 1
        for each in found
        if each is not None
    )


def flip(path: Path, position: int, bit: int = 0x10) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= bit
    path.write_bytes(data)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("salvage") / "data"
    write_a_bit_of_everything(folder)
    return folder


@pytest.fixture(scope="module")
def before(original: Path) -> dict[str, Content]:
    return contents(original)


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "damaged")


def test_a_sound_folder_is_brought_along_whole(
    folder: Path, tmp_path: Path, before: dict[str, Content]
) -> None:
    code, output = run_command("salvage", str(folder), str(tmp_path / "out"))
    assert code == 0, output
    assert "nothing was lost" in output
    assert contents(tmp_path / "out") == before


def test_the_log_counts_up_to_its_first_damage(tmp_path: Path) -> None:
    """Record n is request n, so the state before the damage is known exactly."""
    flags = ("--wal-segment-bytes", "4096")
    source = tmp_path / "source"
    story = leave_reference_store(source, *flags)
    dice = random.Random(5)
    paths = sorted((source / "wal").glob("*.wal"))
    for number, path in enumerate(paths):
        record = dice.choice(parse_records(path.read_bytes()))
        folder = shutil.copytree(source, tmp_path / f"damaged {number}")
        flip(folder / "wal" / path.name, dice.randrange(record.position, record.end))
        out = tmp_path / f"out {number}"
        code, output = run_command(
            "salvage", str(folder), str(out), "--json", str(tmp_path / "report.json")
        )
        assert code == 3, output
        assert f"lost: records {record.lsn} " in output
        report = json.loads((tmp_path / "report.json").read_bytes())
        place = {"file": str(folder / "wal" / path.name), "position": record.position}
        assert place.items() <= report["damaged"][0].items()
        assert report["lsn"] == record.lsn - 1
        assert [each["lsn"] for each in report["behind"]] == list(
            range(record.lsn + 1, len(story.steps) + 1)
        )
        code, output = run_command("verify", "--data-dir", str(out))
        assert code == 0, output
        with running_server(out, *flags) as server:
            client = server.client()
            check_state(client, story.state_after(record.lsn - 1), story.names)
            client.close()


def test_what_lies_behind_the_damage_is_kept_beside_the_store(
    folder: Path, tmp_path: Path, before: dict[str, Content]
) -> None:
    path = sorted((folder / "wal").glob("*.wal"))[-1]
    record = parse_records(path.read_bytes())[0]
    flip(path, record.end - 1)
    report = salvaged(folder, tmp_path / "out")
    check_explained(before, contents(tmp_path / "out"), report)
    assert report.behind
    assert report.leftovers is not None
    lines = [json.loads(line) for line in Path(report.leftovers).read_text().splitlines()]
    messages = [each for each in report.behind if each.messages]
    assert [line["position"] for line in lines] == [each.position for each in messages]
    assert all(line["messages"] == ["behind the checkpoint;" * 20] for line in lines)


@pytest.mark.parametrize("how", ["flipped", "cut", "missing"])
def test_a_stream_with_a_damaged_segment_begins_behind_it(
    folder: Path, tmp_path: Path, before: dict[str, Content], how: str
) -> None:
    dice = random.Random(3)
    for path in sorted((folder / "cold" / "segments").rglob("*.parquet")):
        copy = shutil.copytree(folder, tmp_path / f"copy {path.name}")
        damaged = copy / path.relative_to(folder)
        if how == "missing":
            damaged.unlink()
        elif how == "cut":
            damaged.write_bytes(damaged.read_bytes()[:-9])
        else:
            flip(damaged, dice.randrange(4, 60))
        report = salvaged(copy, tmp_path / f"out {path.name}")
        after = contents(tmp_path / f"out {path.name}")
        check_explained(before, after, report)
        assert not report.behind
        name = str(path.relative_to(folder / "cold"))
        assert all(name in loss.reason for loss in report.lost)
        for stream in {loss.stream for loss in report.lost}:
            assert after[stream].next == before[stream].next, "the end stays where it was"
        unharmed = before.keys() - {loss.stream for loss in report.lost}
        assert {s: after[s].messages for s in unharmed} == {s: before[s].messages for s in unharmed}


def test_readers_of_what_is_lost_are_told_and_writers_go_on(tmp_path: Path) -> None:
    writer = Writer()
    with serving(writer, tmp_path / "data", *EAGER):
        writer.make_bucket()
        writer.create("s")
        for number in range(4):
            writer.append("s", b"message %d;" % number)
            writer.flush("s")
    segments = sorted((tmp_path / "data" / "cold" / "segments").rglob("*.parquet"))
    flip(segments[1], 20)
    code, output = run_command("salvage", str(tmp_path / "data"), str(tmp_path / "out"))
    assert code == 3, output
    assert "lost: bkt1/s (stream" in output
    assert "messages 0 to 1 (2), bytes 0 to 20 (20)" in output
    lines = (tmp_path / "out" / "leftovers.jsonl").read_text().splitlines()
    leftovers = [json.loads(line) for line in lines]
    assert [(line["first_ordinal"], line["messages"]) for line in leftovers] == [
        (0, ["message 0;"])
    ]
    with serving(writer, tmp_path / "out", *EAGER):
        reply = writer.client.get("/bkt1/s?offset=-1")
        assert reply.status == 410
        assert reply.headers["stream-earliest-offset"] == f"{2:016d}_{20:016d}"
        assert writer.read("s") == b"message 2;message 3;"
        writer.append("s", b"message 4;")
        assert writer.read("s") == b"message 2;message 3;message 4;"


@pytest.mark.parametrize("name", ["shard-0000.sqlite", "shard-0001.sqlite", "root.sqlite"])
def test_a_damaged_catalog_is_taken_from_its_copy_without_loss(tmp_path: Path, name: str) -> None:
    """After a clean stop, and with the whole log long gone."""
    writer = Writer()
    with serving(writer, tmp_path / "data", *EAGER, "--wal-segment-bytes", "4096"):
        writer.make_bucket()
        for number in range(5):
            writer.create(f"s{number}", b"flushed;" * 100)
            writer.flush(f"s{number}")
            writer.append(f"s{number}", b"not flushed;" * 100)
    before = contents(tmp_path / "data")
    path = tmp_path / "data" / "catalog" / name
    path.write_bytes(b"\xff" * path.stat().st_size)
    for copy in (tmp_path / "data" / "cold" / "catalog").glob("*.zst"):
        if name not in copy.name:  # those files are sound in the folder
            copy.write_bytes(b"nonsense")
    report = salvaged(tmp_path / "data", tmp_path / "out")
    assert report.is_complete, report
    assert "the copy of the catalog" in report.base
    assert any(name in damage.problem for damage in report.damaged)
    assert contents(tmp_path / "out") == before


def test_a_damaged_checkpoint_costs_what_was_in_no_segment(
    folder: Path, tmp_path: Path, before: dict[str, Content]
) -> None:
    [checkpoint] = (folder / "checkpoints").glob("*.checkpoint")
    flip(checkpoint, checkpoint.stat().st_size // 2)
    report = salvaged(folder, tmp_path / "out")
    after = contents(tmp_path / "out")
    check_explained(before, after, report)
    if report.base.startswith("the log from its first record"):
        assert after == before
    else:
        assert report.lost or report.behind


def test_a_checkpoint_is_not_needed_while_the_whole_log_is_there(tmp_path: Path) -> None:
    writer = Writer()
    flags = (*QUIET, "--shards", "2")
    with serving(writer, tmp_path / "data", *flags) as server:
        writer.make_bucket()
        writer.create("s", b"x" * 1000)
        writer.append("s", b"y")
        writer.client.post("/__millstream/flush")
        writer.append("s", b"z")
        server.kill()
    before = contents(tmp_path / "data")
    [checkpoint] = (tmp_path / "data" / "checkpoints").glob("*.checkpoint")
    checkpoint.unlink()
    for path in (tmp_path / "data" / "catalog").iterdir():
        path.write_bytes(b"nonsense" * 1000)
    report = salvaged(tmp_path / "data", tmp_path / "out")
    assert report.base == "the log from its first record on"
    assert report.is_complete
    assert contents(tmp_path / "out") == before


def test_a_lost_snapshot_is_listed_and_its_stream_kept(
    folder: Path, tmp_path: Path, before: dict[str, Content]
) -> None:
    [snapshot] = (folder / "cold" / "snapshots").iterdir()
    snapshot.unlink()
    report = salvaged(folder, tmp_path / "out")
    assert contents(tmp_path / "out") == before
    assert len(report.lost_otherwise) == 2  # of the stream, and of its fork
    assert all(snapshot.name in text for text in report.lost_otherwise)


def test_lost_headers_and_identity_cost_nothing(
    folder: Path, tmp_path: Path, before: dict[str, Content]
) -> None:
    """What they said is told by the rest."""
    for path in (folder / "wal").glob("*.wal"):
        if len(parse_records(path.read_bytes())) > 1:
            path.write_bytes(bytes(64) + path.read_bytes()[64:])
            break
    (folder / "cold" / "millstream.json").unlink()
    flip(folder / "millstream.json", 3)
    report = salvaged(folder, tmp_path / "out")
    assert contents(tmp_path / "out") == before
    assert report.is_complete
    assert len(report.damaged) >= 2


def lie_in_the_log(folder: Path) -> None:
    """No header of the log is readable."""
    for path in (folder / "wal").glob("*.wal"):
        flip(path, 40)


def lie_in_the_catalog(folder: Path) -> None:
    with contextlib.closing(sqlite3.connect(folder / "catalog" / "root.sqlite")) as root, root:
        root.execute("UPDATE meta SET store_id = '0' || substr(store_id, 2)")


def lie_in_the_cold_store(folder: Path) -> None:
    (folder / "cold" / "millstream.json").write_text('{"format": 1, "store_id": "another"}')


@pytest.mark.parametrize(
    "wrong",
    [
        ("segments/0000/not-a-segment.parquet", 1, 1),
        ("segments/0000/1795001335778-e6273f40.parquet", 1, 10**12),
    ],
    ids=["name", "age"],
)
def test_wrong_rows_of_garbage_are_listed_and_left_out(
    folder: Path, tmp_path: Path, before: dict[str, Content], wrong: tuple[str, int, int]
) -> None:
    with contextlib.closing(sqlite3.connect(folder / "catalog" / "shard-0000.sqlite")) as shard:
        shard.execute("INSERT INTO garbage (name, size, since_lsn) VALUES (?, ?, ?)", wrong)
        shard.commit()
    report = salvaged(folder, tmp_path / "out")
    assert contents(tmp_path / "out") == before
    assert [each.file for each in report.damaged] == [wrong[0]]


@pytest.mark.parametrize("other", [lie_in_the_log, lie_in_the_catalog, lie_in_the_cold_store])
@pytest.mark.parametrize("lie", ["another store", "another format"])
def test_a_wrong_identity_is_outvoted(
    folder: Path,
    tmp_path: Path,
    before: dict[str, Content],
    lie: str,
    other: Callable[[Path], None],
) -> None:
    identity = json.loads((folder / "millstream.json").read_bytes())
    if lie == "another store":
        identity["store_id"] = identity["store_id"][::-1]
    else:
        identity["format"] += 1
    (folder / "millstream.json").write_text(json.dumps(identity))
    other(folder)
    if lie == "another format" and other is lie_in_the_log:
        code, output = run_command("salvage", str(folder), str(tmp_path / "out"))
        assert code == 2, output  # nothing of it speaks for this version
        assert "run a newer Millstream" in output
        return
    report = salvaged(folder, tmp_path / "out")
    assert contents(tmp_path / "out") == before
    assert any("millstream.json" in each.file for each in report.damaged), report


def test_any_wrong_bytes_leave_a_sound_folder_and_a_complete_list(
    original: Path, tmp_path: Path, before: dict[str, Content]
) -> None:
    seed = int(os.environ.get("SEED", time.time_ns() % 1_000_000))
    print(f"SEED={seed}")
    dice = random.Random(seed)
    ends_at = time.monotonic() + SECONDS_MAX
    for number in range(30):
        if time.monotonic() > ends_at:
            break
        folder = shutil.copytree(original, tmp_path / f"damaged {number}")
        copies = folder / "cold" / "catalog"  # the last resort: one of two is enough
        chosen = dice.choices([p for p in files_of(folder) if p.parent != copies], k=2)
        what = f"seed {seed}, round {number}"
        for path in chosen:
            used = [index for index, byte in enumerate(path.read_bytes()) if byte]
            place, bit = dice.choice(used), dice.randrange(1, 256)
            what += f", {path.relative_to(folder)} at {place} ^ {bit:#x}"
            flip(path, place, bit)
        try:
            report = salvaged(folder, tmp_path / f"out {number}")
            check_explained(before, contents(tmp_path / f"out {number}"), report)
        except (AssertionError, StartupError) as error:
            raise AssertionError(f"{what}: {error}") from error
        shutil.rmtree(folder)
        shutil.rmtree(tmp_path / f"out {number}")


def test_a_cold_store_elsewhere_is_used_as_it_is(tmp_path: Path) -> None:
    """Nothing is copied, nothing of it is changed, and copies of the catalog stay older."""
    cold = ("--cold", f"fs:{tmp_path / 'cold'}")
    writer = Writer()
    with serving(writer, tmp_path / "data", *EAGER, *cold):
        writer.make_bucket()
        for name in ("a", "b"):
            writer.create(name, b"first;")
            writer.flush(name)
            writer.append(name, b"second;")
            writer.flush(name)
    names = {path: path.stat().st_mtime_ns for path in files_of(tmp_path / "cold")}
    out = tmp_path / "out"
    code, output = run_command("salvage", str(tmp_path / "data"), str(out), *cold)
    assert code == 0, output
    assert {path: path.stat().st_mtime_ns for path in files_of(tmp_path / "cold")} == names
    assert not (out / "cold").exists()
    assert cold[1] in output
    with serving(writer, out, *EAGER, *cold):
        writer.check_all()
        writer.append("a", b"third;")
    code, output = run_command("verify", "--data-dir", str(out), *cold)
    assert code == 0, output


def test_when_nothing_can_be_built_on_nothing_is_left(folder: Path, tmp_path: Path) -> None:
    for path in [*(folder / "catalog").iterdir(), *(folder / "cold" / "catalog").iterdir()]:
        path.write_bytes(b"nonsense" * 100)
    for path in (folder / "wal").glob("*.wal"):
        path.write_bytes(b"nonsense" * 100)
    code, output = run_command("salvage", str(folder), str(tmp_path / "out"))
    assert code == 2, output
    assert "there is nothing to build on" in output
    assert "Traceback" not in output
    assert not (tmp_path / "out").exists()


def test_where_it_must_not_write_it_does_not_begin(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for out in (folder, folder / "inside", tmp_path, tmp_path / "full"):
        names = sorted(tmp_path.rglob("*"))
        code, output = run_command("salvage", str(folder), str(out))
        assert code == 2, output
        assert "Traceback" not in output
        assert sorted(tmp_path.rglob("*")) == names
    with serving(Writer(), tmp_path / "data", *EAGER), pytest.raises(FolderInUse):
        salvage(config_of(tmp_path / "data"), tmp_path / "out", quiet)


def test_a_revocation_behind_the_damage_holds(tmp_path: Path) -> None:
    """What was lost before it may be anything; a key that its owner ended must not come back."""
    folder, out = tmp_path / "folder", tmp_path / "out"
    make_key_offline(folder, "admin")
    ended = make_key_offline(folder, "read:**")
    data = DataFolder(folder)
    journal = folder_journal(data)
    recover(Config(data_dir=folder), data, journal).catalog.close()
    for command in (CreateBucket(1, b"lost"), RevokeKey(1, key_id(ended))):
        journal._writer.write_batch([encode_command(command)])
    journal._writer.close()
    data.close()
    path = max((folder / "wal").glob("*.wal"))
    flip(path, parse_records(path.read_bytes())[0].position + 30)
    code, output = run_command("salvage", str(folder), str(out))
    assert code == 3, output
    data = DataFolder(out)
    recovered = recover(Config(data_dir=out), data, folder_journal(data))
    keys = recovered.machine.access
    assert [key.scopes for key in keys.by_id.values()] == [("admin",)]
    assert keys.is_used
    recovered.catalog.close()
    data.close()
