"""Where webhooks may go, what they are told of this server, and what operators see of them."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.conformance.api import TEXT, Api, error_code
from tests.conformance.subscribers import (
    CONTROL,
    Control,
    Notification,
    eventually,
    finish,
    fresh,
    receiving,
)
from tests.support.server import (
    LOCAL_WEBHOOKS,
    ServerProcess,
    running_server,
)

PUBLIC = "https://streams.example.org"


@contextlib.contextmanager
def serving(*flags: str) -> Iterator[tuple[Api, Control]]:
    with running_server(None, *flags) as server:
        with closing(Api(server)) as api:
            yield api, Control(api)
        assert server.stop() == 0
        assert "Traceback" not in server.output.decode()


def create_subscription(data_dir: Path, url: str) -> None:
    with running_server(data_dir, *LOCAL_WEBHOOKS) as server, closing(Api(server)) as api:
        assert Control(api).webhook("sub", url, pattern="x/*").status == 201


def metric(api: Api, name: str) -> float:
    text = api.get("/metrics").body.decode()
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found is not None, f"{name} is not in\n{text}"
    return float(found[1])


def test_nothing_private_is_called_unless_the_operator_says_so() -> None:
    with serving() as (_, control):
        for url in (
            "http://127.0.0.1:3000/",
            "http://localhost:3000/",
            "https://localhost/",
            "https://127.0.0.1/",
            "http://hooks.example/",
            "https://10.0.0.1/",
            "https://[::1]/",
            "https://[::ffff:127.0.0.1]/",
        ):
            reply = control.webhook(fresh("sub"), url, pattern="x/*")
            assert (reply.status, error_code(reply)) == (400, "WEBHOOK_URL_REJECTED"), url
            assert "--webhook-allow" in reply.json()["error"]["message"]
        assert control.webhook(fresh("sub"), "https://hooks.example/", pattern="x/*").status == 201


def test_a_receiver_may_be_allowed_at_one_port_alone() -> None:
    with (
        receiving(finish) as receiver,
        receiving(finish) as other,
        serving("--webhook-allow", f"127.0.0.1:{receiver.port}") as (api, control),
    ):
        assert control.webhook("other", other.url, pattern="x/*").status == 400
        assert control.webhook("sub", receiver.url, pattern="x/*").status == 201
        api.stream(b"1", path="/v1/stream/x/a")
        receiver.wait()


def test_what_is_no_longer_allowed_is_not_called_after_a_restart(tmp_path: Path) -> None:
    with receiving(finish) as receiver:
        create_subscription(tmp_path / "data", receiver.url)
        with running_server(tmp_path / "data") as server, closing(Api(server)) as api:
            api.stream(b"1", path="/v1/stream/x/a")
            eventually(lambda: Control(api).show("sub")["status"] == "failed")
            assert server.stop() == 0
            assert "--webhook-allow 127.0.0.1" in server.output.decode()
        assert not receiver.received


def test_a_wrong_setting_is_refused_at_the_start() -> None:
    for flags, told in (
        (("--webhook-allow", "http://x"), "--webhook-allow: 'http://x' is no host, host:port"),
        (("--public-url", "streams.example.org"), "--public-url: 'streams.example.org' is not"),
    ):
        server = ServerProcess(None, *flags, wait=False)
        assert server.process.wait(30) == 2
        assert told in server.finish_output()


# Back to this server


@pytest.mark.parametrize("path", ["/v1/stream/x/a", "/x/a", "/"])
def test_a_webhook_to_this_very_server_is_refused(path: str) -> None:
    with serving(*LOCAL_WEBHOOKS) as (api, control):
        for host in ("127.0.0.1", "localhost", "127.0.0.2"):
            reply = control.webhook("sub", f"http://{host}:{api.port}{path}", pattern="x/*")
            assert (reply.status, error_code(reply)) == (400, "WEBHOOK_URL_REJECTED")
            assert "leads back to this server" in reply.json()["error"]["message"]


def test_a_webhook_to_the_public_url_is_refused_and_beside_it_is_not() -> None:
    with serving("--public-url", f"{PUBLIC}/mill/") as (_, control):
        for url in (f"{PUBLIC}/mill/x/a", f"{PUBLIC}:443/mill/v1/stream/x"):
            assert error_code(control.webhook("sub", url, pattern="x/*")) == "WEBHOOK_URL_REJECTED"
        assert control.webhook("sub", f"{PUBLIC}/hooks", pattern="x/*").status == 201


# The public URL


def test_absolute_urls_begin_with_the_public_url() -> None:
    flags = ("--public-url", f"{PUBLIC}/", *LOCAL_WEBHOOKS)
    with receiving() as receiver, serving(*flags) as (api, control):
        shown = control.webhook("sub", receiver.url, pattern="events/*").json()
        assert shown["webhook"]["signing"]["jwks_url"] == f"{PUBLIC}{CONTROL}/jwks.json"
        created = api.put("/v1/stream/events/a", b"1", content_type=TEXT)
        assert created.headers["location"] == f"{PUBLIC}/v1/stream/events/a"
        callback = receiver.wait().body["callback_url"]
        assert callback == f"{PUBLIC}{CONTROL}/subscriptions/sub/callback"
        tail = api.tail("/v1/stream/events/a")
        assert api.put(f"/events/a/snapshot/{tail}", b"snap", content_type=TEXT).status == 204
        latest = api.get("/events/a/snapshot")
        assert latest.headers["location"] == f"{PUBLIC}/events/a/snapshot/{tail}"


def test_a_public_url_also_holds_for_subscriptions_that_were_made_before(tmp_path: Path) -> None:
    with receiving(finish) as receiver:
        create_subscription(tmp_path / "data", receiver.url)
        flags = (*LOCAL_WEBHOOKS, "--public-url", PUBLIC)
        with running_server(tmp_path / "data", *flags) as server, closing(Api(server)) as api:
            api.stream(b"1", path="/v1/stream/x/a")
            assert receiver.wait().body["callback_url"].startswith(f"{PUBLIC}/v1/stream/__ds/")
            jwks_url = Control(api).show("sub")["webhook"]["signing"]["jwks_url"]
            assert jwks_url.startswith(PUBLIC)


# What operators see


def test_metrics_tell_of_subscriptions() -> None:
    failing = [True]

    def behave(notification: Notification, number: int) -> tuple[int, bytes]:
        return (500, b"") if failing[0] else finish(notification, number)

    with receiving(behave) as receiver, serving(*LOCAL_WEBHOOKS) as (api, control):
        control.webhook("a", receiver.url, pattern="x/*")
        control.webhook("b", "https://hooks.example/", pattern="never/*")
        assert metric(api, "millstream_subscriptions") == 2
        assert metric(api, "millstream_wakes_in_flight") == 0
        api.stream(b"1", path="/v1/stream/x/a")
        eventually(lambda: metric(api, 'millstream_webhooks_total{outcome="refused"}') > 0)
        eventually(lambda: metric(api, "millstream_wake_retries_waiting") == 1)
        assert metric(api, "millstream_wakes_in_flight") == 1
        eventually(lambda: metric(api, "millstream_oldest_undelivered_wake_seconds") > 0.2)
        failing[0] = False
        eventually(lambda: metric(api, 'millstream_webhooks_total{outcome="delivered"}') == 1, 10)
        eventually(lambda: metric(api, "millstream_wakes_in_flight") == 0)
        assert metric(api, "millstream_wake_retries_waiting") == 0
        assert metric(api, "millstream_oldest_undelivered_wake_seconds") == 0
        assert metric(api, 'millstream_webhooks_total{outcome="failed"}') == 0


# Receivers that do not answer


def test_sixty_four_receivers_that_hang_do_not_delay_a_healthy_one() -> None:
    with contextlib.ExitStack() as stack:
        deaf = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(64)]
        healthy = stack.enter_context(receiving(finish))
        api, control = stack.enter_context(serving(*LOCAL_WEBHOOKS))
        for number, listener in enumerate(deaf):
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
            for copy in range(4):
                name = f"deaf{number}-{copy}"
                control.webhook(name, url, pattern="x/*", lease_ttl_ms=30_000)
        api.stream(b"1", path="/v1/stream/x/a")
        eventually(lambda: metric(api, "millstream_wakes_in_flight") == 256, 20)
        control.webhook("healthy", healthy.url, streams=["x/a"])
        for number in range(1, 4):
            began = time.monotonic()
            api.append("/v1/stream/x/a", b"more")
            healthy.wait(number)
            tail = api.tail("/v1/stream/x/a")
            eventually(lambda tail=tail: control.acked("healthy", "x/a") == tail)  # type: ignore[misc]
            assert time.monotonic() - began < 3
