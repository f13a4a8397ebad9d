"""A schema evolves while entries come in and the server is killed at random moments.

Version and boundary are one: whatever was lost or not, every stored entry is of the version that
the boundaries say, every acknowledged entry is there once and in order, and an acknowledged version
stays. Replay a seed by its test's name.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.crash.faulty_server import MODULE, PLAN_FILE
from tests.crash.rounds import DrainedServer
from tests.support.http import Client
from tests.support.server import free_port
from tests.support.waiting import let_work

LIVES = 5
SMALL_LOG = ("--wal-segment-bytes", "16384", "--checkpoint-wal-bytes", "4096")
GONE = (OSError, http.client.HTTPException)
STREAM = "/v1/stream/rules/story"
JSON = "application/json"


def schema_of(version: int) -> dict[str, Any]:
    fields = {f"f{number}": {"type": "integer"} for number in range(1, version + 1)}
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["id", *fields],
        "properties": {"id": {"type": "string"}, **fields},
    }


def update_to(version: int) -> str:
    update: dict[str, Any] = {"schema": schema_of(version)}
    if version > 1:
        added = {"op": "add", "path": f"/f{version}", "schema": {"type": "integer"}, "default": 0}
        update["lens"] = {
            "apiVersion": "durable.lens/v1",
            "schema": "rules/story",
            "from": version - 1,
            "to": version,
            "ops": [added],
        }
    return json.dumps(update)


class Story:
    def __init__(self, seed: int, *, amid_errors: bool = False) -> None:
        self.random = random.Random(seed)
        self.excused = {500} if amid_errors else set[int]()  # what a request may be answered
        self.port = free_port()
        self.version = 0  # acknowledged
        self.sent = 0
        self.acknowledged: list[str] = []
        self.stopping = threading.Event()
        self.threads: list[threading.Thread] = []

    def client(self) -> Client:
        return Client("127.0.0.1", self.port, timeout_seconds=10)

    def create(self) -> None:
        with contextlib.closing(self.client()) as client:
            assert client.put(STREAM, content_type=JSON).status in (200, 201)
            if not client.get(f"{STREAM}/_schema").json()["currentVersion"]:
                reply = client.post(f"{STREAM}/_schema", update_to(1), content_type=JSON)
                assert reply.status == 200, reply.body
                self.version = 1

    def evolve(self) -> None:
        with contextlib.closing(self.client()) as client:
            while not self.stopping.is_set():
                try:
                    registry = client.get(f"{STREAM}/_schema").json()
                    self.version = registry["currentVersion"]
                    update = update_to(self.version + 1)
                    reply = client.post(f"{STREAM}/_schema", update, content_type=JSON)
                    assert reply.status in {200, 503} | self.excused, reply.body
                    if reply.status == 200:
                        self.version += 1
                except GONE:
                    return
                time.sleep(0.02)

    def write(self) -> None:
        """Sometimes under a version that is not the current one any more: that is refused."""
        with contextlib.closing(self.client()) as client:
            while not self.stopping.is_set():
                self.sent += 1
                name = f"e{self.sent}"
                fields = {f"f{number}": number for number in range(1, self.version + 1)}
                try:
                    reply = client.post(
                        STREAM, json.dumps({"id": name, **fields}), content_type=JSON
                    )
                except GONE:
                    return
                assert reply.status in {204, 400, 503} | self.excused, reply.body
                if reply.status == 204:
                    self.acknowledged.append(name)

    def look_up(self) -> None:
        """Reads that promote, seek and follow touches' paths, for what may fail in them."""
        with contextlib.closing(self.client()) as client:
            while not self.stopping.is_set():
                try:
                    for query in ("", "&key=none", "&since=0"):
                        reply = client.get(f"{STREAM}?offset=-1{query}")
                        assert reply.status in {200, 503} | self.excused, reply.body
                except GONE:
                    return
                time.sleep(0.02)

    def check(self) -> None:
        with contextlib.closing(self.client()) as client:
            registry = client.get(f"{STREAM}/_schema").json()
            current = registry["currentVersion"]
            assert current >= self.version
            boundaries = [(each["offset"], each["version"]) for each in registry["boundaries"]]
            assert [version for _, version in boundaries] == list(range(1, current + 1))
            assert boundaries == sorted(boundaries)
            stored = self.stored(client)
            for ordinal, entry in enumerate(stored):
                version = max(v for first, v in boundaries if first <= ordinal)
                assert len(entry) == version + 1, (ordinal, entry, boundaries)
            names = [entry["id"] for entry in stored]
            assert len(set(names)) == len(names)
            kept = set(self.acknowledged)
            assert [name for name in names if name in kept] == self.acknowledged
            promoted = self.read(client, "")
            assert [entry["id"] for entry in promoted] == names
            assert {len(entry) for entry in promoted} <= {current + 1}

    def stored(self, client: Client) -> list[dict[str, Any]]:
        decode, found = json.JSONDecoder().raw_decode, list[dict[str, Any]]()
        for body in self.pages(client, "&format=raw"):
            text, place = body.decode(), 0
            while place < len(text):
                entry, place = decode(text, place)
                found.append(entry)
        return found

    def read(self, client: Client, query: str) -> list[dict[str, Any]]:
        return [entry for body in self.pages(client, query) for entry in json.loads(body)]

    def pages(self, client: Client, query: str) -> list[bytes]:
        bodies, offset = list[bytes](), "-1"
        while True:
            reply = client.get(f"{STREAM}?offset={offset}{query}")
            assert reply.status == 200, reply.body
            bodies.append(reply.body)
            offset = reply.next_offset
            if reply.headers.get("stream-up-to-date"):
                return bodies


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_version_and_its_boundary_are_one(seed: int, tmp_path: Path) -> None:
    story = Story(seed)
    for life in range(LIVES + 1):
        server = DrainedServer(tmp_path / "data", *SMALL_LOG, port=story.port)
        try:
            story.create()
            if life:
                story.check()
            if life < LIVES:
                live_through(story)
        finally:
            server.kill()
        finish(story)
    assert story.version > 3
    assert story.acknowledged


def test_it_holds_while_anything_may_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of admission, of a change of rules and of look-ups fail, before and behind their work;
    when the errors end, the server goes on by itself."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    story, plan = Story(seed, amid_errors=True), tmp_path / "faults"
    monkeypatch.setenv(PLAN_FILE, str(plan))
    for life in range(LIVES + 1):
        plan.write_text("")
        server = DrainedServer(tmp_path / "data", *SMALL_LOG, port=story.port, module=MODULE)
        try:
            story.create()
            if life:
                story.check()
            if life < LIVES:
                plan.write_text(f"{story.random.randrange(10**9)} 10")
                live_through(story)
                plan.write_text("")
        finally:
            server.kill()
        finish(story)
    assert story.version > 1
    assert story.acknowledged


def live_through(story: Story) -> None:
    story.stopping.clear()
    story.threads = [
        threading.Thread(target=each) for each in (story.evolve, story.write, story.look_up)
    ]
    for thread in story.threads:
        thread.start()
    version, acknowledged = story.version, len(story.acknowledged)

    def is_enough() -> bool:
        more = story.version > version and len(story.acknowledged) > acknowledged
        return more or not any(thread.is_alive() for thread in story.threads)

    let_work(story.random.uniform(0.2, 0.8), is_enough)


def finish(story: Story) -> None:
    story.stopping.set()
    for thread in story.threads:
        thread.join()
