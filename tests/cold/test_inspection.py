"""Descriptors of streams whose content moves to the cold store, is compacted away and trimmed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from tests.conformance.api import JSON, Api, fresh_path, halves, token
from tests.conformance.test_inspection import describe, details, wait
from tests.support.server import MOSTLY_COLD, running_server
from tests.support.waiting import wait_until

PATIENT = ("--flush-age", "1h", "--log-level", "warning")


def flush(api: Api, path: str) -> None:
    """All of it, in one segment."""
    assert api.post(f"/__ursula/flush-cold{path}").status == 200


def held(document: dict[str, Any]) -> tuple[int, int, str, str]:
    """Segments, runs, bytes in them, bytes in none."""
    summary, stored = document["stream"], document["storage"]["object_storage"]
    assert summary["segment_count"] == stored["segment_object_count"]
    assert document["index_status"]["segments"]["uploaded_count"] == summary["segment_count"]
    return (
        summary["segment_count"],
        summary["run_count"],
        stored["segments_bytes"],
        summary["pending_bytes"],
    )


def test_counts_follow_content_into_segments_and_over_restarts(tmp_path: Path) -> None:
    with running_server(tmp_path, *PATIENT) as server, closing(Api(server)) as api:
        assert api.put("/lake").status == 201
        path = api.stream(b'{"n":1}', b"[22,33]", path="/lake/a", content_type=JSON)
        assert held(details(api, path)) == (0, 0, "0", "11")
        flush(api, path)
        found = details(api, path)
        assert held(found) == (1, 1, "11", "0")
        summary = found["stream"]
        assert summary["sealed_through"] == summary["uploaded_through"] == summary["next_offset"]
        assert summary["last_segment_cut_at"] >= summary["last_append_at"]
        assert found["storage"]["local_storage"]["total_bytes"] == "0"
        api.append(path, b"4", JSON)
        assert held(details(api, path)) == (1, 1, "11", "1")
        flush(api, path)
        last = describe(api, path)
        assert held(last.json()) == (2, 2, "12", "0")
        server.stop()
    with running_server(tmp_path, *PATIENT) as server, closing(Api(server)) as api:
        again = describe(api, path)
        assert held(again.json()) == (2, 2, "12", "0")
        assert again.headers["etag"] == last.headers["etag"]
        assert api.get(path).json() == [{"n": 1}, 22, 33, 4]


def test_a_flush_ends_a_wait_and_a_checkpoint_changes_nothing(tmp_path: Path) -> None:
    with running_server(tmp_path, *PATIENT) as server, closing(Api(server)) as api:
        assert api.put("/lake").status == 201
        path, other = (api.stream(b"one", path=f"/lake/{name}") for name in "ab")
        of_details = wait(api, path, "_details", "live=true&timeout=30s")
        of_status = wait(api, path, "_index_status", "live=true&timeout=30s")
        of_other = wait(api, other, "_details", "live=true&timeout_ms=500")
        flush(api, path)
        assert of_details.reply().json()["stream"]["segment_count"] == 1
        assert of_status.reply().json()["segments"] == {"total_count": 1, "uploaded_count": 1}
        assert of_other.reply().status == 304
        tag = describe(api, path).headers["etag"]
        assert api.post("/__millstream/flush").status == 200  # flushes the rest and checkpoints
        assert describe(api, path, tag=tag).status == 304


def test_a_fork_of_what_is_cold_counts_nothing_of_its_source(tmp_path: Path) -> None:
    with running_server(tmp_path, *PATIENT) as server, closing(Api(server)) as api:
        assert api.put("/lake").status == 201
        path = api.stream(b"one", b"two", path="/lake/a")
        flush(api, path)
        assert api.fork(path, token(1, 3), path="/lake/fork")[1].status == 201
        assert held(details(api, "/lake/fork")) == (0, 0, "0", "0")
        assert details(api, "/lake/fork")["stream"]["total_size_bytes"] == "3"


def test_trimmed_content_is_counted_until_it_is_let_go(tmp_path: Path) -> None:
    with running_server(tmp_path, *PATIENT) as server, closing(Api(server)) as api:
        assert api.put("/lake").status == 201
        path = api.stream(b"one", path="/lake/a")
        flush(api, path)
        api.append(path, b"three")
        flush(api, path)
        waiting = wait(api, path, query="live=true&timeout=30s")
        assert api.publish(path, token(1, 3)).status == 204
        assert waiting.reply().json()["stream"]["total_size_bytes"] == "5"
        assert api.post("/__millstream/flush").status == 200
        wait_until(lambda: held(details(api, path)) == (1, 1, "5", "0"))


def test_streams_at_rest_are_described_as_they_are(tmp_path: Path) -> None:
    with running_server(tmp_path, *MOSTLY_COLD) as server, closing(Api(server)) as api:
        assert api.put("/lake").status == 201
        paths = [f"/lake/{number:02d}" for number in range(40)]
        for number, path in enumerate(paths):
            api.stream(*[b"x" * 10] * (number % 3 + 1), path=path)
        wait_until(lambda: _in_memory(api) <= 20)
        assert api.post("/__millstream/flush").status == 200
        for number, path in enumerate(paths):
            count = number % 3 + 1
            found = details(api, path)
            assert held(found)[2:] == (str(10 * count), "0")
            assert found["stream"]["total_size_bytes"] == str(10 * count)
            assert found["stream"]["message_count"] == str(count)
        listed = api.get("/v1/streams?limit=40").json()
        assert [each["name"] for each in listed] == [path[1:] for path in paths]
        assert {halves(each["next_offset"])[0] for each in listed} == {1, 2, 3}
        assert {each["profile"] for each in listed} == {"generic"}
        server.stop()
        assert "Traceback" not in server.finish_output()


def _in_memory(api: Api) -> int:
    """How many streams are in memory; the server needs something to do to let go of them."""
    api.stream(b"x", path=fresh_path("nudge/stream"))
    counts = api.get("/v1/server/_mem").json()["runtime_counts"]
    return int(counts["resident_streams"])
