"""A server with busy subscriptions is killed at random moments.

An acknowledged ack is never undone, progress never runs ahead of what a worker said, and no wake
is lost: in the last life everything is processed to its tail. Replay a seed by its test's name.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.subscribers import Control, Notification, Receiver, eventually, finish
from tests.crash import dies_before_report
from tests.crash.rounds import DrainedServer
from tests.support.http import Client
from tests.support.server import LOCAL_WEBHOOKS, free_port
from tests.support.waiting import let_work

LIVES = 6
STREAMS = [f"events/{number}" for number in range(3)]
SMALL_LOG = ("--wal-segment-bytes", "16384", "--checkpoint-wal-bytes", "32768")
GONE = (OSError, http.client.HTTPException)


class Progress:
    """What a worker knows of one subscription: said is sent, sure is answered."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}
        self.sure: dict[str, str] = {}

    def say(self, path: str, offset: str) -> None:
        self.said[path] = max(offset, self.said.get(path, ""))

    def confirm(self, path: str, offset: str) -> None:
        self.sure[path] = max(offset, self.sure.get(path, ""))


class Story:
    def __init__(self, seed: int, data_dir: Path) -> None:
        self.random = random.Random(seed)
        self.data_dir = data_dir
        self.port = free_port()
        self.tails: dict[str, str] = {}  # of acknowledged appends
        self.pulled, self.pushed = Progress(), Progress()
        self.stopping = threading.Event()
        self.wakes = 0

    def has_woken_more(self, receiver: Receiver) -> Callable[[], bool]:
        wakes, told = self.wakes + 2, len(receiver.received) + 2
        return lambda: self.wakes >= wakes and len(receiver.received) >= told

    def client(self) -> Client:
        return Client("127.0.0.1", self.port, timeout_seconds=10)

    # Everybody who is busy while the server lives

    def write(self) -> None:
        chance = random.Random(self.random.random())
        with contextlib.closing(self.client()) as client:
            while not self.stopping.is_set():
                path = chance.choice(STREAMS)
                body = b"x" * chance.randint(1, 300)
                reply = client.post(f"/v1/stream/{path}", body, content_type="text/plain")
                assert reply.status == 204, reply
                self.tails[path] = reply.next_offset
                time.sleep(chance.random() * 0.01)

    def pull(self) -> None:
        chance = random.Random(self.random.random())
        with contextlib.closing(self.client()) as client:
            control = Control(client)
            while not self.stopping.is_set():
                reply = control.act("pull", "claim", {"worker": "w"})
                if reply.status == 200:
                    self.process(control, reply.json(), chance)
                else:
                    assert reply.status == 409, reply
                    time.sleep(0.01)

    def process(self, control: Control, wake: Any, chance: random.Random) -> None:
        """Acks stream by stream, in one go, or not at all; then done, release, or nothing."""
        self.wakes += 1
        pending = [(s["path"], s["tail_offset"]) for s in wake["streams"] if s["has_pending"]]
        ending = chance.choice(["done", "done", "done", "release", "vanish"])
        steps = [pending] if chance.random() < 0.5 else [[ack] for ack in pending]
        for number, acks in enumerate(steps):
            done = ending == "done" and number == len(steps) - 1
            for path, offset in acks:
                self.pulled.say(path, offset)
            reply = control.ack("pull", wake, *acks, done=done)
            if reply.status != 200:  # a lease of a second may well run out here
                assert reply.json()["error"]["code"] == "FENCED", reply
                return
            for path, offset in acks:
                self.pulled.confirm(path, offset)
        if ending == "release":
            assert control.release("pull", wake).status in (204, 409)

    def receive(self, told: Notification, number: int) -> tuple[int, bytes]:
        """A webhook that works most of the time; some notifications are answered by callback."""
        chance = self.random.random()
        pending = [s for s in told.body["streams"] if s["has_pending"]]
        acks = [(s["path"], s["tail_offset"]) for s in pending]
        if chance < 0.15:
            return 500, b""
        for path, offset in acks:
            self.pushed.say(path, offset)
        if chance < 0.6:
            return 200, b'{"done": true}'
        with contextlib.suppress(*GONE), contextlib.closing(self.client()) as client:
            if Control(client).ack("push", told.body, *acks, done=True).status == 200:
                for path, offset in acks:
                    self.pushed.confirm(path, offset)
        return 200, b"{}"

    def busy(self) -> list[threading.Thread]:
        def until_the_end(work: Any) -> None:
            with contextlib.suppress(*GONE):
                work()

        jobs = (self.write, self.write, self.pull)
        threads = [threading.Thread(target=until_the_end, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        return threads

    # The lives of the server

    def begin(self, receiver: Receiver) -> None:
        with contextlib.closing(self.client()) as client:
            control = Control(client)
            assert client.put("/v1/stream/wake/pool", content_type="application/json").status == 201
            assert control.pull("pull", "wake/pool", pattern="events/*").status == 201
            assert control.webhook("push", receiver.url, pattern="**/*").status == 201
            for path in STREAMS:
                assert client.put(f"/v1/stream/{path}", content_type="text/plain").status == 201

    def check(self) -> None:
        """What was answered is there, and nothing that nobody said."""
        with contextlib.closing(self.client()) as client:
            for name, progress in (("pull", self.pulled), ("push", self.pushed)):
                sure = dict(progress.sure)
                shown = Control(client).show(name)["streams"]
                acked = {s["path"]: s["acked_offset"] for s in shown}
                for path in STREAMS:
                    assert acked[path] >= sure.get(path, ""), (name, path)
                    assert acked[path] <= progress.said.get(path, acked[path]), (name, path)

    def finish(self) -> None:
        """No more writes: both subscriptions reach every tail by being woken, and only so."""
        with contextlib.closing(self.client()) as client:
            control = Control(client)
            deadline = time.monotonic() + 60
            while not self.is_everything_processed(client, control):
                assert time.monotonic() < deadline, (control.show("pull"), control.show("push"))
                time.sleep(0.05)
            self.check()
            generations = [
                event["generation"] for event in json.loads(client.get("/v1/stream/wake/pool").body)
            ]
            assert generations == list(range(1, len(generations) + 1))  # each wake told once

    def is_everything_processed(self, client: Client, control: Control) -> bool:
        tails = {path: client.head(f"/v1/stream/{path}").next_offset for path in STREAMS}
        for path, tail in self.tails.items():
            assert tails[path] >= tail
        for name in ("pull", "push"):
            acked = {s["path"]: s["acked_offset"] for s in control.show(name)["streams"]}
            if any(acked[path] != tails[path] for path in STREAMS):
                return False
        return True


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_acks_are_kept_and_wakes_are_not_lost(seed: int, tmp_path: Path) -> None:
    print(f"seed {seed}")
    story = Story(seed, tmp_path / "data")
    receiver = Receiver(story.receive)
    flags = (*LOCAL_WEBHOOKS, *(SMALL_LOG if seed % 2 else ()))
    try:
        for life in range(LIVES):
            server = DrainedServer(story.data_dir, *flags, port=story.port)
            try:
                story.begin(receiver) if life == 0 else story.check()
                threads = story.busy()
                let_work(0.2 + story.random.random(), story.has_woken_more(receiver))
            finally:
                server.kill()
            for thread in threads:
                thread.join(30)
            assert "Traceback" not in server.output.decode()
        run_last_life(story, flags)
    finally:
        receiver.close()
    print(f"{story.wakes} claims, {len(receiver.received)} webhooks, {len(story.tails)} streams")
    assert story.wakes > 10
    assert len(receiver.received) > 10


def run_last_life(story: Story, flags: tuple[str, ...]) -> None:
    server = DrainedServer(story.data_dir, *flags, port=story.port)
    worker = threading.Thread(target=story.pull)
    try:
        worker.start()
        story.finish()
    finally:
        story.stopping.set()
        worker.join(30)
        server.kill()


def test_a_webhook_that_was_answered_but_not_reported_is_sent_again(tmp_path: Path) -> None:
    receiver, path = Receiver(finish), "/v1/stream/events/a"
    try:
        server = DrainedServer(tmp_path, *LOCAL_WEBHOOKS, module=dies_before_report.MODULE)
        with contextlib.closing(server.client()) as client:
            assert Control(client).webhook("push", receiver.url, pattern="events/*").status == 201
            assert client.put(path, b"1", content_type="text/plain").status == 201
        assert server.process.wait(30) == -signal.SIGKILL
        server.kill()
        assert len(receiver.received) == 1
        server = DrainedServer(tmp_path, *LOCAL_WEBHOOKS)
        try:
            again = receiver.wait(2, seconds=30)
            assert again.body["wake_id"] == receiver.received[0].body["wake_id"]
            with contextlib.closing(server.client()) as client:
                control, tail = Control(client), client.head(path).next_offset
                eventually(lambda: control.acked("push", "events/a") == tail, 30)
        finally:
            server.kill()
    finally:
        receiver.close()
    assert len(receiver.received) == 2
