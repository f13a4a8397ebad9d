"""After a restart: hold the server against the record, settle what was open, ask again.

The first pass finds out which unanswered requests were kept and checks everything else. Then the
unanswered ones are sent again, as their clients would, and the states that dedupe and order depend
on are probed. The second pass checks that all of this left every message in the streams once.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from datetime import datetime

from tests.crash.content import Content, Kind, Layout, Mismatch, Position, decode_body
from tests.crash.history import (
    Fate,
    History,
    Incarnation,
    ProducerMark,
    Request,
    check_content,
)
from tests.crash.writers import BASE, append_request, note_append, send_request
from tests.support.http import Client, Reply

OFFSET_READS_MAX = 12
PROBES_MAX = 8


@dataclass
class Seen:
    content: Content
    tail: Position
    closed: bool
    layout: Layout


def read_stream(client: Client, stream: str, kind: Kind) -> tuple[Content, Position, bool]:
    """Everything from the start, page by page, each page as long as its offsets say."""
    data, messages = bytearray(), list[bytes]()
    offset, at = "-1", 0
    while True:
        reply = client.get(f"{BASE}{stream}?offset={offset}")
        assert reply.status == 200, f"{stream} at {offset}: {reply.status} {reply.body[:200]!r}"
        page = decode_body(kind, reply.body)
        end = Position.parse(reply.next_offset)
        assert at + len(page) == end.units(kind), f"{stream}: page {offset} to {end}: {len(page)}"
        if isinstance(page, bytes):
            data += page
        else:
            messages += page
        offset, at = reply.next_offset, end.units(kind)
        if reply.headers.get("stream-up-to-date") == "true":
            closed = reply.headers.get("stream-closed") == "true"
            return (tuple(messages) if kind is Kind.JSON else bytes(data)), end, closed
        assert page, f"{stream}: an empty page that is not the end"


class Verifier:
    def __init__(self, history: History, client: Client, dice: random.Random, label: str) -> None:
        self.history, self.client, self.dice, self.label = history, client, dice, label
        self.seen: dict[Incarnation, Seen] = {}
        self.probes = 0

    def run(self) -> None:
        self.check_refusals()
        self.resolve_existence()
        self.read_all()
        self.check_observations()
        self.check_offsets()
        unanswered = [
            (inc, request, request.label in self.seen[inc].layout.starts)
            for request in self.history.pending
            if request.fate is Fate.UNKNOWN
            and (inc := self.live(request.stream)) is not None
            and inc.may_hold(request)
        ]
        creates = self.unanswered_creates
        self.settle()
        for inc, request, present in unanswered:
            self.retry_append(inc, request, present)
        for inc in creates:
            self.retry_create(inc)
        self.probe_states()
        self.read_all()
        self.settle()
        self.check_briefs()
        self.history.observations.clear()

    # --- the first pass --------------------------------------------------------------------

    def live(self, stream: str) -> Incarnation | None:
        inc = self.history.last(stream)
        return inc if inc is not None and inc.is_there else None

    def all_live(self) -> list[Incarnation]:
        return [inc for stream in self.history.streams if (inc := self.live(stream)) is not None]

    def check_refusals(self) -> None:
        """404, 410 and `closed` are right only when the record has a reason for them."""
        for request in self.history.pending:
            if request.status not in (404, 409, 410):
                continue
            for inc in self.history.streams[request.stream]:
                there = (
                    inc.created.fate is Fate.ACKNOWLEDGED and inc.created.answered < request.sent
                )
                if inc.deleted is not None and inc.deleted.sent < request.answered:
                    there = False
                closed = request.status == 409 and self.may_be_closed(inc, request)
                assert not there or closed, f"refused: {request}"

    def may_be_closed(self, inc: Incarnation, request: Request) -> bool:
        """Somebody asked for it in time, and was told so or not told anything."""
        unanswered = (other for other in self.history.pending if other.fate is Fate.UNKNOWN)
        closers = [inc.closed] if inc.closed is not None else []
        closers += [other for other in unanswered if other.closes and other.stream == inc.stream]
        return any(closer.sent < request.answered for closer in closers)

    def resolve_existence(self) -> None:
        self.unanswered_creates = list[Incarnation]()
        replies = {stream: self.client.head(BASE + stream) for stream in self.history.streams}
        for stream, reply in replies.items():
            self.resolve_stream(stream, reply)
        for stream, reply in replies.items():
            inc = self.history.last(stream)
            if inc is not None and not inc.is_there:
                expected = 410 if inc.keeps_source else 404
                assert reply.status == expected, f"{stream}: {reply.status}, expected {expected}"

    def resolve_stream(self, stream: str, reply: Reply) -> None:
        inc = self.history.last(stream)
        assert reply.status in (200, 404, 410), f"HEAD {stream}: {reply.status}"
        if inc is None:
            assert reply.status == 404, f"{stream}: {reply.status}, nobody made it"
            return
        there = reply.status == 200
        if inc.created.fate is Fate.UNKNOWN:
            self.unanswered_creates.append(inc)
            if there:
                inc.created.fate = Fate.ACKNOWLEDGED
                if inc.created.closes:
                    inc.closed = inc.created
            else:
                self.history.streams[stream].remove(inc)
                if inc.parent is not None:
                    inc.parent.children.remove(inc)
        elif inc.deleted is not None and inc.deleted.fate is Fate.UNKNOWN:
            if there:
                inc.deleted = None
            else:
                inc.deleted.fate = Fate.ACKNOWLEDGED
        elif inc.deleted is not None:
            assert not there, f"{stream} came back after its acknowledged {inc.deleted}"
        else:
            assert there, f"{stream} is lost ({reply.status}): {inc.created}"

    def read_all(self) -> None:
        self.seen = {}
        for inc in self.all_live():
            content, tail, closed = read_stream(self.client, inc.stream, inc.kind)
            try:
                layout = check_content(self.history, inc, content, tail)
            except Mismatch as error:
                raise AssertionError(f"{inc.stream} ({inc.created}): {error}") from error
            self.seen[inc] = Seen(content, tail, closed, layout)
        for inc, seen in self.seen.items():
            self.check_head(inc, seen)
            self.check_fork(inc, seen)

    def check_head(self, inc: Incarnation, seen: Seen) -> None:
        reply = self.client.head(BASE + inc.stream)
        assert reply.status == 200
        assert Position.parse(reply.next_offset) == seen.tail, f"{inc.stream}: HEAD {reply.headers}"
        assert (reply.headers.get("stream-closed") == "true") == seen.closed
        self.check_closed(inc, seen)
        for name in ("Stream-TTL", "Stream-Expires-At"):
            wanted = inc.created.headers.get(name)
            if wanted is not None:
                found = reply.headers[name.lower()]
                same = (
                    found == wanted
                    if name == "Stream-TTL"
                    else (datetime.fromisoformat(found) == datetime.fromisoformat(wanted))
                )
                assert same, f"{inc.stream}: {name} {found}, was {wanted}"

    def check_closed(self, inc: Incarnation, seen: Seen) -> None:
        if inc.closed is not None:
            assert seen.closed, f"{inc.stream} is open again after {inc.closed}"
            if inc.closed.end is not None:
                assert seen.tail == inc.closed.end, f"{inc.stream} grew after {inc.closed}"
            return
        maybe = [
            request
            for request in self.history.pending
            if request.stream == inc.stream and request.closes and request.fate is Fate.UNKNOWN
        ]
        assert maybe or not seen.closed, f"{inc.stream} is closed and nobody closed it"
        for request in maybe:
            kept = request.label in seen.layout.starts
            assert not len(request.payload) or kept == seen.closed, (
                f"only half of {request} happened: kept {kept}, closed {seen.closed}"
            )
        if seen.closed:
            inc.closed = maybe[-1]

    def check_fork(self, inc: Incarnation, seen: Seen) -> None:
        if inc.parent in self.seen and inc.inherited is not None:
            source = self.seen[inc.parent].content
            cut = inc.inherited
            assert seen.content[:cut] == source[:cut], f"{inc.stream} differs from its source"

    def check_observations(self) -> None:
        """Nothing was shown that is not there now."""
        for shown in self.history.observations:
            inc = self.live(shown.stream)
            if inc is None or inc.created.answered > shown.connected:
                continue
            found = self.seen[inc].content[shown.start : shown.start + len(shown.content)]
            assert found == shown.content, (
                f"{shown.how} showed {len(shown.content)} units of {shown.stream} at {shown.start}"
                f" that are not there after recovery"
            )

    def check_offsets(self) -> None:
        """A read at an acknowledged append's own offset begins with that append."""
        candidates = [
            (inc, request)
            for request in self.history.pending
            if request.end is not None
            and len(request.payload)
            and (inc := self.live(request.stream)) is not None
            and request.label in self.seen[inc].layout.starts
        ]
        for inc, request in self.sample(candidates, OFFSET_READS_MAX):
            assert request.end is not None
            token = request.end.before(inc.kind, request.payload).token
            reply = self.client.get(f"{BASE}{inc.stream}?offset={token}&max_bytes=1")
            assert reply.status == 200, f"{request} at {token}: {reply.status} {reply.body[:99]!r}"
            page = decode_body(inc.kind, reply.body)
            whole = self.seen[inc].content
            assert page
            assert page == whole[request.start : request.start + len(page)], f"{request}"

    def settle(self) -> None:
        """The open questions are answered: what was found is what must stay."""
        for request in self.history.pending:
            inc = self.live(request.stream)
            if inc is None or request.fate is not Fate.UNKNOWN:
                continue
            if request.label in self.seen[inc].layout.starts:
                note_append(inc, request)
        for inc, seen in self.seen.items():
            inc.settled, inc.tail = seen.content, seen.tail
        self.history.pending.clear()

    # --- asking again ----------------------------------------------------------------------

    def sample(
        self, items: list[tuple[Incarnation, Request]], most: int
    ) -> list[tuple[Incarnation, Request]]:
        return self.dice.sample(items, min(most, len(items)))

    def retry_append(self, inc: Incarnation, old: Request, present: bool) -> None:
        """The same request again: told apart by its producer or by its Stream-Seq."""
        closes_only = old.closes and not len(old.payload)
        if old.producer is None and old.stream_seq is None and not closes_only:
            return
        request = append_request(
            inc, f"{old.label}.again", old.payload, old.producer, old.stream_seq, old.closes
        )
        self.history.pending.append(request)
        reply = send_request(self.client, self.history, request)
        if closes_only:
            expected = 204
        elif inc.closed is not None and not present:
            expected = 409
        elif old.producer is not None:
            expected = 204 if present else 200
        else:
            expected = 409 if present else 204
        assert reply.status == expected, (
            f"{old} was {'kept' if present else 'not kept'}; its retry got {reply.status},"
            f" expected {expected}: {reply.body[:200]!r}"
        )
        if present:
            request.fate = Fate.REFUSED  # for the second pass: it must not be there again
        elif request.fate is Fate.ACKNOWLEDGED:
            note_append(inc, request)

    def retry_create(self, inc: Incarnation) -> None:
        present = inc.created.fate is Fate.ACKNOWLEDGED
        if inc.parent is not None and (not inc.parent.is_there or not present):
            return
        old = inc.created
        if present:
            again = Request(
                f"{old.label}.again", "PUT", old.stream, old.kind, old.payload, old.headers
            )
            reply = send_request(self.client, self.history, again)
            assert reply.status == 200, f"{old} again: {reply.status} {reply.body[:200]!r}"
            return
        old.fate = Fate.UNKNOWN
        last = self.history.last(inc.stream)
        if last is not None and last.keeps_source:
            return
        old.answered = float("inf")
        reply = send_request(self.client, self.history, old)
        assert reply.status == 201, f"{old} again: {reply.status} {reply.body[:200]!r}"
        self.history.streams[inc.stream].append(inc)
        note_append(inc, old)

    def probe_states(self) -> None:
        live = self.all_live()
        for inc in self.dice.sample(live, min(PROBES_MAX, len(live))):
            for mark in inc.producers.values():
                self.probe_producer(inc, mark)
            if inc.stream_seq is not None:
                self.probe(inc, 409, stream_seq=inc.stream_seq)
                self.probe(inc, 409, stream_seq=f"{int(inc.stream_seq) - 1:012d}")
            if inc.closed is not None:
                reply = self.probe(inc, 409)
                assert reply.headers.get("stream-closed") == "true"

    def probe_producer(self, inc: Incarnation, mark: ProducerMark) -> None:
        self.probe(inc, 204, producer=mark)
        gap = ProducerMark(mark.id, mark.epoch, mark.seq + 2)
        reply = self.probe(inc, 409, producer=gap)
        expected = reply.headers.get("producer-expected-seq")
        assert expected == str(mark.seq + 1), f"{inc.stream} {mark}: expects {expected}"
        if mark.epoch > 0:
            stale = ProducerMark(mark.id, mark.epoch - 1, mark.seq + 1)
            reply = self.probe(inc, 403, producer=stale)
            assert reply.headers.get("producer-epoch") == str(mark.epoch)

    def probe(
        self,
        inc: Incarnation,
        expected: int,
        producer: ProducerMark | None = None,
        stream_seq: str | None = None,
    ) -> Reply:
        """An append that must change nothing."""
        self.probes += 1
        payload: Content = (b'"probe"',) if inc.kind is Kind.JSON else b"probe"
        label = f"{self.label}.probe{self.probes}"
        request = append_request(inc, label, payload, producer, stream_seq)
        reply = send_request(self.client, self.history, request)
        assert reply.status == expected, (
            f"{inc.stream} {producer} {stream_seq}: {reply.status}, expected {expected}:"
            f" {reply.body[:200]!r}"
        )
        return reply

    def check_briefs(self) -> None:
        """Windows that ended are ended; no read renewed them, a restart must not either."""
        for brief in self.history.briefs:
            left = brief.touched + brief.window_seconds + 0.1 - time.monotonic()
            if left > 0:
                time.sleep(left)
            reply = self.client.head(BASE + brief.stream)
            assert reply.status == 404, f"{brief} still answers {reply.status}"
            headers = {"Content-Type": "application/json", "Stream-TTL": "1"}
            assert self.client.put(BASE + brief.stream, headers=headers).status == 201
        self.history.briefs.clear()
