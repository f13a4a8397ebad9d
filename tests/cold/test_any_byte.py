"""One wrong byte, anywhere in a data folder: verify names it, or a start does not read it.

A folder of a server that was killed holds every kind of file. Byte by byte, drawn with a seed, one
is changed; where verify finds nothing, a start has to reach the very same state and content.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.config import Config
from millstream.errors import FolderInUse, ObjectMissing, StartupError
from millstream.formats.images import HotContent
from millstream.journal.folder import DataFolder
from millstream.offline.replica import settle
from millstream.offline.verify import Verified, verify
from millstream.recover import recover
from millstream.tier.identity import claim_store
from millstream.tier.object_kinds import snapshot_name
from millstream.tier.objects import ObjectStore, cold_settings
from millstream.tier.segments import SegmentReader
from tests.cold.backup_world import QUIET, Writer, run_command, serving
from tests.crash.wal_files import RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, parse_records
from tests.support.server import NO_OWN_STREAMS
from tests.unit.journal.log_files import folder_journal

FLAGS = (*QUIET, *NO_OWN_STREAMS, "--shards", "2", "--wal-segment-bytes", "4096")
SHARDS = 2
FLIPS = 12  # in every file
SECONDS_MAX = 40.0


def write_a_bit_of_everything(folder: Path) -> None:
    """Killed, so that the log, the checkpoint and the catalog all hold something of their own."""
    writer = Writer()
    with serving(writer, folder, *FLAGS, "--checkpoint-wal-bytes", "8KiB") as server:
        writer.make_bucket()
        for number in range(6):
            writer.create(f"s{number}", b"first of %d;" % number * 30)
            writer.append(f"s{number}", b"second of %d;" % number * 30)
        for number in range(4):
            writer.flush(f"s{number}")
        writer.snapshot("s3", b"everything so far")
        writer.fork("s3", "fork")
        writer.fork("s0", "other")
        writer.create("gone", b"soon")
        writer.flush("gone")
        writer.delete("gone")
        subscription = {"type": "pull-wake", "wake_stream": "wakes", "pattern": "bkt1/**"}
        reply = writer.client.put(
            "/v1/stream/__ds/subscriptions/sub",
            str(subscription).replace("'", '"').encode(),
            content_type="application/json",
        )
        assert reply.status in (200, 201), reply
        deadline = time.monotonic() + 20
        while not list((folder / "checkpoints").glob("*.checkpoint")):
            writer.append("s5", b"more;" * 100)
            assert time.monotonic() < deadline
        time.sleep(0.3)  # the catalog takes the checkpoint in
        for number in range(6):
            producer = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
            data = b"behind the checkpoint;" * 20
            reply = writer.client.post(
                f"/bkt1/s{number}", data, headers=producer, content_type="text/plain"
            )
            assert reply.status == 200, reply
        writer.fork("s1", "late")
        server.kill()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("any byte") / "data"
    write_a_bit_of_everything(folder)
    return folder


def config_of(folder: Path) -> Config:
    return Config(data_dir=folder, shards=SHARDS)


def verified(folder: Path) -> Verified:
    return verify(config_of(folder), 20, lambda what, done, total: None)


def content_of(hot: HotContent) -> tuple[int, bytes, list[int]]:
    data, message_ends = b"", list[int]()
    for block, encoded, _ in hot.blocks:
        ends = array("I", encoded) if encoded else [len(block)]
        message_ends += [len(data) + end for end in ends]
        data += block
    return hot.stream_id, data, message_ends


def started(folder: Path) -> dict[str, Any]:
    """All that a start on this folder would serve. Raises StartupError when it does not start.

    The list of garbage is no part of it: what is missing there is found by looking at the store.
    """
    config = config_of(folder)
    data_folder = DataFolder(folder)
    objects = ObjectStore(cold_settings(config))
    try:
        claim_store(objects, data_folder.store_id)
        recovered = recover(config, data_folder, folder_journal(data_folder))
        catalog = recovered.catalog
        reader = SegmentReader(objects, 0)
        hot = settle(recovered.machine, catalog, recovered.lsn)
        segments = [use.segment for use in catalog.segments()]
        try:
            return {
                "lsn": recovered.lsn,
                "streams": list(catalog.stream_rows()),
                "records": list(catalog.records("")),
                "hot": sorted(map(content_of, hot)),
                "segments": segments,
                "runs": [catalog.runs_in(segment) for segment in segments],
                "cold": [reader.load_runs(s, catalog.runs_in(s)) for s in segments],
                "snapshots": [objects.get(snapshot_name(name)) for name in snapshot_names(folder)],
            }
        finally:
            catalog.close()
    finally:
        data_folder.close()


def snapshot_names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "cold" / "snapshots").iterdir())


def files_of(folder: Path) -> list[Path]:
    """Without those that hold nothing yet, such as a log file that is prepared for later."""
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.read_bytes().strip(b"\0"))


def places(path: Path, dice: random.Random) -> Iterator[int]:
    """Every region of a log file, and bytes that mean something of any file."""
    data = path.read_bytes()
    if path.suffix == ".wal":
        for start, end in ((0, 8), (8, 16), (16, 24), (24, 32), (32, 48), (48, 52)):
            yield dice.randrange(start, end)
        records = parse_records(data)
        for record in dice.sample(records, min(2, len(records))) + records[-1:]:
            for start, end in ((0, 4), (4, 8), (8, 12), (12, 16), (16, 24)):
                yield record.position + dice.randrange(start, end)
            yield dice.randrange(record.position + RECORD_HEADER_BYTES, record.end)
        return
    used = [index for index, byte in enumerate(data) if byte]
    for _ in range(FLIPS // 2):
        yield dice.choice(used)
        yield dice.randrange(len(data))
    if path.suffix == ".sqlite":
        yield from (dice.randrange(100) for _ in range(FLIPS))


def test_a_wrong_byte_is_named_or_not_read(folder: Path, tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED", time.time_ns() % 1_000_000))
    print(f"SEED={seed}")
    dice = random.Random(seed)
    before = started(shutil.copytree(folder, tmp_path / "original"))
    assert verified(folder).differences == []
    kinds = {path.parent.name if path.parent != folder else path.name for path in files_of(folder)}
    assert {"wal", "checkpoints", "catalog", "snapshots", "cold", "millstream.json"} <= kinds
    chosen = [(path, place) for path in files_of(folder) for place in places(path, dice)]
    dice.shuffle(chosen)
    named = 0
    ends_at = time.monotonic() + SECONDS_MAX
    for number, (path, place) in enumerate(chosen):
        if time.monotonic() > ends_at:
            break
        wrong = dice.randrange(1, 256)
        original = path.read_bytes()
        changed = bytearray(original)
        changed[place] ^= wrong
        what = f"seed {seed}, {path.relative_to(folder)} at byte {place} ^ {wrong:#x}"
        try:
            path.write_bytes(changed)
            files = {each: each.stat().st_mtime_ns for each in files_of(folder)}
            found = verified(folder)
            assert files == {each: each.stat().st_mtime_ns for each in files_of(folder)}, what
            if found.differences:
                named += 1
                continue
            copy = shutil.copytree(folder, tmp_path / f"copy {number}")
            assert started(copy) == before, f"{what}: verify finds nothing, the state is another"
            shutil.rmtree(copy)
        except (StartupError, ObjectMissing) as error:
            raise AssertionError(f"{what}: {error}") from error
        finally:
            path.write_bytes(original)
    print(f"{named} of {number + 1} wrong bytes were named")
    assert named > number // 4, "most bytes mean something"


def test_a_wrong_byte_in_the_used_part_of_the_log_is_named_with_its_place(folder: Path) -> None:
    """Each region of each record, the last batch too, where a start would cut it off."""
    dice = random.Random(4)
    for path in sorted((folder / "wal").glob("*.wal")):
        original = path.read_bytes()
        records = parse_records(original)
        places = [(0, dice.randrange(SEGMENT_HEADER_BYTES - 12))]
        for record in [*records[:2], *records[-2:]]:
            places += [
                (record.position, record.position + field + dice.randrange(size))
                for field, size in ((0, 4), (4, 4), (8, 4), (12, 4), (16, 8))
            ]
            if record.end > record.position + RECORD_HEADER_BYTES:
                places.append((record.position, record.end - 1))
        for named, place in places:
            changed = bytearray(original)
            changed[place] ^= 0x10
            try:
                path.write_bytes(changed)
                differences = verified(folder).differences
            finally:
                path.write_bytes(original)
            expected = f"{path} is damaged at byte {named}: "
            assert any(expected in each for each in differences), (path.name, place, differences)


def test_verify_says_where_and_ends_with_one(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "data")
    path = sorted((copy / "wal").glob("*.wal"))[0]
    record = parse_records(path.read_bytes())[0]
    changed = bytearray(path.read_bytes())
    changed[record.end - 1] ^= 1
    path.write_bytes(changed)
    code, output = run_command("verify", "--data-dir", str(copy))
    assert code == 1, output
    assert f"{path} is damaged at byte {record.position}: expected record {record.lsn}" in output
    assert "Traceback" not in output


def test_what_is_only_in_the_log_is_counted(tmp_path: Path) -> None:
    writer = Writer()
    with serving(writer, tmp_path / "data", *FLAGS) as server:
        writer.make_bucket()
        for number in range(3):
            writer.create(f"s{number}", b"one")
            writer.append(f"s{number}", b"two")
        server.kill()
    code, output = run_command("verify", "--data-dir", str(tmp_path / "data"))
    assert code == 0, output
    assert "sound: 3 streams with 6 messages, 7 records in the log, 0 segments" in output


def test_beside_a_server_verify_says_what_to_do(tmp_path: Path) -> None:
    with serving(Writer(), tmp_path / "data", *FLAGS), pytest.raises(FolderInUse):
        verified(tmp_path / "data")
