"""Starting, watching and stopping the server, as its operator sees it."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conformance.api import TEXT, Api, Call, WaitingCall, fresh_path
from tests.support.server import ServerProcess, running_server

METRICS = [
    "millstream_http_requests_total",
    "millstream_http_connections",
    "millstream_appends_total",
    "millstream_commit_batches_total",
    "millstream_commands_total",
    "millstream_commit_seconds_bucket",
    "millstream_live_readers",
    "millstream_wal_bytes",
    "millstream_wal_written_bytes_total",
    "millstream_hot_bytes",
    "millstream_streams",
    "millstream_journal_depth",
    "millstream_unexpected_errors_total",
]


def refused_start(*arguments: str) -> str:
    """What the server printed when it refused to start, leaving with 2 and no stack trace."""
    command = [sys.executable, "-m", "millstream", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    printed = run.stdout + run.stderr
    assert run.returncode == 2, printed
    assert "Traceback" not in printed
    assert printed.strip()
    return printed


def metrics(api: Api) -> dict[str, float]:
    reply = api.get("/metrics")
    assert (reply.status, reply.headers["content-type"].split(";")[0]) == (200, "text/plain")
    samples = dict[str, float]()
    for family in text_string_to_metric_families(reply.body.decode()):
        for sample in family.samples:
            samples[sample.name] = samples.get(sample.name, 0.0) + sample.value
    return samples


def test_the_server_says_that_it_is_alive_and_ready(api: Api) -> None:
    for path in ("/healthz", "/readyz"):
        reply = api.get(path)
        assert (reply.status, reply.headers["cache-control"]) == (200, "no-store")
    assert json.loads(api.get("/readyz").body) == {"ready": True}


def test_metrics_can_be_parsed_and_count_what_happens(api: Api) -> None:
    before = metrics(api)
    path = api.stream(b"one", b"two", b"three")
    api.get(path)
    after = metrics(api)
    assert set(METRICS) <= set(after)
    assert after["millstream_appends_total"] == before["millstream_appends_total"] + 3
    assert after["millstream_streams"] == before["millstream_streams"] + 1
    requests = "millstream_http_requests_total"
    assert after[requests] >= before[requests] + 5


def test_metrics_count_waiting_readers(memory_api: Api) -> None:
    path = memory_api.stream()
    before = metrics(memory_api)["millstream_live_readers"]
    waiting = memory_api.wait(f"{path}?offset=-1&live=long-poll")
    events = memory_api.events(f"{path}?offset=-1&live=sse")
    events.until_up_to_date()
    assert metrics(memory_api)["millstream_live_readers"] == before + 2
    waiting.close()
    events.close()
    memory_api.settle()
    assert metrics(memory_api)["millstream_live_readers"] == before


def test_sigterm_ends_waiting_readers_cleanly(tmp_path: Path) -> None:
    for data_dir in (None, tmp_path / "data"):
        server = ServerProcess(data_dir)
        with contextlib.closing(Api(server)) as api:
            path = api.stream(b"one")
            waiting = api.wait(f"{path}?offset={api.tail(path)}&live=long-poll")
            events = api.events(f"{path}?offset=-1&live=sse")
            events.until_up_to_date()
            started = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - started < 5
            reply = waiting.reply()
            assert reply.status in (204, 503)
            assert reply.status == 204 or "retry-after" in reply.headers
            assert [event for event in events if event.kind == "data"] == []
        assert "Traceback" not in server.finish_output()


def test_appends_in_flight_at_sigterm_are_answered_or_not_there(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    with contextlib.closing(Api(server)) as api:
        path = api.stream()
        call = Call("POST", path, b"x" * 100_000, {"Content-Type": TEXT})
        waiting = [WaitingCall(api.host, api.port, call) for _ in range(20)]
        for each in waiting:
            each.send()
        server.process.terminate()
        accepted = 0
        for each in waiting:
            with contextlib.suppress(ConnectionError):
                accepted += each.reply().status == 204
            each.close()
    assert server.stop() == 0
    with running_server(tmp_path / "data") as second, contextlib.closing(Api(second)) as api:
        stored = int(api.tail(path).split("_")[0])
        assert accepted <= stored <= 20


def test_a_port_in_use_is_a_clear_refusal() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert str(port) in refused_start("serve", "--listen", f"127.0.0.1:{port}", "--memory")


def test_a_folder_in_use_is_a_clear_refusal(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with running_server(data_dir) as server, contextlib.closing(Api(server)) as api:
        path = api.stream(b"one")
        printed = refused_start("serve", "--listen", "127.0.0.1:0", "--data-dir", str(data_dir))
        assert str(data_dir) in printed
        assert api.append(path, b"two").status == 204
        assert api.get(path).body == b"onetwo"


def test_a_folder_of_a_newer_version_is_a_clear_refusal(tmp_path: Path) -> None:
    marker = tmp_path / "millstream.json"
    marker.write_text(json.dumps({"format": 999, "store_id": "0" * 32}))
    printed = refused_start("serve", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path))
    assert "999" in printed
    assert json.loads(marker.read_text())["format"] == 999


def test_a_folder_marker_that_is_no_json_is_a_clear_refusal(tmp_path: Path) -> None:
    (tmp_path / "millstream.json").write_text("{")
    printed = refused_start("serve", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path))
    assert "millstream.json" in printed


def test_a_file_in_place_of_the_folder_is_a_clear_refusal(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    for data_dir in (file, file / "below"):
        printed = refused_start("serve", "--listen", "127.0.0.1:0", "--data-dir", str(data_dir))
        assert str(file) in printed
    assert file.read_text() == "not a folder"


@pytest.mark.parametrize(
    "flags",
    [
        ("--no-such-flag",),
        ("--listen", "nonsense"),
        ("--listen", "127.0.0.1:99999"),
        ("--long-poll-timeout", "soon"),
        ("--page-bytes", "-1"),
        ("--data-dir", "x"),
        ("--tls-cert", "/nonexistent.pem", "--tls-key", "/nonexistent.key"),
        ("--tls-cert", "/nonexistent.pem"),
    ],
    ids=lambda flags: " ".join(flags),
)
def test_a_setting_that_makes_no_sense_is_a_clear_refusal(flags: tuple[str, ...]) -> None:
    printed = refused_start("serve", "--memory", *flags)
    assert flags[0] in printed or flags[-1] in printed


def test_an_unknown_command_is_a_clear_refusal() -> None:
    assert "dance" in refused_start("dance")


def test_help_names_every_flag_of_serve() -> None:
    command = [sys.executable, "-m", "millstream", "serve", "--help"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    for flag in ("--listen", "--memory", "--data-dir", "--long-poll-timeout", "--page-bytes"):
        assert flag in run.stdout


def test_a_second_server_may_use_the_folder_after_a_crash(tmp_path: Path) -> None:
    path = fresh_path()
    with running_server(tmp_path / "data") as first, contextlib.closing(Api(first)) as api:
        assert api.put(path, b"one", content_type=TEXT).status == 201
    with running_server(tmp_path / "data") as second, contextlib.closing(Api(second)) as api:
        assert api.get(path).body == b"one"


# What is measured, and what is written about it


def documented(pattern: str) -> set[str]:
    text = (Path(__file__).parents[2] / "docs/operations.md").read_text()
    return set(re.findall(pattern, text))


def test_every_metric_is_documented_and_every_documented_one_is_there(tmp_path: Path) -> None:
    with running_server(tmp_path) as server, contextlib.closing(server.client()) as client:
        text = client.get("/metrics").body.decode()
    exported = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(text)
    }
    assert len(exported) > 15
    assert exported == documented(r"`(millstream_\w+)[`{]")


def test_the_json_metrics_are_documented_and_say_what_happened(tmp_path: Path) -> None:
    alone = ("--registry-stream", "off", "--metrics-stream", "0")
    with running_server(tmp_path, *alone) as server, contextlib.closing(Api(server)) as api:
        api.stream(b"one", b"two", path="/v1/stream/tools/a")
        assert api.get("/v1/stream/missing").status == 404
        assert api.post("/__ursula/flush-cold/tools/a").status == 200
        reply = api.get("/__ursula/metrics")
        assert (reply.status, reply.headers["cache-control"]) == (200, "no-store")
        found = reply.json()
    assert documented(r"`([a-z_]+)(?:\[\]|\.[a-z_]+)?[`:]") >= set(found)
    assert found["accepted_appends"] == 2
    assert (found["streams"], found["buckets"]) == (1, 1)
    assert [group["id"] for group in found["raft_groups"]] == list(range(16))
    assert len(found["raft_groups"]) == found["raft_group_count"] == found["active_groups"]
    assert {group["last_applied"] for group in found["raft_groups"]} == {found["wal_records"]}
    assert sum(group["hot_bytes_total"] for group in found["raft_groups"]) == 0
    [core] = found["cores"]
    assert core == {"core_id": 0, "mailbox_pending": 0, "live_read_watchers_active": 0}
    assert found["http"]["responses_by_status"]["404"] == 1
    assert found["commit_seconds"]["count"] == found["wal_batches"]
    assert found["commit_seconds"]["buckets"]["+Inf"] == found["wal_batches"]
    assert (found["cold_flush_uploads"], found["cold_backpressure_events_total"]) == (1, 0)
    assert found["process_rss_bytes"] > 10_000_000


def test_the_json_metrics_are_only_read(memory_api: Api) -> None:
    assert memory_api.call("HEAD", "/__ursula/metrics").status == 200
    for method in ("POST", "PUT", "DELETE"):
        assert memory_api.call(method, "/__ursula/metrics").status == 405
    assert "cold_flush_uploads" not in memory_api.get("/__ursula/metrics").json()


def test_the_number_of_shards_need_not_be_repeated(tmp_path: Path) -> None:
    with running_server(tmp_path, "--shards", "3") as server:
        with contextlib.closing(Api(server)) as api:
            api.stream(b"kept", path="/v1/stream/kept")
            assert api.get("/__ursula/metrics").json()["raft_group_count"] == 3
        assert server.stop() == 0
    for flags in ((), ("--shards", "3")):
        with running_server(tmp_path, *flags) as server:
            with contextlib.closing(Api(server)) as api:
                assert api.get("/v1/stream/kept").body == b"kept"
                assert api.get("/__ursula/metrics").json()["raft_group_count"] == 3
            server.kill()
    printed = refused_start("serve", "--data-dir", str(tmp_path), "--shards", "16")
    assert "was made for 3 shards" in printed
    assert "leave out --shards" in printed
