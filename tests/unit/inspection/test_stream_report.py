from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from millstream.formats.layout import StreamId
from millstream.inspection.holdings import NONE, Holdings
from millstream.inspection.index_report import (
    NOTHING,
    ExactIndex,
    IndexReport,
    IndexRuns,
    SearchFamily,
)
from millstream.inspection.stream_report import (
    Described,
    Facts,
    describe_details,
    describe_index_status,
)
from millstream.protocol.offsets import Position
from millstream.protocol.offsets import encode_offset as token
from millstream.state.rules import Rules
from millstream.state.stream import Snapshot, Stream

BORN = "2023-11-14T22:13:20.000Z"
BORN_MS = 1_700_000_000_000


def stream(content_type: bytes = b"text/plain", *messages: bytes, number: int = 1) -> Stream:
    made = Stream(StreamId(number), b"_default/log", content_type, BORN_MS)
    for message in messages:
        made.log.append(message, None, BORN_MS)
    return made


def facts(
    of: Stream, held: Holdings = NONE, indexes: IndexReport = NOTHING, has_log: bool = True
) -> Facts:
    return Facts(of, held, indexes, has_log, lambda: 4096)


def details(*given: Any, **named: Any) -> dict[str, Any]:
    return describe_details(facts(*given, **named)).document


def test_an_empty_stream_has_every_field() -> None:
    found = details(stream())
    assert set(found) == {
        *("stream", "profile", "schema", "index_status", "storage", "object_store_requests")
    }
    assert found["stream"] == {
        "name": "log",
        "content_type": "text/plain",
        "profile": "generic",
        "created_at": BORN,
        "updated_at": BORN,
        "expires_at": None,
        "ttl_seconds": None,
        "stream_seq": None,
        "closed": False,
        "epoch": 0,
        "next_offset": token(0, 0),
        "earliest_offset": token(0, 0),
        "sealed_through": "-1",
        "uploaded_through": "-1",
        "message_count": "0",
        "snapshot": None,
        "segment_count": 0,
        "uploaded_segment_count": 0,
        "run_count": 0,
        "pending_rows": "0",
        "pending_bytes": "0",
        "total_size_bytes": "0",
        "wal_rows": "0",
        "wal_bytes": "0",
        "last_append_at": None,
        "last_segment_cut_at": None,
    }
    assert found["profile"]["profile"] == {"kind": "generic"}
    assert found["schema"]["schema"] == "log"
    assert found["storage"]["local_storage"]["sqlite_shared_total_bytes"] == "4096"
    artifacts = [each["artifact"] for each in found["object_store_requests"]["by_artifact"]]
    assert artifacts[0] == "manifest"
    assert len(artifacts) == 8


def test_nothing_built_is_told_as_nothing() -> None:
    status = describe_index_status(facts(stream())).document
    runs = {
        "configured": False,
        "indexed_segment_count": 0,
        "lag_segments": 0,
        "lag_ms": None,
        "bytes_at_rest": "0",
        "object_count": 0,
        "active_run_count": 0,
        "retired_run_count": 0,
        "fully_indexed_uploaded_segments": True,
        "updated_at": None,
    }
    assert status == {
        "stream": "log",
        "profile": "generic",
        "desired_index_plan_generation": 0,
        "segments": {"total_count": 0, "uploaded_count": 0},
        "manifest": {
            "generation": 0,
            "uploaded_generation": 0,
            "last_uploaded_at": None,
            "last_uploaded_etag": None,
            "last_uploaded_size_bytes": None,
        },
        "routing_key_index": runs,
        "routing_key_lexicon": runs,
        "exact_indexes": [],
        "bundled_companions": {
            "object_count": 0,
            "bytes_at_rest": "0",
            "fully_indexed_uploaded_segments": True,
        },
        "search_families": [],
    }
    assert details(stream())["index_status"] == status


def test_content_is_counted_where_it_lies() -> None:
    made = stream(b"text/plain", b"one", b"four", b"eleven")
    made.log.cold_ordinal, made.log.cold_byte = 2, 7
    found = details(made, Holdings(1, 2, 2, 7, BORN_MS + 5, 2))
    summary, storage = found["stream"], found["storage"]
    assert (summary["next_offset"], summary["sealed_through"]) == (token(3, 13), token(2, 7))
    assert summary["message_count"] == "3"
    assert (summary["segment_count"], summary["run_count"]) == (1, 2)
    assert (summary["pending_rows"], summary["pending_bytes"]) == ("1", "6")
    assert (summary["wal_rows"], summary["wal_bytes"]) == ("1", "6")
    assert summary["total_size_bytes"] == "13"
    assert summary["last_segment_cut_at"] == "2023-11-14T22:13:20.005Z"
    assert storage["object_storage"]["segments_bytes"] == "7"
    assert storage["object_storage"]["segment_object_count"] == 1
    assert storage["local_storage"]["total_bytes"] == "6"
    in_memory = details(made, has_log=False)
    assert (in_memory["stream"]["wal_rows"], in_memory["stream"]["pending_rows"]) == ("0", "1")
    assert in_memory["storage"]["local_storage"]["total_bytes"] == "0"


def test_commas_between_json_messages_are_not_payload() -> None:
    made = stream(b"application/json", b'"a",', b"12,", b"3,")
    made.log.cold_ordinal, made.log.cold_byte = 1, 4
    found = details(made, Holdings(1, 1, 1, 4, BORN_MS, 1))
    assert found["stream"]["total_size_bytes"] == "6"
    assert found["stream"]["pending_bytes"] == "3"
    assert found["storage"]["object_storage"]["segments_bytes"] == "3"


def test_a_fork_counts_its_own() -> None:
    source = stream(b"text/plain", b"one", b"two")
    source.log.cold_ordinal, source.log.cold_byte = 2, 6
    fork = stream(number=2)
    fork.log = source.log.branch(Position(1, 3))
    summary = details(fork)["stream"]
    assert (summary["sealed_through"], summary["next_offset"]) == ("-1", token(1, 3))
    assert (summary["pending_rows"], summary["total_size_bytes"]) == ("0", "3")


def test_what_was_trimmed_lies_behind_and_a_snapshot_is_told() -> None:
    made = stream(b"text/plain", b"one", b"four")
    made.snapshot = Snapshot(1, 3, "blob", b"text/plain", 50, "d")
    made.log.trim(Position(1, 3))
    found = details(made)
    summary = found["stream"]
    snapshot = {"offset": token(1, 3), "content_type": "text/plain", "size_bytes": "50"}
    assert summary["snapshot"] == snapshot
    assert summary["earliest_offset"] == summary["sealed_through"] == token(1, 3)
    assert (summary["total_size_bytes"], summary["message_count"]) == ("4", "1")
    stored = found["storage"]["object_storage"]
    assert (stored["snapshot_bytes"], stored["snapshot_object_count"]) == ("50", 1)
    assert stored["total_bytes"] == "50"


def test_rules_are_told() -> None:
    made = stream(b"application/json")
    made.rules = Rules(1, "evlog", b"1234", (b"123",), (b"",), b"12", b"1")
    found = details(made)
    assert found["stream"]["profile"] == found["index_status"]["profile"] == "evlog"
    assert found["storage"]["object_storage"]["schema_registry_bytes"] == "10"
    routing = found["index_status"]["routing_key_index"]
    assert (routing["configured"], routing["fully_indexed_uploaded_segments"]) == (True, True)
    behind = details(made, Holdings(3, 3, 3, 9, BORN_MS, 3))["index_status"]["routing_key_lexicon"]
    assert (behind["lag_segments"], behind["fully_indexed_uploaded_segments"]) == (3, False)


def test_a_filled_report_is_shown_in_all_places() -> None:
    made = stream(b"application/json")
    made.rules = Rules(1, routing_key=b"{}")
    runs = IndexRuns(2, 0, 500, 3, 2, 1, BORN_MS)
    report = IndexReport(
        plan_generation=4,
        routing_key=runs,
        lexicon=IndexRuns(1, 70, 20, 1, 1, 0, BORN_MS),
        exact=(ExactIndex("n", "integer", True, IndexRuns(size=7, objects=2)),),
        families=(SearchFamily("col", ("n", "m"), 4, 2, 1, 1, 60, 80, 2, BORN_MS),),
        companion_objects=2,
        companion_size=100,
    )
    found = details(made, Holdings(3, 3, 3, 9, BORN_MS, 3), report)
    status, stored = found["index_status"], found["storage"]["object_storage"]
    assert status["desired_index_plan_generation"] == 4
    assert status["routing_key_index"] == {
        "configured": True,
        "indexed_segment_count": 2,
        "lag_segments": 1,
        "lag_ms": "0",
        "bytes_at_rest": "500",
        "object_count": 3,
        "active_run_count": 2,
        "retired_run_count": 1,
        "fully_indexed_uploaded_segments": False,
        "updated_at": BORN,
    }
    [exact] = status["exact_indexes"]
    assert (exact["name"], exact["kind"], exact["stale_configuration"]) == ("n", "integer", True)
    assert (exact["lag_segments"], exact["lag_ms"]) == (3, None)
    assert status["search_families"] == [
        {
            "family": "col",
            "fields": ["n", "m"],
            "plan_generation": 4,
            "covered_segment_count": 2,
            "contiguous_covered_segment_count": 1,
            "lag_segments": 1,
            "lag_ms": "60",
            "bytes_at_rest": "80",
            "object_count": 2,
            "stale_segment_count": 1,
            "fully_indexed_uploaded_segments": False,
            "updated_at": BORN,
        }
    ]
    assert status["bundled_companions"]["fully_indexed_uploaded_segments"] is False
    assert stored["indexes_bytes"] == "627"
    assert [
        stored[f"{name}_object_count"]
        for name in ("routing_index", "routing_lexicon", "exact_index", "bundled_companion")
    ] == [3, 1, 2, 2]
    assert found["storage"]["companion_families"]["col_bytes"] == "80"


# Tags


DESCRIBES: list[Callable[[Facts], Described]] = [describe_details, describe_index_status]


def test_a_tag_does_not_change_with_the_server_or_the_clock() -> None:
    made = stream()
    made.set_lifetime(60_000, None)
    before = describe_details(facts(made))
    made.accessed_ms += 5000
    after = describe_details(Facts(made, NONE, NOTHING, True, lambda: 999))
    assert before.tag == after.tag
    assert before.document != after.document
    assert after.document["stream"]["expires_at"] == "2023-11-14T22:14:25.000Z"
    assert after.document["stream"]["ttl_seconds"] == 60


def test_an_expiry_that_is_fixed_is_part_of_the_tag() -> None:
    one, other = stream(), stream()
    other.set_lifetime(None, BORN_MS + 1)
    assert describe_details(facts(one)).tag != describe_details(facts(other)).tag


@pytest.mark.parametrize("describe", DESCRIBES)
def test_streams_that_look_alike_have_other_tags(describe: Callable[[Facts], Described]) -> None:
    assert describe(facts(stream())).tag != describe(facts(stream(number=2))).tag


def _append(made: Stream) -> None:
    made.log.append(b"x", None, BORN_MS)


def _close(made: Stream) -> None:
    made.closed = True


def _set_rules(made: Stream) -> None:
    made.rules = Rules(1, "evlog")


def _trim(made: Stream) -> None:
    made.log.trim(Position(1, 3))


def _sequence(made: Stream) -> None:
    made.stream_seq = b"\xff2"


@pytest.mark.parametrize("change", [_append, _close, _set_rules, _trim, _sequence])
def test_a_change_of_the_stream_changes_the_tag(change: Callable[[Stream], None]) -> None:
    made = stream(b"text/plain", b"one")
    before = describe_details(facts(made))
    change(made)
    after = describe_details(facts(made))
    assert before.tag != after.tag
    assert msgspec.json.encode(after.document)


@pytest.mark.parametrize("describe", DESCRIBES)
def test_progress_of_segments_and_indexes_changes_the_tags(
    describe: Callable[[Facts], Described],
) -> None:
    made = stream()
    tags = {
        describe(facts(made)).tag,
        describe(facts(made, Holdings(1, 1, 1, 1, 1, 1))).tag,
        describe(facts(made, indexes=IndexReport(plan_generation=1))).tag,
    }
    assert len(tags) == 3
