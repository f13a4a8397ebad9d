"""Clients that write: each carries out its plan until the server is gone, and records it all."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from tests.crash.content import Content, Kind, Position, encode_body, make_payload
from tests.crash.history import Brief, Fate, History, Incarnation, ProducerMark, Request
from tests.crash.plan import FAMILY, LOGS, WRITERS, Intent, Operation, plan_operations
from tests.support.http import Client, Reply

BASE = "/v1/stream/"
BRIEF_SECONDS = 1
KEPT_SECONDS = 3600
KINDS = (Kind.BINARY, Kind.TEXT, Kind.JSON)
WAIT_SECONDS = 0.005  # far less than Retry-After says: the server must not mind
WAIT_SECONDS_MAX = 20.0
LOST = (OSError, http.client.HTTPException)  # what a client sees when the server dies


class ServerGone(Exception):
    """The connection broke while a request was out."""


def asks_to_wait(reply: Reply) -> bool:
    """The hot budget is used up: nothing was done, and a client comes back."""
    if reply.status != 503 or reply.json()["error"]["code"] != "hot_budget_used":
        return False
    assert "retry-after" in reply.headers, reply
    return True


def leaves_open(reply: Reply) -> bool:
    """The server failed, and the outcome is as unknown as after a kill."""
    return reply.status == 500 or (reply.status == 503 and not asks_to_wait(reply))


def send_request(client: Client, history: History, request: Request) -> Reply:
    """Sends and records; raises ServerGone with the request's fate left unknown."""
    body = encode_body(request.payload) if len(request.payload) else None
    request.sent = history.tick()
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    try:
        reply = client.call(request.method, BASE + request.stream, body, request.headers)
        while asks_to_wait(reply) and time.monotonic() < deadline:
            history.waits += 1
            time.sleep(WAIT_SECONDS)
            reply = client.call(request.method, BASE + request.stream, body, request.headers)
    except LOST as error:
        client.close()
        raise ServerGone(f"{request}: {error!r}") from error
    if history.is_faulty and leaves_open(reply):
        raise ServerGone(f"{request}: {reply.status} {reply.body[:200]!r}")
    request.answered = history.tick()
    request.status = reply.status
    if reply.status == 503:
        request.answered = float("inf")  # the server promises nothing about these here
    elif reply.status < 300:
        request.fate = Fate.ACKNOWLEDGED
        history.acknowledged += 1
        duplicate = request.producer is not None and reply.status == 204
        if "stream-next-offset" in reply.headers and not duplicate:
            request.end = Position.parse(reply.next_offset)
    else:
        request.fate = Fate.REFUSED
    return reply


def append_request(
    inc: Incarnation,
    label: str,
    payload: Content,
    producer: ProducerMark | None = None,
    stream_seq: str | None = None,
    closes: bool = False,
) -> Request:
    headers = {"Content-Type": inc.kind.value} if len(payload) else {}
    if producer is not None:
        headers |= producer.headers
    if stream_seq is not None:
        headers["Stream-Seq"] = stream_seq
    if closes:
        headers["Stream-Closed"] = "true"
    return Request(
        label, "POST", inc.stream, inc.kind, payload, headers, producer, stream_seq, closes
    )


def note_append(inc: Incarnation, request: Request) -> None:
    """What an acknowledged append changes for later requests."""
    if request.producer is not None:
        inc.producers[request.producer.id] = request.producer
    if request.stream_seq is not None:
        inc.stream_seq = request.stream_seq
    if request.closes and inc.closed is None:
        inc.closed = request
    if request.end is not None and len(request.payload):
        inc.requests.append(request)


def family_kind(writer: int, role: str) -> Kind:
    """Sources and forks of one writer share a kind; the other roles are spread over all kinds."""
    if role == "sequenced":
        return Kind.TEXT
    return KINDS[(writer + (role == "kept")) % 3]


class Writer(threading.Thread):
    def __init__(
        self,
        history: History,
        seed: int,
        generation: int,
        index: int,
        port: int,
        ending: threading.Event,
    ) -> None:
        super().__init__(name=f"writer-{index}", daemon=True)
        self.history, self.index, self.port, self.ending = history, index, port, ending
        self.generation = generation
        self.plan = plan_operations(seed, generation, index)
        self.client = Client("127.0.0.1", port)
        self.producer_id = f"producer-{index}"
        self.actions: dict[Intent, Callable[[Operation], None]] = {
            Intent.APPEND_LOG: self.append_log,
            Intent.APPEND_LOG_NEW_EPOCH: self.append_log_new_epoch,
            Intent.APPEND_LOG_PLAIN: self.append_log_plain,
            Intent.LEAVE_MID_BODY_THEN_RETRY: self.leave_then_retry,
            Intent.LEAVE_BEFORE_ANSWER_THEN_RETRY: self.leave_then_retry,
            Intent.LEAVE_BEFORE_ANSWER: self.leave,
            Intent.LEAVE_MID_BODY: self.leave,
            Intent.APPEND_OWN: self.append_own,
            Intent.APPEND_SEQUENCED: self.append_sequenced,
            Intent.APPEND_TO_ANOTHER: self.append_to_another,
            Intent.APPEND_AND_CLOSE: self.append_own,
            Intent.CLOSE: self.close_own,
            Intent.CREATE: self.create_own,
            Intent.DELETE: self.delete_own,
            Intent.FORK: self.fork,
            Intent.DELETE_FORK: self.delete_own,
            Intent.CREATE_BRIEF: self.create_brief,
        }

    def run(self) -> None:
        try:
            for operation in self.plan:
                if self.ending.is_set():
                    return
                self.actions[operation.intent](operation)
        except ServerGone as error:
            if not self.ending.is_set() and not self.history.is_faulty:
                self.history.complain(f"a living server dropped a connection: {error}")
        except Exception as error:
            self.history.complain(f"{self.name}: {type(error).__name__}: {error}")
        finally:
            self.client.close()

    # --- building requests -----------------------------------------------------------------

    def label(self, operation: Operation) -> str:
        return f"w{self.index}.g{self.generation}.n{operation.number}"

    def payload(self, operation: Operation, kind: Kind, whole_tag: bool = False) -> Content:
        size_bytes = max(operation.size_bytes, 64 * operation.messages if whole_tag else 1)
        tiny = (
            self.index * 24 + operation.number % 23
            if kind is not Kind.JSON
            else (self.index * 10_000_000 + self.generation * 100_000 + operation.number * 20)
        )
        return make_payload(kind, self.label(operation), size_bytes, operation.messages, tiny)

    def own(self, role: str) -> str:
        return f"{role}-{self.index}"

    def log(self, operation: Operation) -> Incarnation:
        names = list(LOGS)
        inc = self.history.last(names[int(operation.pick * len(names))])
        assert inc is not None
        return inc

    def next_mark(self, inc: Incarnation, new_epoch: bool = False) -> ProducerMark:
        last = inc.producers.get(self.producer_id)
        if last is None:
            return ProducerMark(self.producer_id, 0, 0)
        if new_epoch:
            return ProducerMark(self.producer_id, last.epoch + 1, 0)
        return ProducerMark(self.producer_id, last.epoch, last.seq + 1)

    def send_append(self, inc: Incarnation, request: Request, allowed: tuple[int, ...]) -> Reply:
        self.history.pending.append(request)
        reply = send_request(self.client, self.history, request)
        if reply.status not in allowed and not (reply.status == 503 and self.ending.is_set()):
            self.history.complain(f"{request} expected {allowed}: {reply.body[:200]!r}")
        if request.fate is Fate.ACKNOWLEDGED:
            note_append(inc, request)
        return reply

    # --- the shared logs -------------------------------------------------------------------

    def append_log(self, operation: Operation) -> None:
        inc = self.log(operation)
        payload = self.payload(operation, inc.kind)
        request = append_request(inc, self.label(operation), payload, self.next_mark(inc))
        self.send_append(inc, request, (200,))

    def append_log_new_epoch(self, operation: Operation) -> None:
        inc = self.log(operation)
        mark = self.next_mark(inc, new_epoch=True)
        payload = self.payload(operation, inc.kind)
        self.send_append(inc, append_request(inc, self.label(operation), payload, mark), (200,))

    def append_log_plain(self, operation: Operation) -> None:
        inc = self.log(operation)
        payload = self.payload(operation, inc.kind, whole_tag=True)
        self.send_append(inc, append_request(inc, self.label(operation), payload), (204,))

    def leave_then_retry(self, operation: Operation) -> None:
        """The retry must find out whether the first try arrived, and end with exactly one."""
        inc = self.log(operation)
        payload = self.payload(operation, inc.kind, whole_tag=True)
        request = append_request(inc, self.label(operation), payload, self.next_mark(inc))
        whole = operation.intent is Intent.LEAVE_BEFORE_ANSWER_THEN_RETRY
        request.sent = self.history.tick()
        self.send_and_leave(request, whole, operation)
        if operation.twist < 0.5:
            time.sleep(operation.twist * 0.01)
        self.history.pending.append(request)
        sent = request.sent
        try:
            reply = send_request(self.client, self.history, request)
        finally:
            request.sent = sent
        if reply.status not in ((200, 204) if whole else (200,)) and not self.ending.is_set():
            self.history.complain(f"{request}: {reply.body[:200]!r}")
        if request.fate is Fate.ACKNOWLEDGED:
            note_append(inc, request)

    def leave(self, operation: Operation) -> None:
        """Nobody will ever ask again: there at most once, and never a part of it."""
        inc = self.log(operation)
        payload = self.payload(operation, inc.kind, whole_tag=True)
        request = append_request(inc, self.label(operation), payload)
        whole = operation.intent is Intent.LEAVE_BEFORE_ANSWER
        request.fate = Fate.UNKNOWN if whole else Fate.TORN
        request.sent = self.history.tick()
        self.history.pending.append(request)
        self.send_and_leave(request, whole, operation)

    def send_and_leave(self, request: Request, whole: bool, operation: Operation) -> None:
        body = encode_body(request.payload)
        lines = [f"POST {BASE}{request.stream} HTTP/1.1", "Host: 127.0.0.1"]
        lines += [f"{name}: {value}" for name, value in request.headers.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        cut = len(body) if whole else int(operation.place * len(body))
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
                connection.sendall("\r\n".join(lines).encode() + body[:cut])
                if operation.twist < 0.3:  # a reset instead of a polite end
                    linger = struct.pack("ii", 1, 0)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        except OSError as error:
            raise ServerGone(f"{request}: {error!r}") from error

    # --- streams of its own ----------------------------------------------------------------

    def pick_own(self, operation: Operation, roles: tuple[str, ...]) -> str:
        return self.own(roles[int(operation.pick * len(roles))])

    def append_own(self, operation: Operation) -> None:
        roles = ("life", "source", "fork-a", "fork-b", "fork-c", "kept")
        inc = self.history.last(self.pick_own(operation, roles))
        if inc is None or not inc.is_there:
            self.create_own(operation)
            return
        closes = operation.intent is Intent.APPEND_AND_CLOSE
        payload = self.payload(operation, inc.kind)
        request = append_request(
            inc, self.label(operation), payload, self.next_mark(inc), closes=closes
        )
        self.send_append(inc, request, (200,) if inc.closed is None else (409,))

    def close_own(self, operation: Operation) -> None:
        inc = self.history.last(self.pick_own(operation, ("life", "fork-a", "kept")))
        if inc is None or not inc.is_there:
            return
        request = append_request(inc, self.label(operation), inc.kind.nothing, closes=True)
        self.send_append(inc, request, (204,))

    def append_sequenced(self, operation: Operation) -> None:
        """Stream-Seq alone, or beside a producer: in both cases a retry finds out."""
        inc = self.history.last(self.own("sequenced"))
        if inc is None or not inc.is_there:
            self.create(self.own("sequenced"), operation)
            return
        last = int(inc.stream_seq or "0")
        stream_seq = f"{last + 1 + int(operation.place * 3):012d}"
        mark = self.next_mark(inc) if operation.twist < 0.5 else None
        payload = self.payload(operation, inc.kind)
        request = append_request(inc, self.label(operation), payload, mark, stream_seq)
        self.send_append(inc, request, (204,) if mark is None else (200,))

    def append_to_another(self, operation: Operation) -> None:
        other = (self.index + 1 + int(operation.pick * (WRITERS - 1))) % WRITERS
        role = "life" if operation.twist < 0.5 else "source"
        inc = self.history.last(f"{role}-{other}")
        if inc is None:
            return
        payload = self.payload(operation, inc.kind, whole_tag=True)
        request = append_request(inc, self.label(operation), payload)
        self.history.pending.append(request)
        reply = send_request(self.client, self.history, request)
        if reply.status not in (204, 404, 409, 410) and not self.ending.is_set():
            self.history.complain(f"{request}: {reply.body[:200]!r}")

    def create_own(self, operation: Operation) -> None:
        self.create(self.pick_own(operation, FAMILY), operation)

    def create(self, stream: str, operation: Operation) -> None:
        last = self.history.last(stream)
        if last is not None and last.is_there:
            return
        role = stream.rpartition("-")[0]
        kind = family_kind(self.index, role)
        headers = {"Content-Type": kind.value}
        if role == "kept":
            headers |= self.kept_header(operation)
        payload = self.payload(operation, kind) if operation.twist < 0.4 else kind.nothing
        closes = role == "life" and operation.place < 0.1
        if closes:
            headers["Stream-Closed"] = "true"
        request = Request(
            self.label(operation), "PUT", stream, kind, payload, headers, closes=closes
        )
        self.send_create(Incarnation(stream, kind, request), last)

    def kept_header(self, operation: Operation) -> dict[str, str]:
        if operation.twist < 0.7:
            return {"Stream-TTL": str(KEPT_SECONDS)}
        expires = datetime.now(UTC) + timedelta(seconds=KEPT_SECONDS)
        return {"Stream-Expires-At": expires.strftime("%Y-%m-%dT%H:%M:%SZ")}

    def send_create(self, inc: Incarnation, last: Incarnation | None) -> Reply:
        kept_for_forks = last is not None and last.keeps_source
        request = inc.created
        incarnations = self.history.streams.setdefault(inc.stream, [])
        if not kept_for_forks:
            incarnations.append(inc)
            if inc.parent is not None:
                inc.parent.children.append(inc)
        reply = send_request(self.client, self.history, request)
        if request.fate is Fate.REFUSED and not kept_for_forks:
            incarnations.remove(inc)
            if inc.parent is not None:
                inc.parent.children.remove(inc)
        expected = 409 if kept_for_forks else 201
        if reply.status != expected and not (reply.status == 503 and self.ending.is_set()):
            self.history.complain(f"{request} expected {expected}: {reply.body[:200]!r}")
        if request.fate is Fate.ACKNOWLEDGED:
            note_append(inc, request)
        return reply

    def delete_own(self, operation: Operation) -> None:
        roles: tuple[str, ...] = ("life", "source", "sequenced", "kept")
        if operation.intent is Intent.DELETE_FORK:
            roles = ("fork-a", "fork-b", "fork-c")
        inc = self.history.last(self.pick_own(operation, roles))
        if inc is None or not inc.is_there:
            return
        request = Request(self.label(operation), "DELETE", inc.stream, inc.kind, inc.kind.nothing)
        inc.deleted = request
        reply = send_request(self.client, self.history, request)
        if request.fate is Fate.REFUSED:
            inc.deleted = None
            self.history.complain(f"{request}: {reply.body[:200]!r}")

    # --- forks -----------------------------------------------------------------------------

    def fork(self, operation: Operation) -> None:
        stream = self.own(("fork-a", "fork-b", "fork-c")[operation.number % 3])
        last = self.history.last(stream)
        if last is not None and last.is_there:
            return
        source = self.pick_source(operation, stream)
        if source is None:
            return
        headers = {"Stream-Forked-From": BASE + source.stream}
        inherited: int | None = None
        anchors = [r for r in source.requests if r.end is not None]
        if operation.twist < 0.7 and anchors:
            inherited = self.choose_fork_point(operation, anchors, headers)
        payload = (
            self.payload(operation, source.kind) if operation.place < 0.3 else (source.kind.nothing)
        )
        if len(payload):
            headers["Content-Type"] = source.kind.value
        request = Request(self.label(operation), "PUT", stream, source.kind, payload, headers)
        inc = Incarnation(stream, source.kind, request, source, inherited)
        self.send_create(inc, last)
        if request.fate is Fate.ACKNOWLEDGED:
            assert request.end is not None
            at = request.start
            if inherited not in (None, at):
                self.history.complain(f"{request}: forked at {at}, asked for {inherited}")
            inc.inherited = at

    def pick_source(self, operation: Operation, stream: str) -> Incarnation | None:
        names = [*LOGS, *(self.own(r) for r in ("life", "source", "source", "fork-a", "fork-b"))]
        source = self.history.last(names[int(operation.pick * len(names))])
        if source is None or not source.is_there or source.stream == stream:
            return None
        return source

    def choose_fork_point(
        self, operation: Operation, anchors: list[Request], headers: dict[str, str]
    ) -> int:
        chosen = anchors[int(operation.place * len(anchors))]
        assert chosen.end is not None
        if operation.twist < 0.35:
            headers["Stream-Fork-Offset"] = chosen.end.token
            return chosen.end.units(chosen.kind)
        # A cut inside an append: anchored where it began, so many units further.
        extra = 1 + int(operation.place * 1000) % len(chosen.payload)
        headers["Stream-Fork-Offset"] = chosen.end.before(chosen.kind, chosen.payload).token
        headers["Stream-Fork-Sub-Offset"] = str(extra)
        return chosen.start + extra

    # --- streams that must be gone after the crash ------------------------------------------

    def create_brief(self, operation: Operation) -> None:
        stream = f"brief-{self.index}-{self.generation}-{operation.number}"
        headers = {"Content-Type": "text/plain", "Stream-TTL": str(BRIEF_SECONDS)}
        request = Request(self.label(operation), "PUT", stream, Kind.TEXT, b"soon gone", headers)
        reply = send_request(self.client, self.history, request)
        if reply.status == 201:
            self.history.briefs.append(Brief(stream, time.monotonic(), BRIEF_SECONDS))
