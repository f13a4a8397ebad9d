"""`millstream lake` counts every message once, whatever the server has done with it by then."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from millstream.cli.main import main
from millstream.lake.live import load_running
from millstream.pipeline.compaction import KIND, Rewrite
from millstream.pipeline.job_client import JobClient
from millstream.tier.objects import ColdSettings, ObjectStore
from tests.support.http import Client
from tests.support.seaweed import SeaweedFS, cold_flags
from tests.support.server import NO_OWN_STREAMS, ServerProcess

README = Path(__file__).parents[2] / "README.md"
SMALL = ("--shards", "1", "--pipeline", "external", "--log-level", "warning")
JSON = "application/json"


def readme_line() -> list[str]:
    """What the README says, without the path to the command."""
    [line] = re.findall(r"^\.venv/bin/millstream (lake .*)$", README.read_text(), re.M)
    return shlex.split(line)


class Lake:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], *cold: str) -> None:
        self.folder = folder
        self.capsys = capsys
        self.cold = cold
        self.server: ServerProcess | None = None
        self._ends = ExitStack()

    def start(self, *flags: str) -> Client:
        self.server = ServerProcess(self.folder, *SMALL, *self.cold, *flags)
        self._ends.callback(self.server.kill)
        return self._ends.enter_context(closing(self.server.client()))

    def close(self) -> None:
        self._ends.close()

    def run(self, *arguments: str) -> tuple[int, str, str]:
        where = ["--data-dir", str(self.folder), *self.cold]
        if self.server is not None:
            where += ["--server", self.server.url]
        self.capsys.readouterr()
        code = main([*arguments, *where])
        captured = self.capsys.readouterr()
        return code, captured.out, captured.err

    def counts(self) -> dict[str, int]:
        """The README's own line."""
        code, out, err = self.run(*readme_line())
        assert code == 0, err
        names, rule, *rows = [line.split() for line in out.splitlines()]
        assert names[0] == "stream"
        assert set("".join(rule)) == {"─"}
        return {row[0]: int(row[1]) for row in rows}

    def ask(self, sql: str, *flags: str) -> list[dict[str, Any]]:
        code, out, err = self.run("lake", "--sql", sql, "--format", "json", *flags)
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def lake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Lake]:
    lake = Lake(tmp_path / "data", capsys)
    yield lake
    lake.close()


def append(client: Client, name: str, *messages: object) -> None:
    path = f"/v1/stream/{name}"
    if client.head(path).status == 404:
        assert client.put(path, content_type=JSON).status == 201
    body = json.dumps(list(messages)).encode()
    assert client.post(path, body, content_type=JSON).status == 204


def compact(server: ServerProcess, settings: ColdSettings) -> int:
    """What an executor does, without Spark around it; segments that were replaced."""
    client = JobClient(server.url)
    offer = client.ask(KIND)
    assert offer is not None
    rewrite = Rewrite(server.url, offer, settings)
    for number in range(offer.tasks):
        task = client.load_task(offer.job, number)
        result = rewrite.write_segments(task, ObjectStore(settings))
        client.store_result(offer.job, number, result)
    client.commit(offer.job)
    return len(offer.inputs)


def in_parquet(folder: Path) -> int:
    """Rows of all objects: what a glob would count."""
    return sum(pq.read_metadata(path).num_rows for path in folder.rglob("cold/**/*.parquet"))


def test_the_line_of_the_readme_is_right_at_every_moment(lake: Lake) -> None:
    client = lake.start(*NO_OWN_STREAMS)  # rows of Parquet are counted below, whosever they are
    assert lake.server is not None
    assert lake.counts() == {}  # before anything was written
    append(client, "tour", {"n": 1}, {"n": 2})
    append(client, "agents/run", "a")
    expected = {"tour": 2, "agents/run": 1}
    assert lake.counts() == expected  # before the first flush
    assert lake.counts() == expected  # after it
    for number in range(9):
        append(client, "tour", number)
        append(client, "agents/run", number, number)
        expected = {"tour": 3 + number, "agents/run": 3 + 2 * number}
        assert lake.counts() == expected
    assert compact(lake.server, ColdSettings(f"fs:{lake.folder}/cold")) >= 8
    assert in_parquet(lake.folder) == 2 * sum(expected.values()), "the old ones are still there"
    assert lake.counts() == expected  # after a compaction, garbage and all
    assert client.delete("/v1/stream/agents/run").status == 204
    assert lake.counts() == {"tour": 11}  # after a deletion
    append(client, "agents/run", "the second of its name")
    assert lake.counts() == {"tour": 11, "agents/run": 1}
    append(client, "tour", "only in the log")
    lake.server.kill()
    lake.server = None
    assert lake.counts() == {"tour": 12, "agents/run": 1}  # without a server, after a crash
    assert lake.counts() == {"tour": 12, "agents/run": 1}


def test_a_folder_that_was_never_flushed_needs_no_server(lake: Lake) -> None:
    client = lake.start()
    append(client, "tour", {"event": "hello"})
    assert lake.server is not None
    assert lake.server.stop() == 0
    lake.server = None
    assert lake.counts() == {"tour": 1}
    [row] = lake.ask("select * from messages")
    assert row["json"] == {"event": "hello"}
    assert row["text"] == '{"event": "hello"}'
    assert (row["stream"], row["bucket"], row["ordinal"]) == ("tour", "_default", 0)
    assert row["next_offset"] == f"{1:016d}_{len(row['text']) + 1:016d}"
    [stream] = lake.ask("select * from streams")
    assert (stream["messages"], stream["next_offset"]) == (1, row["next_offset"])


def test_it_shows_what_a_reader_would_get(lake: Lake) -> None:
    """Forks, inside of a message too, what snapshots trimmed, deleted sources, bytes."""
    client = lake.start()
    text = "text/plain"
    for path in ("/bbbb", "/bbbb/source", "/bbbb/trimmed"):
        assert client.put(path, content_type=text).status == 201
    for number in range(3):
        client.post("/bbbb/source", b"source %d;" % number, content_type=text)
        client.post("/bbbb/trimmed", b"old %d;" % number, content_type=text)
    headers = {
        "Stream-Forked-From": "/bbbb/source",
        "Stream-Fork-Offset": f"{1:016d}_{9:016d}",
        "Stream-Fork-Sub-Offset": "4",
    }
    assert client.put("/bbbb/fork", headers=headers, content_type=text).status == 201
    client.post("/bbbb/fork", b"own\xff", content_type=text)
    headers = {"Stream-Forked-From": "/bbbb/fork"}
    assert client.put("/bbbb/deeper", headers=headers, content_type=text).status == 201
    client.post("/bbbb/deeper", b"deeper", content_type=text)
    tail = client.head("/bbbb/trimmed").next_offset
    assert client.put(f"/bbbb/trimmed/snapshot/{tail}", b"state", content_type=text).status == 204
    client.post("/bbbb/trimmed", b"new", content_type=text)
    assert client.delete("/bbbb/source").status == 204

    def check() -> None:
        for name in ("fork", "deeper", "trimmed"):
            earliest = client.get(f"/bbbb/{name}?offset=-1").headers.get("stream-earliest-offset")
            expected = client.get(f"/bbbb/{name}?offset={earliest or '-1'}").body
            sql = (
                f"select hex(data) as x from messages where stream = 'bbbb/{name}' order by ordinal"
            )
            assert b"".join(bytes.fromhex(row["x"]) for row in lake.ask(sql)) == expected, name
        assert set(lake.counts()) == {"bbbb/fork", "bbbb/deeper", "bbbb/trimmed"}
        [bad] = lake.ask(
            "select text, data from messages where text is null and stream = 'bbbb/fork'"
        )
        assert bad == {"text": None, "data": "b3du/w=="}

    check()
    client.post("/bbbb/deeper", b"and hot", content_type=text)
    check()
    contents = {name: client.get(f"/bbbb/{name}").body for name in ("fork", "deeper")}
    assert lake.server is not None
    lake.server.kill()
    lake.server = None
    for name, content in contents.items():
        sql = f"select hex(data) as x from messages where stream = 'bbbb/{name}' order by ordinal"
        assert b"".join(bytes.fromhex(row["x"]) for row in lake.ask(sql)) == content, name


def test_all_that_was_acknowledged_before_is_included_while_others_write(lake: Lake) -> None:
    client = lake.start("--flush-bytes", "4KiB", "--checkpoint-wal-bytes", "16KiB")
    acknowledged, ending = 0, threading.Event()
    append(client, "busy", 0)

    def write() -> None:
        nonlocal acknowledged
        assert lake.server is not None
        writer = lake.server.client()
        while not ending.is_set():
            append(writer, "busy", "x" * 500)
            acknowledged += 1
        writer.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(4):
            before = acknowledged
            [row] = lake.ask("select count(*) as n, count(distinct ordinal) as d from messages")
            assert before <= row["n"] <= acknowledged + 2
            assert row["n"] == row["d"]
    finally:
        ending.set()
        thread.join(30)


def test_segments_that_vanish_under_a_query_are_looked_up_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = lake.start()
    assert lake.server is not None
    for number in range(9):
        append(client, "s", number)
        assert lake.counts() == {"s": number + 1}
    segments = list((lake.folder / "cold" / "segments").rglob("*.parquet"))
    load, loads = load_running, list[int]()

    def load_then_compact(places: Any) -> Any:
        live = load(places)
        if not loads:  # as a garbage collection would, between the plan and the read
            assert lake.server is not None
            compact(lake.server, ColdSettings(f"fs:{lake.folder}/cold"))
            for path in segments:
                path.unlink()
        loads.append(1)
        return live

    monkeypatch.setattr("millstream.lake.live.load_running", load_then_compact)
    assert lake.counts() == {"s": 9}
    assert len(loads) == 2


def test_every_format_and_the_errors(lake: Lake, tmp_path: Path) -> None:
    client = lake.start()
    append(client, "s", {"a": 1}, "two", None)
    sql = "select ordinal, json, append_time from messages order by ordinal"
    code, out, _ = lake.run("lake", "--sql", sql, "--format", "csv")
    assert code == 0
    assert [row[:2] for row in csv.reader(io.StringIO(out))] == [
        ["ordinal", "json"],
        ["0", '{"a": 1}'],
        ["1", '"two"'],
        ["2", "null"],
    ]
    code, _, err = lake.run(
        "lake", "--sql", sql, "--format", "parquet", "--output", str(tmp_path / "x.parquet")
    )
    assert (code, err) == (0, "")
    assert pq.read_table(tmp_path / "x.parquet").num_rows == 3
    assert [row["json"] for row in lake.ask(sql)] == [{"a": 1}, "two", None]
    code, out, err = lake.run("lake", "--sql", "select nothing from messages")
    assert (code, out) == (2, "")
    assert 'Referenced column "nothing" not found' in err
    assert lake.run("lake", "--sql", sql, "--format", "parquet")[0] == 2
    code, _, err = lake.run("lake", "--sql", sql, "--no-flush")
    assert code == 0
    assert "not included" in err
    assert lake.server is not None
    port = lake.server.port
    lake.server.port = 1
    code, _, err = lake.run("lake", "--sql", sql)
    lake.server.port = port
    assert code == 2
    assert "--server URL" in err
    assert "--no-flush" in err


def test_a_manifest_is_enough_for_another_engine(lake: Lake, tmp_path: Path) -> None:
    client = lake.start()
    for number in range(9):
        append(client, "kept", number, number)
        append(client, "gone", number)
        lake.counts()
    assert lake.server is not None
    compact(lake.server, ColdSettings(f"fs:{lake.folder}/cold"))
    assert client.delete("/v1/stream/gone").status == 204
    file = tmp_path / "manifest.json"
    assert lake.run("lake", "--manifest", "--output", str(file))[0] == 0
    manifest = json.loads(file.read_bytes())
    paths = [segment["path"] for segment in manifest["segments"]]
    found = duckdb.execute(
        "select l.stream, count(*), count(distinct r.ordinal)"
        " from read_parquet($paths, filename = true) r"
        " join (select unnest(live, recursive := true) from read_json($manifest)) l"
        " on r.filename = l.path and r.stream_id = l.stream_id"
        " and r.ordinal >= l.first_ordinal and r.ordinal < l.end_ordinal group by all",
        {"paths": paths, "manifest": str(file)},
    ).fetchall()
    assert found == [("kept", 18, 18)]


@contextmanager
def without_duckdb(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setitem(__import__("sys").modules, "duckdb", None)
        yield


def test_without_duckdb_it_says_what_to_install(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = lake.start()
    append(client, "s", 1)
    with without_duckdb(monkeypatch):
        code, _, err = lake.run(*readme_line())
        assert code == 2
        assert "pip install 'millstream[lake]'" in err
        assert lake.run("lake", "--manifest")[0] == 0


def test_segments_in_s3_are_read_through_our_own_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seaweed: SeaweedFS, prefix: str
) -> None:
    lake = Lake(tmp_path / "data", capsys, *cold_flags(seaweed.settings(prefix)))
    try:
        client = lake.start()
        append(client, "s", *range(100))
        assert lake.counts() == {"s": 100}
        assert lake.server is not None
        assert lake.server.stop() == 0
        lake.server = None
        assert lake.counts() == {"s": 100}
    finally:
        lake.close()
