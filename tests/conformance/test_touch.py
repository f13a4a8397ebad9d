"""Touches: clients that ask a database learn when its answer may be another."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.api import JSON, Api, Call, WaitingCall, fresh_path
from tests.support.http import Reply
from tests.support.keys import bearer, make_key
from tests.support.server import running_server
from tests.support.waiting import wait_until

TABLE = "feadeb84d447fd63"  # of public.todos
TEMPLATE_ID = "03d5826f0bf1e3e7"
OPEN = "0af6023939b30f26"  # status=open and tenantId=t1
TEMPLATE = {
    "entity": "public.todos",
    "fields": [
        {"name": "status", "encoding": "string"},
        {"name": "tenantId", "encoding": "string"},
    ],
}
META_FIELDS = {
    *("mode", "cursor", "epoch", "generation", "bucketMs", "coalesceMs", "filterSize", "k"),
    *("pendingKeys", "overflowBuckets", "activeWaiters", "bucketMaxSourceOffsetSeq"),
    *("lastFlushAtMs", "flushIntervalMsMaxLast10s", "flushIntervalMsP95Last10s", "settled"),
    *("coarseIntervalMs", "touchCoalesceWindowMs", "activeTemplates", "lagSourceOffsets"),
    *("touchMode", "walScannedThrough", "hotFineKeys", "hotTemplates", "hotFineKeysActive"),
    *("hotFineKeysGrace", "hotTemplatesActive", "hotTemplatesGrace", "fineWaitersActive"),
    *("coarseWaitersActive", "broadFineWaitersActive", "hotKeyFilteringEnabled"),
    *("hotTemplateFilteringEnabled", "scanRowsTotal", "scanBatchesTotal"),
    *("scannedButEmitted0BatchesTotal", "processedThroughDeltaTotal", "touchesEmittedTotal"),
    *("touchesTableTotal", "touchesTemplateTotal", "fineTouchesDroppedDueToBudgetTotal"),
    *("fineTouchesSkippedColdTemplateTotal", "fineTouchesSkippedColdKeyTotal"),
    *("fineTouchesSkippedTemplateBucketTotal", "waitTouchedTotal", "waitTimeoutTotal"),
    *("waitStaleTotal", "journalFlushesTotal", "journalNotifyWakeupsTotal"),
    *("journalNotifyWakeMsTotal", "journalNotifyWakeMsMax", "journalTimeoutsFiredTotal"),
    "journalTimeoutSweepMsTotal",
}


def enable(api: Api, path: str, **touch: Any) -> None:
    profile = {"kind": "state-protocol", "touch": {"enabled": True, **touch}}
    reply = api.post(f"{path}/_profile", json.dumps({"profile": profile}), content_type=JSON)
    assert reply.status == 200, reply


def touched_stream(api: Api, path: str | None = None, **touch: Any) -> str:
    path = api.stream(content_type=JSON, path=path)
    enable(api, path, **touch)
    return path


def post(api: Api, path: str, body: Any) -> Reply:
    return api.post(path, json.dumps(body), content_type=JSON)


def wait_call(path: str, headers: dict[str, str] | None = None, **fields: Any) -> Call:
    body = json.dumps({"cursor": "now", "keys": [TABLE], **fields}).encode()
    return Call("POST", f"{path}/touch/wait", body, {"Content-Type": JSON, **(headers or {})})


def begun(api: Api, path: str, **fields: Any) -> WaitingCall:
    """A wait that the server knows of."""
    waiting = api.hold(wait_call(path, **fields))
    waiting.send()
    api.settle()
    return waiting


def wait(api: Api, path: str, **fields: Any) -> Any:
    reply = post(api, f"{path}/touch/wait", {"cursor": "now", "keys": [TABLE], **fields})
    assert reply.status == 200, reply
    return reply.json()


def meta(api: Api, path: str, query: str = "") -> Any:
    reply = api.get(f"{path}/touch/meta{query}")
    assert reply.status == 200, reply
    return reply.json()


def insert(api: Api, path: str, entity: str = "public.todos", **row: Any) -> None:
    value = {"status": "open", "tenantId": "t1", **row}
    record = {"type": entity, "key": "1", "value": value, "headers": {"operation": "insert"}}
    assert api.append(path, json.dumps(record), content_type=JSON).status == 204


def message_of(reply: Reply) -> str:
    assert reply.status == 400, reply
    return str(reply.json()["error"]["message"])


def test_a_change_wakes_a_waiting_client_quickly(api: Api) -> None:
    path = touched_stream(api)
    waiting = begun(api, path)
    began = time.monotonic()
    insert(api, path)
    answer = waiting.reply().json()
    assert time.monotonic() - began < 4
    assert answer["touched"] is True
    assert answer["effectiveWaitKind"] == "fineKey"
    assert answer["bucketMaxSourceOffsetSeq"] == "0"
    assert wait(api, path, cursor=answer["cursor"], timeoutMs=30)["touched"] is False


def test_a_change_between_the_cursor_and_the_wait_is_told_at_once(api: Api) -> None:
    path = touched_stream(api)
    cursor = meta(api, path, "?settle=flush")["cursor"]
    insert(api, path)
    assert wait(api, path, cursor=cursor)["touched"] is True


def test_rows_are_told_apart_once_their_template_is_active(api: Api) -> None:
    path = touched_stream(api)
    reply = post(api, f"{path}/touch/templates/activate", {"templates": [TEMPLATE]})
    assert reply.status == 200
    activated = reply.json()
    assert activated["denied"] == []
    assert [each["templateId"] for each in activated["activated"]] == [TEMPLATE_ID]
    assert activated["limits"] == {
        "maxActiveTemplatesPerStream": 2048,
        "maxActiveTemplatesPerEntity": 256,
    }
    mine = begun(api, path, keys=[OPEN], templateIdsUsed=[TEMPLATE_ID], exact=True)
    insert(api, path, tenantId="t2")
    assert meta(api, path, "?settle=flush")["activeWaiters"] == 1
    insert(api, path)
    assert mine.reply().json()["touched"] is True


def test_templates_that_cannot_be_are_denied(api: Api) -> None:
    path = touched_stream(api, templates={"activationRateLimitPerMinute": 1})
    other = {**TEMPLATE, "entity": "other"}
    strange = {"entity": "e", "fields": [{"name": "a", "encoding": "uuid"}]}
    body = {"templates": [TEMPLATE, other, strange]}
    answer = post(api, f"{path}/touch/templates/activate", body).json()
    assert [each["templateId"] for each in answer["activated"]] == [TEMPLATE_ID]
    reasons = {each["templateId"]: each["reason"] for each in answer["denied"]}
    assert reasons.pop("0" * 16) == "invalid"
    assert list(reasons.values()) == ["rate_limited"]


def test_meta_tells_all_there_is_to_know(api: Api) -> None:
    path = touched_stream(api, memory={"filterPow2": 12, "k": 2})
    found = meta(api, path)
    assert set(found) == META_FIELDS
    assert (found["mode"], found["settled"], found["touchMode"]) == ("memory", True, "idle")
    assert (found["filterSize"], found["k"]) == (4096, 2)
    assert found["cursor"] == f"{found['epoch']}:0"
    insert(api, path)
    settled = meta(api, path, "?settle=flush")
    assert (settled["generation"], settled["scanRowsTotal"]) == (1, 1)
    assert settled["walScannedThrough"] == api.tail(path)


def test_a_wait_lasts_as_long_as_it_asks_for(api: Api) -> None:
    """Longer than any request that does not wait, and no timeout of the server cuts it short."""
    path = touched_stream(api)
    waiting = begun(api, path, timeoutMs=6500)
    began = time.monotonic()
    assert waiting.reply().json()["touched"] is False
    assert 5.5 < time.monotonic() - began < 10


def test_a_stream_without_touches_has_no_such_routes(api: Api) -> None:
    path = api.stream(content_type=JSON)
    for reply in (
        api.get(f"{path}/touch/meta"),
        post(api, f"{path}/touch/wait", {}),
        post(api, f"{path}/touch/templates/activate", {}),
    ):
        assert (reply.status, reply.json()["error"]["message"]) == (404, "touch not enabled")
    assert api.get(f"{fresh_path()}/touch/meta").status == 404


def test_the_end_of_a_stream_ends_its_waits(api: Api) -> None:
    path = touched_stream(api)
    waiting = begun(api, path)
    assert api.delete(path).status == 204
    reply = waiting.reply()
    assert (reply.status, reply.json()["error"]["message"]) == (404, "touch not enabled")


def test_touches_that_are_turned_off_end_their_waits(api: Api) -> None:
    path = touched_stream(api)
    waiting = begun(api, path)
    generic = json.dumps({"profile": {"kind": "generic"}})
    assert api.post(f"{path}/_profile", generic, content_type=JSON).status == 200
    assert waiting.reply().status == 404
    assert api.get(f"{path}/touch/meta").status == 404


def test_a_client_that_leaves_is_forgotten(api: Api) -> None:
    path = touched_stream(api)
    waiting = begun(api, path)
    assert meta(api, path)["activeWaiters"] == 1
    waiting.close()
    deadline = time.monotonic() + 5
    while meta(api, path)["activeWaiters"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_metrics_tell_who_waits(api: Api) -> None:
    def waiting_clients() -> str:
        lines = api.get("/metrics").body.decode().splitlines()
        [line] = [line for line in lines if 'mode="touch"' in line]
        return line

    path = touched_stream(api)
    waiting = begun(api, path)
    assert waiting_clients() == 'millstream_live_readers{mode="touch"} 1.0'
    insert(api, path)
    assert waiting.reply().status == 200
    assert waiting_clients() == 'millstream_live_readers{mode="touch"} 0.0'
    assert b"millstream_touch_streams" in api.get("/metrics").body


def test_both_surfaces_have_the_routes(api: Api) -> None:
    bucket = api.bucket()
    path = touched_stream(api, f"{bucket}/todos")
    waiting = begun(api, path)
    lenient = f"/v1/stream{bucket}/todos"
    insert(api, lenient)
    assert waiting.reply().json()["touched"] is True
    assert meta(api, lenient)["epoch"] == meta(api, path)["epoch"]


def test_a_name_that_looks_like_a_route_can_still_be_spelled(memory_api: Api) -> None:
    path = f"{fresh_path()}/%74ouch/meta"
    assert memory_api.put(path, content_type="text/plain").status == 201
    assert memory_api.append(path, b"x").status == 204
    assert memory_api.get(path).body == b"x"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"keys": []}, "wait requires keys or keyIds"),
        ({"keyIds": [-1]}, "wait.keyIds must be a non-empty uint32 array when provided"),
        ({"cursor": "x"}, "wait.cursor must be in the form <epochHex>:<generation> or 'now'"),
        ({"keys": ["x"], "exact": True}, "wait.exact requires 1 to 16 literal 64-bit routing keys"),
        (
            {"interestMode": "coarse", "exact": True},
            "wait.exact requires fine interest while runtime is in fine-key mode",
        ),
    ],
)
def test_what_is_wrong_with_a_wait_is_told(
    memory_api: Api, fields: dict[str, Any], message: str
) -> None:
    path = touched_stream(memory_api)
    body = {"cursor": "now", "keys": [TABLE], **fields}
    assert message_of(post(memory_api, f"{path}/touch/wait", body)) == message


def test_what_is_no_json_is_told(memory_api: Api) -> None:
    path = touched_stream(memory_api)
    for route, what in (("wait", "wait"), ("templates/activate", "activate")):
        reply = memory_api.post(f"{path}/touch/{route}", b"{", content_type=JSON)
        assert message_of(reply) == f"{what} body must be valid JSON"


def test_many_clients_on_many_streams_are_all_woken(api: Api) -> None:
    paths = [touched_stream(api) for _ in range(20)]
    waiting = [api.hold(wait_call(path)) for path in paths for _ in range(10)]
    for each in waiting:
        each.send()
    for path in paths:
        wait_until(lambda path=path: meta(api, path)["activeWaiters"] == 10)  # type: ignore[misc]
    for path in paths:
        insert(api, path)
    assert all(each.reply().json()["touched"] for each in waiting)


def test_a_large_append_wakes_everybody_it_concerns(api: Api) -> None:
    path = touched_stream(api)
    last, other = begun(api, path, keyIds=[1], keys=["last"]), begun(api, path)
    records = [
        {"type": "public.todos", "key": str(n), "value": n, "headers": {"operation": "insert"}}
        for n in range(20_000)
    ]
    assert api.append(path, json.dumps(records), content_type=JSON).status == 204
    assert other.reply().json()["touched"] is True
    settled = meta(api, path, "?settle=flush")
    assert (settled["settled"], settled["scanRowsTotal"]) == (True, 20_000)
    assert settled["activeWaiters"] == 1
    last.close()


def test_after_a_restart_every_cursor_is_stale(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        api = Api(server)
        path = touched_stream(api)
        cursor = meta(api, path)["cursor"]
        api.close()
    with running_server(tmp_path) as server:
        api = Api(server)
        answer = wait(api, path, cursor=cursor)
        assert (answer["stale"], answer["error"]["code"]) == (True, "stale")
        assert answer["cursor"] != cursor
        assert wait(api, path, cursor=answer["cursor"], timeoutMs=0)["touched"] is False
        api.close()


def test_a_stop_answers_those_who_wait(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        api = Api(server)
        waiting = begun(api, touched_stream(api), timeoutMs=120_000)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        assert waiting.reply().json()["touched"] is False
        stopping.join()
        api.close()


def test_a_wait_needs_a_key_that_may_read(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        api = Api(server)
        path = touched_stream(api)
        admin = make_key(api, None, "admin")
        reader, writer = make_key(api, admin, "read:**"), make_key(api, admin, "append:**")
        allowed = api.hold(wait_call(path, bearer(reader), timeoutMs=10))
        refused = api.hold(wait_call(path, bearer(writer)))
        for call, status in ((allowed, 200), (refused, 403)):
            call.send()
            assert call.reply().status == status
        api.close()
