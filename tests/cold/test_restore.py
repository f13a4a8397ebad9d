"""A new machine goes on from what the cold store holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cold.backup_world import EAGER, Writer, run_command, serving
from tests.support.seaweed import SeaweedFS


def fill(writer: Writer) -> None:
    """Streams of all kinds, all their content in the cold store."""
    writer.make_bucket()
    for number in range(12):
        writer.create(f"plain{number}", b"begin %d;" % number)
        for piece in range(5):
            writer.append(f"plain{number}", b"piece %d of %d;" % (piece, number) * 20)
    writer.flush("plain0")
    writer.fork("plain0", "fork")
    writer.append("fork", b"of its own;")
    writer.snapshot("plain1", b"so far: one")
    writer.append("plain1", b"behind the snapshot;")
    writer.fork("plain1", "shares")
    writer.snapshot("plain1", b"so far: two")
    writer.create("gone", b"gone;")
    writer.flush("gone")
    writer.delete("gone")
    writer.create("empty")
    for name in writer.streams:
        writer.flush(name)


@pytest.fixture(params=["fs", "s3"])
def cold(request: pytest.FixtureRequest, tmp_path: Path, prefix: str) -> list[str]:
    if request.param == "fs":
        return ["--cold", f"fs:{tmp_path / 'cold'}"]
    seaweed: SeaweedFS = request.getfixturevalue("seaweed")
    return seaweed.flags(prefix)


def test_every_stream_reads_back_byte_for_byte_from_the_cold_store_alone(
    tmp_path: Path, cold: list[str]
) -> None:
    writer = Writer()
    with serving(writer, tmp_path / "old", *EAGER, *cold):
        fill(writer)
    new = tmp_path / "new"
    code, output = run_command("restore", "--data-dir", str(new), *cold)
    assert code == 0, output
    assert "restored 15 streams" in output
    assert "start it with: millstream serve" in output
    assert run_command("verify", "--data-dir", str(new), *cold)[0] == 0
    with serving(writer, new, *EAGER, *cold):
        writer.check_all()
        writer.append("plain3", b"life goes on;")
        writer.create("gone", b"a new one of that name;")
        writer.check_all()
    with serving(writer, new, *EAGER, *cold):
        writer.check_all()
    assert run_command("verify", "--data-dir", str(new), *cold)[0] == 0


def test_what_was_not_in_the_cold_store_is_lost_and_can_be_written_again(tmp_path: Path) -> None:
    writer = Writer()
    cold = ["--cold", f"fs:{tmp_path / 'cold'}"]
    with serving(writer, tmp_path / "old", *EAGER, *cold):
        client = writer.client
        writer.make_bucket()
        writer.create("log", b"kept;")
        writer.flush("log")
        writer.append("log", b"lost;")
        producer = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
        sent = {"headers": producer, "content_type": "text/plain"}
        assert client.post("/bkt1/log", b"lost too;", **sent).status == 200
        etag = client.get("/bkt1/log?offset=-1").headers["etag"]
        assert client.post("/bkt1/log", headers={"Stream-Closed": "true"}).status == 204
    code, output = run_command("restore", "--data-dir", str(tmp_path / "new"), *cold)
    assert code == 0
    assert "1 stream had content that was not in the cold store yet" in output
    with serving(writer, tmp_path / "new", *EAGER, *cold):
        client = writer.client
        assert client.get("/bkt1/log?offset=-1").body == b"kept;"
        # The producer tries again what it was told is there: it is no duplicate.
        assert client.post("/bkt1/log", b"gone and come back;", **sent).status == 200
        reply = client.get("/bkt1/log?offset=-1")
        assert reply.body == b"kept;gone and come back;"
        assert reply.headers["etag"].partition("-")[0] != etag.partition("-")[0]


def test_a_fork_of_what_was_lost_ends_where_its_source_ends(tmp_path: Path) -> None:
    writer = Writer()
    cold = ["--cold", f"fs:{tmp_path / 'cold'}"]
    with serving(writer, tmp_path / "old", *EAGER, *cold):
        writer.make_bucket()
        writer.create("source", b"kept;")
        writer.flush("source")
        writer.append("source", b"lost;")
        writer.fork("source", "fork")
        writer.append("fork", b"in a segment, but hanging in the air;")
        writer.flush("fork")
        writer.fork("fork", "grandchild")
    assert run_command("restore", "--data-dir", str(tmp_path / "new"), *cold)[0] == 0
    with serving(writer, tmp_path / "new", *EAGER, *cold):
        for name in ("source", "fork", "grandchild"):
            assert writer.read(name) == b"kept;"
            writer.streams[name].data = b"kept;"
        writer.append("source", b"another;")
        writer.append("fork", b"branch;")
        writer.check_all()
    assert run_command("verify", "--data-dir", str(tmp_path / "new"), *cold)[0] == 0


def test_a_damaged_copy_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    cold_folder = tmp_path / "cold"
    writer = Writer()
    cold = ["--cold", f"fs:{cold_folder}"]
    with serving(writer, tmp_path / "old", *EAGER, *cold):
        writer.make_bucket()
        writer.create("log", b"first;")
        writer.flush("log")
    with serving(writer, tmp_path / "old", *EAGER, *cold):
        writer.append("log", b"second;")
        writer.flush("log")
    older, newest = sorted((cold_folder / "catalog").glob("manifest-*.json"))
    named = json.loads(newest.read_bytes())["files"]["shard-0001.sqlite"]["object"]
    data = (cold_folder / named).read_bytes()
    (cold_folder / named).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    code, output = run_command("restore", "--data-dir", str(tmp_path / "new"), *cold)
    assert code == 0, output
    assert f"passed over a newer copy of the catalog: {named} is damaged" in output
    assert f"as of log position {int(older.stem.partition('-')[2])} " in output
    with serving(writer, tmp_path / "new", *EAGER, *cold):
        assert writer.read("log") in (b"first;", b"first;second;")
        writer.append("log", b"third;")
    # What is written now is newer than the damaged one.
    assert max((cold_folder / "catalog").glob("manifest-*.json")) > newest
    assert run_command("restore", "--data-dir", str(tmp_path / "third"), *cold)[0] == 0


def test_without_any_sound_copy_the_folder_stays_empty_and_the_message_says_why(
    tmp_path: Path,
) -> None:
    cold_folder = tmp_path / "cold"
    writer = Writer()
    cold = ["--cold", f"fs:{cold_folder}"]
    code, output = run_command("restore", "--data-dir", str(tmp_path / "new"), *cold)
    assert (code, "there is no millstream.json" in output) == (2, True), output
    with serving(writer, tmp_path / "old", *EAGER, *cold) as server:
        server.kill()
    code, output = run_command("restore", "--data-dir", str(tmp_path / "new"), *cold)
    assert (code, "holds no copy of the catalog" in output) == (2, True), output
    with serving(writer, tmp_path / "old", *EAGER, *cold) as server:
        writer.make_bucket()
    for manifest in (cold_folder / "catalog").glob("manifest-*.json"):
        manifest.write_bytes(manifest.read_bytes()[:-20])
    code, output = run_command("restore", "--data-dir", str(tmp_path / "new"), *cold)
    assert (code, "no copy of the catalog in the cold store is sound" in output) == (2, True)
    assert {path.name for path in (tmp_path / "new").iterdir()} <= {"lock"}


def test_a_folder_that_holds_a_store_is_refused(tmp_path: Path) -> None:
    writer = Writer()
    cold = ["--cold", f"fs:{tmp_path / 'cold'}"]
    with serving(writer, tmp_path / "old", *EAGER, *cold):
        code, output = run_command("restore", "--data-dir", str(tmp_path / "old"), *cold)
        assert (code, "in use by another process" in output) == (2, True), output
    code, output = run_command("restore", "--data-dir", str(tmp_path / "old"), *cold)
    assert (code, "choose an empty --data-dir" in output) == (2, True), output
    code, output = run_command("restore", "--data-dir", str(tmp_path / "new"))
    assert (code, "say where the cold store is" in output) == (2, True), output
