from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from millstream.api.arguments import Query
from millstream.api.listings import KEYS_AT_ONCE, STREAMS_AT_ONCE, Listings
from millstream.formats.layout import StreamId
from millstream.state.stream import Stream
from tests.unit.api.fake_request import UNCOMPRESSED, FakeRequest

NAMES = 3 * KEYS_AT_ONCE


class Names:
    """Many keys in one bucket, and how many were looked at in one go."""

    def __init__(self) -> None:
        self.keys = [b"many/%06d" % number for number in range(NAMES)]
        self.seen = 0

    def keys_from(self, first: bytes, *, inclusive: bool = True) -> Iterator[bytes]:
        for key in self.keys:
            if key > first or (inclusive and key == first):
                self.seen += 1
                yield key


class World:
    """Counts what one turn of the loop does at most."""

    def __init__(self, broken_at: int = -1) -> None:
        self.names = Names()
        self.looked_up = 0
        self.abandoned: list[object] = []
        self.heard: list[dict[str, Any]] = []
        self.most_at_once = (0, 0)
        self._broken_at = broken_at
        engine: Any = SimpleNamespace(
            machine=SimpleNamespace(names=self.names, look_up=self._look_up),
            lifetimes=SimpleNamespace(is_over=lambda stream, now_ms: False),
            abandon=self.abandoned.append,
        )
        clock: Any = SimpleNamespace(now_ms=lambda: 0)
        self.listings = Listings(engine, clock, UNCOMPRESSED)

    def _look_up(self, key: bytes) -> Stream:
        self.looked_up += 1
        if self.looked_up == self._broken_at:
            raise RuntimeError("a fault of the program")
        return Stream(StreamId(self.looked_up), key, b"text/plain", 0)

    def ask(self, query: bytes) -> FakeRequest:
        request = FakeRequest()

        async def turn_by_turn() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: self.heard.append(context))
            before = (0, 0)
            self.listings.list_all(request.request, Query(query))
            while True:
                now = (self.names.seen, self.looked_up)
                done = (now[0] - before[0], now[1] - before[1])
                keys, streams = self.most_at_once
                self.most_at_once = (max(keys, done[0]), max(streams, done[1]))
                before = now
                if request.is_answered or self.heard:
                    return
                await asyncio.sleep(0)

        asyncio.run(turn_by_turn())
        return request


def test_a_long_listing_lets_others_have_the_loop() -> None:
    world = World()
    world.ask(b"limit=1000&offset=%d" % (NAMES - 1000))
    assert world.looked_up == 1000
    keys, streams = world.most_at_once
    assert keys <= 4 * (KEYS_AT_ONCE + 1)  # four ranges of names, each one look ahead
    assert streams <= STREAMS_AT_ONCE


def test_a_listing_that_fails_half_way_is_heard_and_nobody_waits_for_it() -> None:
    world = World(broken_at=STREAMS_AT_ONCE * 3)
    request = world.ask(b"limit=1000")
    assert world.abandoned == [request]
    assert "a fault of the program" in str(world.heard[0]["exception"])
