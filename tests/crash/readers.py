"""Clients that read while the server is being killed, and remember all they were shown."""

from __future__ import annotations

import base64
import contextlib
import random
import threading

from tests.crash.content import Content, Kind, Position, decode_body
from tests.crash.history import History, Incarnation, Observation
from tests.crash.plan import LOGS, WRITERS
from tests.crash.writers import BASE, LOST
from tests.support.http import Client, EventStream


class Reader(threading.Thread):
    """Follows one stream by long-poll or SSE from its start, its tail or somewhere between."""

    def __init__(
        self, history: History, dice_seed: int, port: int, ending: threading.Event
    ) -> None:
        super().__init__(name=f"reader-{dice_seed}", daemon=True)
        self.history, self.port, self.ending = history, port, ending
        dice = random.Random(dice_seed)
        names = [*LOGS, *LOGS, *LOGS, *(f"life-{i}" for i in range(WRITERS))]
        self.stream = dice.choice(names)
        self.follow = dice.choice([self.follow_long_poll, self.follow_events])
        self.begin = dice.choice(["-1", "now", "settled"])

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                inc = self.history.last(self.stream)
                if inc is None or self.follow(inc, self.first_offset(inc)):
                    return
                self.ending.wait(0.02)
        except LOST as error:
            if not self.ending.is_set() and not self.history.is_faulty:
                self.history.complain(f"a living server dropped {self.name}: {error!r}")
        except Exception as error:
            self.history.complain(f"{self.name}: {type(error).__name__}: {error}")

    def first_offset(self, inc: Incarnation) -> str:
        if self.begin == "settled":
            return inc.tail.token if inc.tail is not None else "-1"
        return self.begin

    def note(self, connected: int, inc: Incarnation, end: int, content: Content, how: str) -> None:
        start = end - len(content)
        self.history.observations.append(Observation(self.stream, connected, start, content, how))

    def follow_long_poll(self, inc: Incarnation, offset: str) -> bool:
        connected = self.history.tick()
        client = Client("127.0.0.1", self.port)
        at: int | None = None
        try:
            while not self.ending.is_set():
                reply = client.get(f"{BASE}{self.stream}?live=long-poll&offset={offset}")
                if reply.status not in (200, 204):
                    self.check_refusal(reply.status, reply.body)
                    return False
                offset = reply.next_offset
                end = Position.parse(offset).units(inc.kind)
                if reply.status == 200:
                    content = decode_body(inc.kind, reply.body)
                    if at is not None and end - len(content) != at:
                        raise AssertionError(f"{self.stream}: {at} + {len(content)} is not {end}")
                    self.note(connected, inc, end, content, "long-poll")
                at = end
                if reply.headers.get("stream-closed") == "true":
                    return True
            return True
        finally:
            client.close()

    def follow_events(self, inc: Incarnation, offset: str) -> bool:
        connected = self.history.tick()
        path = f"{BASE}{self.stream}?live=sse&offset={offset}"
        events = EventStream("127.0.0.1", self.port, path)
        shown = inc.kind.nothing
        at: int | None = 0 if offset == "-1" else None
        try:
            if events.status != 200:
                self.check_refusal(events.status, b"")
                return False
            for event in events:
                if event.kind == "data":
                    shown = self.decode_event(inc.kind, event.data)
                    if at is not None:  # shown is shown, even if its control never arrives
                        self.note(connected, inc, at + len(shown), shown, "sse data")
                    continue
                at = Position.parse(event.json()["streamNextOffset"]).units(inc.kind)
                self.note(connected, inc, at, shown, "sse")
                shown = inc.kind.nothing
                if event.json().get("streamClosed"):
                    return True
            return self.ending.is_set()
        except TimeoutError:
            return False  # nothing happened on this stream for ten seconds
        finally:
            with contextlib.suppress(OSError):
                events.close()
            events.response.close()

    def decode_event(self, kind: Kind, data: str) -> Content:
        if kind is Kind.BINARY:
            return base64.b64decode(data, validate=True)
        return decode_body(kind, data.encode())

    def check_refusal(self, status: int, body: bytes) -> None:
        allowed = {404, 410} if self.stream not in LOGS else set[int]()
        # An offset of the incarnation before does not fit the next one.
        if self.begin == "settled":
            allowed.add(400)
        if self.history.is_faulty:
            allowed |= {500, 503}
        if status not in allowed and not self.ending.is_set():
            self.history.complain(f"{self.name} on {self.stream}: {status} {body[:200]!r}")
