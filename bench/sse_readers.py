"""Many SSE subscribers in one lean process; run by `workloads/fan_out.py`.

    python -m bench.sse_readers STREAM PORT SUBSCRIBERS

Prints `subscribed` when every subscriber has its first event. Then it reads until standard input
tells how many deliveries there are and all of them came, or DRAIN_SECONDS_MAX later, and prints
their latencies as one JSON line. It parses nothing: each event carries the moment it was sent
(processes share CLOCK_MONOTONIC), and looking for that mark is the whole work per delivery.
"""

import gc
import json
import math
import resource
import select
import sys
import time
from array import array
from collections.abc import Sequence

from bench.errors import BenchError
from bench.measure import percentile
from bench.wire import connect, encode_request, stream_path

MARK = b'"sent":"'
STAMP_DIGITS = 19
EVENT_BYTES = 100
BUFFER_BYTES = 256 * 1024
NEWLINE = 10
FIRST_EVENT = b"upToDate"
SUBSCRIBE_SECONDS_MAX = 30
DRAIN_SECONDS_MAX = 10
"""How long subscribers may lag behind the last event before the rest counts as missing."""


def encode_event(sent_ns: int) -> bytes:
    """A JSON message of EVENT_BYTES with the moment of sending in a fixed width."""
    body = b'{%s%0*d","pad":"' % (MARK, STAMP_DIGITS, sent_ns)
    return body + b"p" * (EVENT_BYTES - len(body) - 2) + b'"}'


class Subscribers:
    """The open connections, the bytes of cut-off events, and the latencies so far."""

    def __init__(self, port: int, stream: str, count: int) -> None:
        request = encode_request("GET", f"{stream_path(stream)}?offset=now&live=sse")
        self.latencies_ns = array("q")
        self._cut_off: dict[int, bytes] = {}
        self._buffer = bytearray(BUFFER_BYTES)
        self._poll = select.epoll()
        self._sockets = {sock.fileno(): sock for sock in (connect(port) for _ in range(count))}
        for descriptor, sock in self._sockets.items():
            sock.sendall(request)
            sock.setblocking(False)
            self._poll.register(descriptor, select.EPOLLIN)

    def wait_subscribed(self) -> None:
        """Return when every connection has seen its first control event."""
        waiting = dict.fromkeys(self._sockets, b"")
        deadline = time.monotonic() + SUBSCRIBE_SECONDS_MAX
        while waiting:
            for descriptor, _ in self._poll.poll(1.0):
                received = self._sockets[descriptor].recv(BUFFER_BYTES)
                seen = waiting.pop(descriptor, FIRST_EVENT) + received
                if FIRST_EVENT not in seen:
                    waiting[descriptor] = seen
                if not received or time.monotonic() > deadline:
                    raise BenchError(f"{len(waiting)} not subscribed, one of them got {seen!r}")

    def read(self) -> None:
        """Collect latencies until all are there or the time to wait for the last ones is over."""
        expected, deadline = math.inf, math.inf
        self._poll.register(sys.stdin, select.EPOLLIN)
        while len(self.latencies_ns) < expected and time.monotonic() < deadline:
            for descriptor, _ in self._poll.poll(1.0):
                if descriptor in self._sockets:
                    self._receive(descriptor)
                else:
                    expected = int(sys.stdin.readline())
                    deadline = time.monotonic() + DRAIN_SECONDS_MAX
                    self._poll.unregister(sys.stdin)

    def _receive(self, descriptor: int) -> None:
        received = self._sockets[descriptor].recv_into(self._buffer)
        now_ns = time.monotonic_ns()
        if not received:
            self._poll.unregister(descriptor)
        elif self._buffer[received - 1] == NEWLINE and descriptor not in self._cut_off:
            self._note_deliveries(self._buffer, received, now_ns)
        else:
            self._receive_cut_off(descriptor, bytes(self._buffer[:received]), now_ns)

    def _receive_cut_off(self, descriptor: int, received: bytes, now_ns: int) -> None:
        """Keep what follows the last whole line until the rest of it arrives."""
        data = self._cut_off.pop(descriptor, b"") + received
        whole = data.rfind(b"\n") + 1
        self._note_deliveries(data, whole, now_ns)
        if whole < len(data):
            self._cut_off[descriptor] = data[whole:]

    def _note_deliveries(self, data: bytes | bytearray, end: int, now_ns: int) -> None:
        at = data.find(MARK, 0, end)
        while at >= 0:
            stamp = at + len(MARK)
            self.latencies_ns.append(now_ns - int(data[stamp : stamp + STAMP_DIGITS]))
            at = data.find(MARK, stamp + STAMP_DIGITS, end)


def summarise(latencies_ns: Sequence[int], cpu_seconds: float) -> dict[str, float]:
    if not latencies_ns:
        raise BenchError("not a single event was delivered")
    ordered = sorted(latencies_ns)
    return {
        "deliveries": len(ordered),
        "p50_ms": percentile(ordered, 50) / 1e6,
        "p99_ms": percentile(ordered, 99) / 1e6,
        "reader_cpu_us_per_delivery": cpu_seconds * 1e6 / len(ordered),
    }


def main(stream: str, port: int, count: int) -> None:
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    subscribers = Subscribers(port, stream, count)
    subscribers.wait_subscribed()
    # A collection pause here would be counted as the server's.
    gc.disable()
    print("subscribed", flush=True)
    cpu_before = time.process_time()
    subscribers.read()
    cpu_seconds = time.process_time() - cpu_before
    print(json.dumps(summarise(subscribers.latencies_ns, cpu_seconds)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
