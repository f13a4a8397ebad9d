"""Subscriptions as such, and webhooks: what they are told, how they are signed, acked, retried."""

from __future__ import annotations

import json
import time
from itertools import pairwise

import pytest

from tests.conformance.api import JSON, START, TEXT, Api, error_code
from tests.conformance.subscribers import (
    CONTROL,
    Control,
    Notification,
    eventually,
    finish,
    fresh,
    receiving,
    verify,
    wake_events,
)

HOOK = "https://hooks.example/in"


@pytest.fixture
def control(api: Api) -> Control:
    return Control(api)


@pytest.fixture
def memory_control(memory_api: Api) -> Control:
    return Control(memory_api)


# Create, show, delete


def test_a_subscription_says_what_it_is(api: Api, control: Control) -> None:
    name = fresh("sub")
    created = control.webhook(name, HOOK, pattern="nothing/*", description="why")
    assert created.status == 201
    shown = created.json()
    assert shown == control.show(name)
    signing = shown["webhook"].pop("signing")
    assert signing["alg"] == "ed25519"
    assert signing["jwks_url"] == f"{api.server.url}{CONTROL}/jwks.json"
    assert signing["kid"] == control.jwks()["keys"][0]["kid"]
    assert shown.pop("created_at").endswith("Z")
    assert shown == {
        "id": name,
        "subscription_id": name,
        "type": "webhook",
        "pattern": "nothing/*",
        "streams": [],
        "stream_count": 0,
        "has_more": False,
        "pending_count": 0,
        "webhook": {"url": HOOK},
        "lease_ttl_ms": 1000,
        "status": "active",
        "description": "why",
    }


def test_the_same_request_confirms_and_another_conflicts(memory_control: Control) -> None:
    name = fresh("sub")
    streams = ["b/b", "/a/a/", "a/a"]
    assert memory_control.webhook(name, HOOK, streams=streams).status == 201
    assert memory_control.webhook(name, HOOK, streams=["a/a", "b/b"]).status == 200
    other = memory_control.webhook(name, HOOK, streams=["a/a"])
    assert (other.status, error_code(other)) == (409, "SUBSCRIPTION_ALREADY_EXISTS")


def test_a_deleted_subscription_is_gone(memory_control: Control) -> None:
    name = fresh("sub")
    memory_control.webhook(name, HOOK, pattern="x/*")
    assert memory_control.delete(name).status == 204
    assert memory_control.delete(name).status == 204
    reply = memory_control.get(name)
    assert (reply.status, error_code(reply)) == (404, "SUBSCRIPTION_NOT_FOUND")
    for action in ("claim", "streams", "callback", "ack", "release"):
        body = {"worker": "w", "streams": []}
        refused = memory_control.act(name, action, body, token="x")
        assert (refused.status, error_code(refused)) == (404, "SUBSCRIPTION_NOT_FOUND"), action


def test_an_id_may_be_any_printable_text(memory_api: Api, memory_control: Control) -> None:
    name = fresh("a/ü ?#%")
    assert memory_control.webhook(name, HOOK, pattern="x/*").status == 201
    assert memory_control.show(name)["id"] == name


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"type": "webhook"},
        {"type": "email", "pattern": "x/*"},
        {"type": "webhook", "pattern": "x/*"},
        {"type": "webhook", "pattern": "x/*", "webhook": "https://hooks.example"},
        {"type": "webhook", "webhook": {"url": HOOK}},
        {"type": "webhook", "pattern": "", "streams": [], "webhook": {"url": HOOK}},
        {"type": "webhook", "pattern": 7, "webhook": {"url": HOOK}},
        {"type": "webhook", "pattern": "a//b", "webhook": {"url": HOOK}},
        {"type": "webhook", "pattern": "../b", "webhook": {"url": HOOK}},
        {"type": "webhook", "pattern": "__ds/*", "webhook": {"url": HOOK}},
        {"type": "webhook", "pattern": "x/%zz", "webhook": {"url": HOOK}},
        {"type": "webhook", "streams": [7], "webhook": {"url": HOOK}},
        {"type": "webhook", "streams": [""], "webhook": {"url": HOOK}},
        {"type": "webhook", "streams": ["__ds/x"], "webhook": {"url": HOOK}},
        {"type": "webhook", "pattern": "x/*", "webhook": {"url": HOOK}, "lease_ttl_ms": 999},
        {"type": "webhook", "pattern": "x/*", "webhook": {"url": HOOK}, "lease_ttl_ms": 600001},
        {"type": "webhook", "pattern": "x/*", "webhook": {"url": HOOK}, "lease_ttl_ms": 1.5},
        {"type": "webhook", "pattern": "x/*", "webhook": {"url": HOOK}, "description": "x" * 5000},
        {"type": "pull-wake", "pattern": "x/*"},
        {"type": "pull-wake", "pattern": "x/*", "wake_stream": ""},
        {"type": "pull-wake", "streams": ["w/w"], "wake_stream": "w/w"},
    ],
)
def test_a_wrong_request_is_refused(memory_control: Control, body: object) -> None:
    reply = memory_control.call("PUT", f"/subscriptions/{fresh('sub')}", body)
    assert (reply.status, error_code(reply)) == (400, "INVALID_REQUEST")


def test_a_body_that_is_no_json_is_refused(memory_api: Api) -> None:
    for body in (b"", b"{", b"\xff", b"[" * 100_000):
        reply = memory_api.put(f"{CONTROL}/subscriptions/x", body, content_type=JSON)
        assert (reply.status, error_code(reply)) == (400, "INVALID_REQUEST")
    assert memory_api.put(f"{CONTROL}/subscriptions/x", b" " * 2_000_000).status == 413


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1/hook",
        "https://169.254.169.254/",
        "https://[::1]/",
        "https://2130706433/",
        "https://u:p@hooks.example/",
        "ftp://hooks.example/",
        "not a url",
    ],
)
def test_a_webhook_cannot_be_sent_where_it_should_not(memory_control: Control, url: str) -> None:
    reply = memory_control.webhook(fresh("sub"), url, pattern="x/*")
    assert (reply.status, error_code(reply)) == (400, "WEBHOOK_URL_REJECTED")


# Routes


@pytest.mark.parametrize("method", ["PUT", "POST", "GET", "DELETE", "HEAD"])
@pytest.mark.parametrize("path", ["__ds", "__ds/x", "__ds/subscriptions", "%5F%5Fds/x", "__d%73"])
def test_streams_below_the_reserved_name_do_not_exist(
    memory_api: Api, method: str, path: str
) -> None:
    body = b"x" if method in ("PUT", "POST") else None
    reply = memory_api.call(method, f"/v1/stream/{path}", body, content_type=TEXT)
    assert reply.status == 400


def test_the_reserved_name_is_only_reserved_as_a_whole_first_segment(memory_api: Api) -> None:
    for path in ("__dsx", "x/__ds", "__ds-1/x"):
        assert memory_api.put(f"/v1/stream/{path}", content_type=TEXT).status in (200, 201)


def test_wrong_methods_name_the_right_ones(memory_api: Api) -> None:
    wrong = [
        ("POST", "/jwks.json", "GET, HEAD, OPTIONS"),
        ("POST", "/subscriptions/x", "GET, HEAD, PUT, DELETE, OPTIONS"),
        ("GET", "/subscriptions/x/claim", "POST, OPTIONS"),
        ("PUT", "/subscriptions/x/streams/a", "DELETE, OPTIONS"),
    ]
    for method, path, allow in wrong:
        reply = memory_api.call(method, CONTROL + path)
        assert (reply.status, reply.headers["allow"]) == (405, allow)
    assert memory_api.call("OPTIONS", f"{CONTROL}/subscriptions/x").status == 204


def test_the_public_key_is_served_as_a_key_set(memory_api: Api) -> None:
    reply = memory_api.get(f"{CONTROL}/jwks.json")
    assert reply.headers["content-type"] == "application/jwk-set+json"
    assert reply.headers["cache-control"] == "public, max-age=300"
    (key,) = reply.json()["keys"]
    assert (key["kty"], key["crv"], key["alg"], key["use"]) == ("OKP", "Ed25519", "EdDSA", "sig")
    assert key["kid"].startswith("ds_")
    assert "d" not in key


# Which streams


def test_existing_streams_are_followed_from_their_tail(api: Api, control: Control) -> None:
    bucket, name = fresh("bucket"), fresh("sub")
    api.stream(b"old", path=f"/v1/stream/{bucket}/a")
    api.stream(b"old", path=f"/v1/stream/{bucket}/deep/b")
    control.webhook(name, HOOK, pattern=f"{bucket}/*")
    tail = api.tail(f"/v1/stream/{bucket}/a")
    (stream,) = control.show(name)["streams"]
    assert stream == {
        "path": f"{bucket}/a",
        "link_type": "glob",
        "acked_offset": tail,
        "tail_offset": tail,
        "has_pending": False,
    }


def test_explicit_streams_come_and_go(api: Api, control: Control) -> None:
    name, bucket = fresh("sub"), fresh("bucket")
    control.webhook(name, HOOK, pattern=f"{bucket}/*", streams=[f"{bucket}/a"])
    api.stream(path=f"/v1/stream/{bucket}/a")
    links = {"streams": ["manual/a", "manual%2Fb", "single", "manual/ü ?"]}
    assert control.act(name, "streams", links).status == 204
    assert control.act(name, "streams", links).status == 204
    shown = {s["path"]: s["link_type"] for s in control.show(name)["streams"]}
    expected = ["manual/a", "manual%2Fb", "single", "manual/ü ?", f"{bucket}/a"]
    assert shown == dict.fromkeys(expected, "explicit")
    encoded = ["manual%2Fa", "manual%252Fb", "single", "manual%2F%C3%BC%20%3F", f"{bucket}%2Fa"]
    for path in [*encoded, "never/linked"]:
        assert control.call("DELETE", f"/subscriptions/{name}/streams/{path}").status == 204
    shown = {s["path"]: s["link_type"] for s in control.show(name)["streams"]}
    assert shown == {f"{bucket}/a": "glob"}


def test_an_explicit_stream_need_not_exist(api: Api, control: Control) -> None:
    name, path = fresh("sub"), fresh("manual/later")
    with receiving(finish) as receiver:
        control.webhook(name, receiver.url, streams=[path])
        assert control.acked(name, path) == START
        api.stream(b"first", path=f"/v1/stream/{path}")
        told = receiver.wait()
        eventually(lambda: control.acked(name, path) == told.tail(path))
        assert told.tail(path) == api.tail(f"/v1/stream/{path}")
        control.delete(name)


# Webhooks


def test_a_webhook_is_told_everything_and_signed(api: Api, control: Control) -> None:
    name, path = fresh("süb"), fresh("events/a")
    with receiving() as receiver:
        control.webhook(name, receiver.url, pattern="events/*")
        api.put(f"/v1/stream/{path}", b"first", content_type=TEXT)
        told = receiver.wait()
        verify(told, control.jwks())
        assert told.headers["content-type"] == "application/json"
        body = told.body
        assert (body["subscription_id"], body["generation"]) == (name, 1)
        quoted = name.replace("ü", "%C3%BC")
        expected = f"{api.server.url}{CONTROL}/subscriptions/{quoted}/callback"
        assert body["callback_url"] == expected
        (stream,) = [s for s in body["streams"] if s["path"] == path]
        assert stream == {
            "path": path,
            "link_type": "glob",
            "acked_offset": START,
            "tail_offset": api.tail(f"/v1/stream/{path}"),
            "has_pending": True,
        }
        control.delete(name)


def test_one_wake_is_in_flight_and_the_rest_waits_for_the_next(api: Api, control: Control) -> None:
    name, path = fresh("sub"), fresh("flight/a")
    with receiving() as receiver:
        control.webhook(name, receiver.url, pattern="flight/*", lease_ttl_ms=30_000)
        api.stream(b"1", path=f"/v1/stream/{path}")
        first = receiver.wait().body
        tail = receiver.wait().tail(path)
        api.append(f"/v1/stream/{path}", b"2")
        time.sleep(0.2)
        assert len(receiver.received) == 1
        done = control.ack(name, first, (path, tail), done=True)
        assert done.json() == {"ok": True, "next_wake": True}
        second = receiver.wait(2)
        assert second.body["generation"] == 2
        done = control.ack(name, second.body, (path, second.tail(path)), done=True)
        assert done.json() == {"ok": True, "next_wake": False}
        time.sleep(0.2)
        assert len(receiver.received) == 2
        control.delete(name)


def test_a_callback_without_done_is_progress_and_a_heartbeat(api: Api, control: Control) -> None:
    name, path = fresh("sub"), fresh("beat/a")
    with receiving() as receiver:
        control.webhook(name, receiver.url, pattern="beat/*", lease_ttl_ms=3000)
        api.stream(b"1", b"2", path=f"/v1/stream/{path}")
        wake = receiver.wait().body
        offsets = [START, "0000000000000001_0000000000000001", api.tail(f"/v1/stream/{path}")]
        for offset in offsets:
            beat = control.ack(name, wake, (path, offset))
            assert beat.json() == {"ok": True, "next_wake": False}
            assert control.acked(name, path) == offset
            time.sleep(1.2)
        assert len(receiver.received) == 1  # the lease was extended all the time
        assert control.ack(name, wake, done=True).status == 200
        control.delete(name)


def test_a_lease_that_runs_out_wakes_again_with_a_new_generation(
    api: Api, control: Control
) -> None:
    name, path = fresh("sub"), fresh("lapse/a")
    with receiving() as receiver:
        control.webhook(name, receiver.url, pattern="lapse/*")
        api.stream(b"1", path=f"/v1/stream/{path}")
        first, second = receiver.wait(1), receiver.wait(2)
        assert 0.9 < second.at - first.at < 3
        assert second.body["generation"] == first.body["generation"] + 1
        stale = control.ack(name, first.body, done=True)
        assert (stale.status, error_code(stale)) == (409, "FENCED")
        control.delete(name)


def test_failures_are_retried_with_growing_pauses(api: Api, control: Control) -> None:
    name, path = fresh("sub"), fresh("retry/a")

    def fail_twice(notification: Notification, number: int) -> tuple[int, bytes]:
        return (500, b"") if number < 2 else (200, b'{"done": true}')

    with receiving(fail_twice) as receiver:
        control.webhook(name, receiver.url, pattern="retry/*")
        api.stream(b"1", path=f"/v1/stream/{path}")
        receiver.wait(1)
        eventually(lambda: control.show(name)["status"] == "failed")
        receiver.wait(3)
        pauses = [b.at - a.at for a, b in pairwise(receiver.received)]
        assert 0.75 < pauses[0] < 1.6
        assert 1.55 < pauses[1] < 3.0
        wakes = [(n.body["wake_id"], n.body["generation"]) for n in receiver.received]
        assert len(set(wakes)) == 1
        for told in receiver.received:
            verify(told, control.jwks())
        eventually(lambda: control.show(name)["status"] == "active")
        eventually(lambda: control.acked(name, path) == api.tail(f"/v1/stream/{path}"))
        control.delete(name)


def test_a_redirect_is_a_failure_and_not_followed(api: Api, control: Control) -> None:
    name, path = fresh("sub"), fresh("redirect/a")
    with receiving(lambda told, number: (307, b"")) as receiver:
        control.webhook(name, receiver.url, pattern="redirect/*")
        api.stream(b"1", path=f"/v1/stream/{path}")
        eventually(lambda: control.show(name)["status"] == "failed")
        assert {told.path for told in receiver.received} == {"/hook"}
        control.delete(name)


def test_a_receiver_that_does_not_answer_counts_as_failed(api: Api, control: Control) -> None:
    name, path = fresh("sub"), fresh("silent/a")

    def sleep(notification: Notification, number: int) -> tuple[int, bytes]:
        time.sleep(3 if number == 0 else 0)
        return 200, b"{}"

    with receiving(sleep) as receiver:
        control.webhook(name, receiver.url, pattern="silent/*", lease_ttl_ms=1000)
        api.stream(b"1", path=f"/v1/stream/{path}")
        eventually(lambda: control.show(name)["status"] == "failed")
        assert receiver.wait(2).body["generation"] == 1
        control.delete(name)


@pytest.mark.parametrize(
    "answer", [b"", b"ok", b"[1]", b'{"done": 1}', b'{"done": false}', b"\xff", b"x" * 300_000]
)
def test_any_other_answer_is_just_an_acceptance(
    memory_api: Api, memory_control: Control, answer: bytes
) -> None:
    name, path = fresh("sub"), fresh("answer/a")
    with receiving(lambda told, number: (202, answer)) as receiver:
        memory_control.webhook(name, receiver.url, pattern="answer/*", lease_ttl_ms=30_000)
        memory_api.stream(b"1", path=f"/v1/stream/{path}")
        receiver.wait()
        time.sleep(0.1)
        shown = memory_control.show(name)
        assert shown["status"] == "active"
        assert memory_control.acked(name, path) == START
        memory_control.delete(name)


def test_only_the_holder_of_this_wake_may_call_back(api: Api, control: Control) -> None:
    name, path = fresh("sub"), fresh("token/a")
    with receiving() as receiver:
        control.webhook(name, receiver.url, pattern="token/*", lease_ttl_ms=30_000)
        control.webhook(f"{name}-2", receiver.url, pattern="else/*")
        api.stream(b"1", path=f"/v1/stream/{path}")
        wake = receiver.wait().body
        callback = {"wake_id": wake["wake_id"], "generation": wake["generation"], "done": True}
        token = wake["callback_token"]
        refusals = [
            (control.act(name, "callback", callback), 401, "TOKEN_INVALID"),
            (control.act(name, "callback", callback, "x"), 401, "TOKEN_INVALID"),
            (control.act(name, "callback", callback, token[:-1]), 401, "TOKEN_INVALID"),
            (control.act(f"{name}-2", "callback", callback, token), 401, "TOKEN_INVALID"),
            (
                control.call("POST", f"/subscriptions/{name}/callback?token={token}", callback),
                401,
                "TOKEN_INVALID",
            ),
            (control.ack(name, wake, wake_id="w_other"), 409, "FENCED"),
            (control.ack(name, wake, generation=2), 409, "FENCED"),
            (control.ack(name, wake, generation=None), 409, "FENCED"),
            (control.act(name, "ack", callback, token), 400, "INVALID_REQUEST"),
            (control.act(name, "release", callback, token), 400, "INVALID_REQUEST"),
            (control.act(name, "claim", {"worker": "w"}), 400, "INVALID_REQUEST"),
        ]
        for reply, status, code in refusals:
            assert (reply.status, error_code(reply)) == (status, code)
            assert (status == 401) == ("www-authenticate" in reply.headers)
        assert control.ack(name, wake, done=True).status == 200
        for subscription in (name, f"{name}-2"):
            control.delete(subscription)


@pytest.mark.parametrize(
    ("stream", "offset"),
    [
        ("acks/unknown", START),
        ("", START),
        (None, "-1"),
        (None, "now"),
        (None, "rubbish"),
        (None, ""),
        (None, START),  # a step back
        (None, "0000000000000001_0000000000000002"),
        (None, "9999999999999999_9999999999999999"),
    ],
)
def test_an_impossible_ack_is_refused_whole(
    memory_api: Api, memory_control: Control, stream: str | None, offset: str
) -> None:
    api, control, name, path = memory_api, memory_control, fresh("sub"), fresh("acks/a")
    with receiving() as receiver:
        control.webhook(name, receiver.url, streams=[path], lease_ttl_ms=30_000)
        api.stream(b"1", b"2", path=f"/v1/stream/{path}")
        wake, tail = receiver.wait().body, api.tail(f"/v1/stream/{path}")
        one = "0000000000000001_0000000000000001"
        assert control.ack(name, wake, (path, one)).status == 200
        acks = [(path, tail), (path if stream is None else stream, offset)]
        refused = control.ack(name, wake, *acks, done=True)
        assert (refused.status, error_code(refused)) == (409, "INVALID_OFFSET")
        assert control.acked(name, path) == one
        control.delete(name)


def test_deleting_ends_deliveries_and_callbacks(api: Api, control: Control) -> None:
    name, path = fresh("sub"), fresh("deleted/a")
    with receiving() as receiver:
        control.webhook(name, receiver.url, pattern="deleted/*")
        api.stream(b"1", path=f"/v1/stream/{path}")
        wake = receiver.wait().body
        assert control.delete(name).status == 204
        late = control.ack(name, wake, done=True)
        assert (late.status, error_code(late)) == (404, "SUBSCRIPTION_NOT_FOUND")
        api.append(f"/v1/stream/{path}", b"2")
        control.webhook(name, receiver.url, pattern="deleted/*")
        late = control.ack(name, wake, done=True)
        assert (late.status, error_code(late)) == (409, "FENCED")
        time.sleep(1.3)  # longer than the old lease
        assert len(receiver.received) == 1
        control.delete(name)


def test_many_subscriptions_are_served_side_by_side(api: Api, control: Control) -> None:
    names = [fresh("many") for _ in range(40)]
    path = fresh("crowd/a")
    with receiving(finish) as receiver:
        for name in names:
            control.webhook(name, receiver.url, pattern="crowd/**")
        api.stream(b"1", path=f"/v1/stream/{path}")
        receiver.wait(len(names))
        assert {told.body["subscription_id"] for told in receiver.received} == set(names)
        tail = api.tail(f"/v1/stream/{path}")
        eventually(lambda: all(control.acked(name, path) == tail for name in names))
        for name in names:
            control.delete(name)


# Pull-wake


def test_a_wake_event_is_written_and_heard(api: Api, control: Control) -> None:
    name, wake_stream, path = fresh("pull"), fresh("wake/pool"), fresh("pulled/a")
    api.stream(content_type=JSON, path=f"/v1/stream/{wake_stream}")
    assert control.pull(name, wake_stream, pattern="pulled/*").status == 201
    assert control.show(name)["wake_stream"] == wake_stream
    waiting = api.wait(f"/v1/stream/{wake_stream}?offset=now&live=long-poll")
    before_ms = time.time() * 1000 - 1000
    api.stream(b"1", path=f"/v1/stream/{path}")
    reply = waiting.reply()
    assert reply.status == 200
    (event,) = json.loads(reply.body)
    assert before_ms < event.pop("ts") < time.time() * 1000 + 1000
    assert event == {"type": "wake", "subscription_id": name, "stream": path, "generation": 1}
    control.delete(name)


def test_claim_heartbeat_ack_and_next_wake(api: Api, control: Control) -> None:
    name, wake_stream, path = fresh("pull"), fresh("wake/pool"), fresh("claimed/a")
    api.stream(content_type=JSON, path=f"/v1/stream/{wake_stream}")
    control.pull(name, wake_stream, pattern="claimed/*", lease_ttl_ms=3000)
    nothing = control.act(name, "claim", {"worker": "one"})
    assert (nothing.status, error_code(nothing)) == (409, "NO_PENDING_WORK")
    api.stream(b"1", b"2", path=f"/v1/stream/{path}")
    wake = control.claim(name, "one")
    assert (wake["generation"], wake["lease_ttl_ms"]) == (1, 3000)
    (stream,) = [s for s in wake["streams"] if s["has_pending"]]
    assert (stream["path"], stream["acked_offset"]) == (path, START)
    busy = control.act(name, "claim", {"worker": "two"})
    assert (busy.status, error_code(busy)) == (409, "ALREADY_CLAIMED")
    assert busy.json()["error"]["current_holder"] == "one"
    assert busy.json()["error"]["generation"] == 1
    first = "0000000000000001_0000000000000001"
    for _ in range(4):
        time.sleep(1.0)
        beat = control.ack(name, wake, (path, first))
        assert beat.json() == {"ok": True, "next_wake": False}
    done = control.ack(name, wake, (path, first), done=True)
    assert done.json() == {"ok": True, "next_wake": True}
    eventually(lambda: [e["generation"] for e in wake_events(api, wake_stream, name)] == [1, 2])
    replay = control.ack(name, wake, (path, first), done=True)
    assert (replay.status, error_code(replay)) == (409, "FENCED")
    wake = control.claim(name, "two")
    done = control.ack(name, wake, (path, api.tail(f"/v1/stream/{path}")), done=True)
    assert done.json() == {"ok": True, "next_wake": False}
    control.delete(name)


def test_a_lease_that_runs_out_frees_the_wake(api: Api, control: Control) -> None:
    name, wake_stream, path = fresh("pull"), fresh("wake/pool"), fresh("lost/a")
    api.stream(content_type=JSON, path=f"/v1/stream/{wake_stream}")
    control.pull(name, wake_stream, pattern="lost/*")
    api.stream(b"1", path=f"/v1/stream/{path}")
    lost = control.claim(name, "one")
    eventually(lambda: [e["generation"] for e in wake_events(api, wake_stream, name)] == [1, 2])
    found = control.claim(name, "two")
    assert found["generation"] == 2
    for late in (control.ack(name, lost, done=True), control.release(name, lost)):
        assert (late.status, error_code(late)) == (409, "FENCED")
    assert control.release(name, found).status == 204
    eventually(lambda: len(wake_events(api, wake_stream, name)) == 3)
    control.delete(name)


def test_a_wake_stream_that_comes_late_gets_its_event(api: Api, control: Control) -> None:
    name, wake_stream, path = fresh("pull"), fresh("wake/late"), fresh("late/a")
    control.pull(name, wake_stream, pattern="late/*")
    api.stream(b"1", path=f"/v1/stream/{path}")
    eventually(lambda: control.show(name)["status"] == "failed")
    api.stream(content_type=JSON, path=f"/v1/stream/{wake_stream}")
    eventually(lambda: len(wake_events(api, wake_stream, name)) == 1)
    assert control.show(name)["status"] == "active"
    control.delete(name)


@pytest.mark.parametrize("body", [{}, {"worker": ""}, {"worker": 7}, {"worker": "x" * 300}])
def test_a_worker_needs_a_name(memory_control: Control, body: object) -> None:
    name = fresh("pull")
    memory_control.pull(name, "wake/x", pattern="x/*")
    reply = memory_control.act(name, "claim", body)
    assert (reply.status, error_code(reply)) == (400, "INVALID_REQUEST")
