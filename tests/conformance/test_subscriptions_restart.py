"""Subscriptions over a restart, polite or not: nothing forgotten, nothing early, nothing twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.api import JSON, Api, error_code
from tests.conformance.subscribers import (
    Control,
    Notification,
    Receiver,
    eventually,
    finish,
    fresh,
    receiving,
    verify,
    wake_events,
)
from tests.support.server import LOCAL_WEBHOOKS, ServerProcess, running_server

CHECKPOINTED = ("--wal-segment-bytes", "4096", "--checkpoint-wal-bytes", "4096")
Tell = Callable[[Api, Control], None]


@pytest.fixture(params=["SIGTERM", "kill -9", "kill -9, from a checkpoint"])
def ending(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def live_twice(data_dir: Path, ending: str, before: Tell, after: Tell) -> None:
    """`before` speaks to the first server, `after` to the one that follows on the same port."""
    is_checkpointed = "checkpoint" in ending
    flags = (*LOCAL_WEBHOOKS, *(CHECKPOINTED if is_checkpointed else ()))
    server = ServerProcess(data_dir, *flags)
    try:
        with closing(Api(server)) as api:
            before(api, Control(api))
            if is_checkpointed:
                write_a_checkpoint(api, data_dir)
        if ending == "SIGTERM":
            assert server.stop() == 0
    finally:
        server.kill()
    assert "Traceback" not in server.output.decode()
    second = ServerProcess(data_dir, *flags, port=server.port)
    try:
        with closing(Api(second)) as api:
            after(api, Control(api))
        assert second.stop() == 0
    finally:
        second.kill()
    assert "Traceback" not in second.output.decode()


def write_a_checkpoint(api: Api, data_dir: Path) -> None:
    """Until one is there that covers everything told so far."""
    known = set(data_dir.rglob("*.checkpoint"))
    path = api.stream()
    for _ in range(2):
        while set(data_dir.rglob("*.checkpoint")) <= known:
            assert api.append(path, b"x" * 2000).status == 204
        known |= set(data_dir.rglob("*.checkpoint"))


def test_everything_about_a_subscription_is_remembered(tmp_path: Path, ending: str) -> None:
    known = dict[str, Any]()

    def before(api: Api, control: Control) -> None:
        api.stream(b"old", path="/v1/stream/events/a")
        control.webhook("hook", "https://hooks.example/", pattern="events/*", description="ü")
        control.pull("pull", "wake/pool", streams=["manual/a", "manual/b"])
        control.act("hook", "streams", {"streams": ["manual/c"]})
        control.call("DELETE", "/subscriptions/pull/streams/manual%2Fb")
        control.webhook("gone", "https://hooks.example/", pattern="events/*")
        control.delete("gone")
        known.update(hook=control.show("hook"), pull=control.show("pull"), jwks=control.jwks())

    def after(api: Api, control: Control) -> None:
        assert control.show("hook") == known["hook"]
        assert control.show("pull") == known["pull"]
        assert control.jwks() == known["jwks"]
        assert control.get("gone").status == 404
        same = control.webhook(
            "hook", "https://hooks.example/", pattern="events/*", description="ü"
        )
        assert same.status == 200
        api.stream(path="/v1/stream/events/b")
        assert {s["path"] for s in control.show("hook")["streams"]} == {
            "events/a",
            "events/b",
            "manual/c",
        }

    live_twice(tmp_path / "data", ending, before, after)


def test_a_held_webhook_wake_can_be_finished_after_the_restart(tmp_path: Path, ending: str) -> None:
    with receiving() as receiver:
        jwks = list[Any]()

        def before(api: Api, control: Control) -> None:
            control.webhook("s", receiver.url, pattern="events/*", lease_ttl_ms=60_000)
            api.stream(b"1", b"2", path="/v1/stream/events/a")
            wake = receiver.wait().body
            one = "0000000000000001_0000000000000001"
            assert control.ack("s", wake, ("events/a", one)).status == 200
            jwks.append(control.jwks())

        def after(api: Api, control: Control) -> None:
            wake = receiver.wait().body
            assert control.acked("s", "events/a") == "0000000000000001_0000000000000001"
            tail = api.tail("/v1/stream/events/a")
            done = control.ack("s", wake, ("events/a", tail), done=True)
            assert done.json() == {"ok": True, "next_wake": False}
            assert len(receiver.received) == 1
            replay = control.ack("s", wake, ("events/a", tail), done=True)
            assert error_code(replay) == "FENCED"
            api.append("/v1/stream/events/a", b"3")
            second = receiver.wait(2)
            assert second.body["generation"] == 2
            verify(second, jwks[0])

        live_twice(tmp_path / "data", ending, before, after)


def test_a_lease_goes_on_and_ends_after_the_restart(tmp_path: Path, ending: str) -> None:
    claimed_at = list[float]()

    def before(api: Api, control: Control) -> None:
        api.stream(content_type=JSON, path="/v1/stream/wake/pool")
        control.pull("s", "wake/pool", pattern="events/*", lease_ttl_ms=15_000)
        api.stream(b"1", path="/v1/stream/events/a")
        control.claim("s", "one")
        claimed_at.append(time.monotonic())

    def after(api: Api, control: Control) -> None:
        busy = control.act("s", "claim", {"worker": "two"})
        assert busy.json()["error"]["current_holder"] == "one"
        eventually(lambda: len(wake_events(api, "wake/pool", "s")) == 2, 40)
        assert time.monotonic() - claimed_at[0] >= 14.9
        assert control.claim("s", "two")["generation"] == 2

    live_twice(tmp_path / "data", ending, before, after)


def test_a_lease_that_ended_while_the_server_was_down_wakes_at_once(tmp_path: Path) -> None:
    def before(api: Api, control: Control) -> None:
        api.stream(content_type=JSON, path="/v1/stream/wake/pool")
        control.pull("s", "wake/pool", pattern="events/*", lease_ttl_ms=1000)
        api.stream(b"1", path="/v1/stream/events/a")
        control.claim("s", "one")
        time.sleep(0.9)

    def after(api: Api, control: Control) -> None:
        eventually(lambda: len(wake_events(api, "wake/pool", "s")) == 2)

    live_twice(tmp_path / "data", "kill -9", before, after)


def test_a_pending_retry_comes_when_it_was_due(tmp_path: Path, ending: str) -> None:
    failing = [True]

    def behave(notification: Notification, number: int) -> tuple[int, bytes]:
        return (503, b"") if failing[0] else finish(notification, number)

    with receiving(behave) as receiver:

        def before(api: Api, control: Control) -> None:
            control.webhook("s", receiver.url, pattern="events/*")
            api.stream(b"1", path="/v1/stream/events/a")
            receiver.wait(3)  # the next one is due in four seconds or so
            time.sleep(0.5)  # by then the third failure is in the journal
            failing[0] = False

        def after(api: Api, control: Control) -> None:
            ready_at, status = time.monotonic(), control.show("s")["status"]
            if len(receiver.received) == 3:  # else the restart took longer than the wait
                assert status == "failed"
            third, fourth = receiver.received[2], receiver.wait(4)
            assert fourth.at - third.at > 3.1
            assert fourth.at < max(third.at + 7, ready_at + 3)
            assert fourth.body["wake_id"] == receiver.received[0].body["wake_id"]
            tail = api.tail("/v1/stream/events/a")
            eventually(lambda: control.acked("s", "events/a") == tail)
            assert control.show("s")["status"] == "active"

        live_twice(tmp_path / "data", ending, before, after)


def test_a_webhook_whose_answer_was_lost_is_sent_again(tmp_path: Path, ending: str) -> None:
    def behave(notification: Notification, number: int) -> tuple[int, bytes]:
        time.sleep(1.5 if number == 0 else 0)
        return finish(notification, number)

    with receiving(behave) as receiver:

        def before(api: Api, control: Control) -> None:
            control.webhook("s", receiver.url, pattern="events/*", lease_ttl_ms=60_000)
            api.stream(b"1", path="/v1/stream/events/a")
            receiver.wait()

        def after(api: Api, control: Control) -> None:
            assert receiver.wait(2).body["wake_id"] == receiver.wait(1).body["wake_id"]
            tail = api.tail("/v1/stream/events/a")
            eventually(lambda: control.acked("s", "events/a") == tail)

        live_twice(tmp_path / "data", ending, before, after)


def test_work_that_nobody_was_woken_for_is_woken_for_after_the_restart(tmp_path: Path) -> None:
    """The receiver is away for the whole first life of the server."""
    receiver = Receiver(finish)
    receiver.close()

    def before(api: Api, control: Control) -> None:
        control.webhook("s", receiver.url, pattern="events/*")
        api.stream(b"1", path="/v1/stream/events/a")
        eventually(lambda: control.show("s")["status"] == "failed")

    def after(api: Api, control: Control) -> None:
        with receiving(finish, receiver.port) as back:
            back.wait()
            tail = api.tail("/v1/stream/events/a")
            eventually(lambda: control.acked("s", "events/a") == tail)

    live_twice(tmp_path / "data", "kill -9", before, after)


def test_a_stop_does_not_wait_for_a_receiver(tmp_path: Path) -> None:
    def sleep(notification: Notification, number: int) -> tuple[int, bytes]:
        time.sleep(8)
        return 200, b""

    data_dir = tmp_path / "data"
    with receiving(sleep) as receiver, running_server(data_dir, *LOCAL_WEBHOOKS) as server:
        with closing(Api(server)) as api:
            control = Control(api)
            control.webhook("s", receiver.url, pattern="events/*", lease_ttl_ms=60_000)
            api.stream(b"1", path=f"/v1/stream/{fresh('events/a')}")
            receiver.wait()
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 6
        assert "Traceback" not in server.output.decode()
