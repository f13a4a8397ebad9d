"""Streams come and go while the server is killed at random moments.

Whatever a crash interrupts, the registry has exactly one record for each creation and each end that
really happened, in their order. Replay a seed by its test's name.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.crash.rounds import DrainedServer
from tests.support.http import Client
from tests.support.server import free_port
from tests.support.waiting import let_work

LIVES = 5
SMALL_LOG = ("--wal-segment-bytes", "16384", "--checkpoint-wal-bytes", "4096", "--flush-bytes", "1")
REGISTRY = "/v1/stream/__registry__"
GONE = (OSError, http.client.HTTPException)
FIRST = ("stream.created", "stream.forked")


class Story:
    """Each name is created once and deleted once, by one of some writers at a time."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.port = free_port()
        self.numbers = count()
        self.created: set[str] = set()  # acknowledged
        self.deleted: set[str] = set()
        self.asked: set[str] = set()
        self.stopping = threading.Event()

    def has_done_more(self) -> Callable[[], bool]:
        created, deleted = len(self.created), len(self.deleted)
        return lambda: len(self.created) >= created + 4 and len(self.deleted) > deleted

    def client(self) -> Client:
        return Client("127.0.0.1", self.port, timeout_seconds=10)

    def live(self, writer: int) -> None:
        dice = random.Random(f"{self.seed} {writer} {next(self.numbers)}")
        alive: list[str] = []
        with contextlib.closing(self.client()) as client, contextlib.suppress(*GONE):
            while not self.stopping.is_set():
                if alive and dice.random() < 0.4:
                    self.delete(client, alive.pop(dice.randrange(len(alive))))
                else:
                    alive.append(self.create(client, dice, alive))

    def create(self, client: Client, dice: random.Random, alive: list[str]) -> str:
        path = f"/v1/stream/s{next(self.numbers)}"
        headers = (
            {"Stream-Forked-From": dice.choice(alive)} if alive and dice.random() < 0.2 else {}
        )
        self.asked.add(path)
        if client.put(path, "x", content_type="text/plain", headers=headers).status == 201:
            self.created.add(path)
        return path

    def delete(self, client: Client, path: str) -> None:
        if client.delete(path).status == 204:
            self.deleted.add(path)

    def check(self) -> None:
        with contextlib.closing(self.client()) as client:
            records: list[dict[str, Any]] = client.get(REGISTRY).json()
            by_stream: dict[str, list[str]] = {}
            for record in records:
                by_stream.setdefault(record["stream"], []).append(record["type"])
            assert self.created <= by_stream.keys() <= self.asked, f"seed {self.seed}"
            for path, types in by_stream.items():
                there = client.head(path).status == 200
                assert types[0] in FIRST, (self.seed, path, types)
                assert types[1:] == ([] if there else ["stream.deleted"]), (self.seed, path, types)
                assert not (there and path in self.deleted)
            missing = self.asked - by_stream.keys()
            assert all(client.head(path).status == 404 for path in missing), f"seed {self.seed}"


@pytest.mark.parametrize("seed", [1, 2])
def test_every_stream_has_one_record_of_its_creation_and_one_of_its_end(
    seed: int, tmp_path: Path
) -> None:
    story = Story(seed)
    dice = random.Random(seed)
    print(f"seed {seed}")
    for _ in range(LIVES):
        server = DrainedServer(tmp_path / "data", *SMALL_LOG, port=story.port)
        try:
            story.check()
            story.stopping.clear()
            threads = [threading.Thread(target=story.live, args=(writer,)) for writer in range(4)]
            for thread in threads:
                thread.start()
            let_work(dice.uniform(0.1, 0.8), story.has_done_more())
        finally:
            server.kill()
        story.stopping.set()
        for thread in threads:
            thread.join()
    server = DrainedServer(tmp_path / "data", *SMALL_LOG, port=story.port)
    try:
        story.check()
    finally:
        server.kill()
    assert len(story.created) > 10
    assert story.deleted
