"""The other side of subscriptions: a webhook receiver that listens, and a client for `__ds`."""

from __future__ import annotations

import json
import threading
import time
import uuid
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.conformance.api import JSON, Api
from tests.support.http import Client, Reply

CONTROL = "/v1/stream/__ds"


@dataclass
class Notification:
    path: str
    raw: bytes
    headers: dict[str, str]  # names in lower case
    at: float

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    def tail(self, path: str) -> str:
        return next(str(s["tail_offset"]) for s in self.body["streams"] if s["path"] == path)


Behaviour = Callable[[Notification, int], tuple[int, bytes]]


def accept(notification: Notification, number: int) -> tuple[int, bytes]:
    return 200, b"{}"


def finish(notification: Notification, number: int) -> tuple[int, bytes]:
    return 200, b'{"done": true}'


class Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class Receiver:
    """Answers as `behave` says; `number` counts the notifications from 0."""

    def __init__(self, behave: Behaviour = accept, port: int = 0) -> None:
        self.behave = behave
        self.received: list[Notification] = []
        self.arrived = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, body = receiver.take(
                    Notification(self.path, raw, headers, time.monotonic())
                )
                self.send_response(status)
                if status in (301, 302, 307, 308):
                    self.send_header("Location", f"http://127.0.0.1:{receiver.port}/elsewhere")
                self.send_header("Content-Length", str(len(body)))
                with suppress(OSError):  # a server that was killed does not read it
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = Listener(("127.0.0.1", port), Handler)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def take(self, notification: Notification) -> tuple[int, bytes]:
        with self.arrived:
            number = len(self.received)
            self.received.append(notification)
            self.arrived.notify_all()
        return self.behave(notification, number)

    def wait(self, count: int = 1, seconds: float = 10.0) -> Notification:
        """The notification with this number, counted from 1."""
        with self.arrived:
            arrived = self.arrived.wait_for(lambda: len(self.received) >= count, seconds)
            assert arrived, f"{len(self.received)} notifications instead of {count}"
            return self.received[count - 1]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@contextmanager
def receiving(behave: Behaviour = accept, port: int = 0) -> Iterator[Receiver]:
    receiver = Receiver(behave, port)
    try:
        yield receiver
    finally:
        receiver.close()


class Control:
    """Speaks to `/v1/stream/__ds` through a client."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def call(
        self, method: str, path: str, body: Any = None, token: str | None = None, **headers: str
    ) -> Reply:
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        payload = None if body is None else json.dumps(body)
        return self.client.call(method, CONTROL + path, payload, headers, JSON if payload else None)

    def put(self, name: str, **body: Any) -> Reply:
        return self.call("PUT", f"/subscriptions/{quote(name, safe='')}", body)

    def webhook(self, name: str, url: str, **body: Any) -> Reply:
        body = {"type": "webhook", "webhook": {"url": url}, "lease_ttl_ms": 1000, **body}
        return self.put(name, **body)

    def pull(self, name: str, wake_stream: str, **body: Any) -> Reply:
        body = {"type": "pull-wake", "wake_stream": wake_stream, "lease_ttl_ms": 1000, **body}
        return self.put(name, **body)

    def get(self, name: str) -> Reply:
        return self.call("GET", f"/subscriptions/{quote(name, safe='')}")

    def show(self, name: str) -> Any:
        reply = self.get(name)
        assert reply.status == 200, reply
        return reply.json()

    def delete(self, name: str) -> Reply:
        return self.call("DELETE", f"/subscriptions/{quote(name, safe='')}")

    def act(self, name: str, action: str, body: Any = None, token: str | None = None) -> Reply:
        return self.call("POST", f"/subscriptions/{quote(name, safe='')}/{action}", body, token)

    def claim(self, name: str, worker: str = "worker") -> Any:
        reply = self.act(name, "claim", {"worker": worker})
        assert reply.status == 200, reply
        return reply.json()

    def ack(
        self, name: str, wake: Any, *acks: tuple[str, str], done: bool = False, **changes: Any
    ) -> Reply:
        """`wake` is a claim's answer, or a webhook's body: the token decides the route."""
        is_webhook = "callback_token" in wake
        body = {
            "wake_id": wake["wake_id"],
            "generation": wake["generation"],
            "acks": [{"stream": stream, "offset": offset} for stream, offset in acks],
            "done": done,
            **changes,
        }
        token = wake["callback_token"] if is_webhook else wake["token"]
        return self.act(name, "callback" if is_webhook else "ack", body, token)

    def release(self, name: str, wake: Any) -> Reply:
        body = {"wake_id": wake["wake_id"], "generation": wake["generation"]}
        return self.act(name, "release", body, wake["token"])

    def acked(self, name: str, path: str) -> str | None:
        streams = self.show(name)["streams"]
        return next((str(s["acked_offset"]) for s in streams if s["path"] == path), None)

    def jwks(self) -> Any:
        reply = self.call("GET", "/jwks.json")
        assert reply.status == 200
        return reply.json()


def fresh(label: str) -> str:
    return f"{label}-{uuid.uuid4().hex[:12]}"


def wake_events(api: Api, wake_stream: str, name: str) -> list[Any]:
    events = api.get(f"/v1/stream/{wake_stream}").json()
    return [event for event in events if event["subscription_id"] == name]


def eventually(check: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def verify(notification: Notification, jwks: Any) -> None:
    """Raises when the signature is not one of this key over this very body."""
    fields = dict(
        part.split("=", 1) for part in notification.headers["webhook-signature"].split(",")
    )
    assert set(fields) == {"t", "kid", "ed25519"}
    assert abs(time.time() - int(fields["t"])) < 60
    jwk = next(key for key in jwks["keys"] if key["kid"] == fields["kid"])
    key = Ed25519PublicKey.from_public_bytes(decode_base64url(jwk["x"]))
    signed = fields["t"].encode() + b"." + notification.raw
    key.verify(decode_base64url(fields["ed25519"]), signed)


def decode_base64url(text: str) -> bytes:
    assert "=" not in text
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
