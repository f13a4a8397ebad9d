"""Keys are made and revoked while the server is killed at random moments.

A key whose revocation was answered never works again, one whose making was answered works until it
is revoked, and at no moment is the server open. Replay a seed by its test's name.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.rounds import DrainedServer
from tests.support.http import Client
from tests.support.keys import KEYS, bearer, key_id, make_key_offline
from tests.support.server import free_port
from tests.support.waiting import let_work

LIVES = 5
SMALL_LOG = ("--wal-segment-bytes", "16384", "--checkpoint-wal-bytes", "4096")
GONE = (OSError, http.client.HTTPException)


class Story:
    def __init__(self, seed: int, admin: str) -> None:
        self.random = random.Random(seed)
        self.admin = admin
        self.port = free_port()
        self.made: list[str] = []
        self.doubtful: set[str] = set()  # their revocation was sent and not answered
        self.revoked: list[str] = []
        self.stopping = threading.Event()

    def has_revoked_more(self) -> Callable[[], bool]:
        revoked = len(self.revoked)
        return lambda: len(self.revoked) > revoked

    def client(self) -> Client:
        return Client("127.0.0.1", self.port, timeout_seconds=10)

    def live(self) -> None:
        with contextlib.closing(self.client()) as client:
            while not self.stopping.is_set():
                try:
                    self.change(client)
                except GONE:
                    return

    def change(self, client: Client) -> None:
        headers = bearer(self.admin)
        if not self.made or self.random.random() < 0.6:
            body = json.dumps({"scopes": ["read:**", "append:docs/run-*"]})
            reply = client.post(KEYS, body, headers=headers)
            if reply.status == 201:
                self.made.append(reply.json()["key"])
            return
        key = self.made.pop(self.random.randrange(len(self.made)))
        self.doubtful.add(key)
        if client.delete(f"{KEYS}/{key_id(key)}", headers=headers).status == 204:
            self.doubtful.discard(key)
            self.revoked.append(key)

    def check(self) -> None:
        with contextlib.closing(self.client()) as client:
            assert client.get("/v1/streams").status == 401
            for key in self.revoked:
                assert client.get("/v1/streams", headers=bearer(key)).status == 401
            for key in self.made:
                assert client.get("/v1/streams", headers=bearer(key)).status == 200
            listed = client.get(KEYS, headers=bearer(self.admin)).json()["keys"]
            found = {each["id"] for each in listed}
            assert {key_id(key) for key in (*self.made, self.admin)} <= found
            assert found.isdisjoint(map(key_id, self.revoked))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_key_that_is_acknowledged_as_revoked_never_works_again(seed: int, tmp_path: Path) -> None:
    story = Story(seed, make_key_offline(tmp_path / "data", "admin"))
    for _ in range(LIVES):
        server = DrainedServer(tmp_path / "data", *SMALL_LOG, port=story.port)
        try:
            story.check()
            story.stopping.clear()
            thread = threading.Thread(target=story.live)
            thread.start()
            let_work(story.random.uniform(0.1, 0.6), story.has_revoked_more())
        finally:
            server.kill()
        story.stopping.set()
        thread.join()
    server = DrainedServer(tmp_path / "data", *SMALL_LOG, port=story.port)
    try:
        story.check()
    finally:
        server.kill()
    assert story.revoked
