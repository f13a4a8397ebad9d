"""What the server measures of itself, from numbers that its parts keep up anyway.

A window in which no client asked for anything measures nothing: what the server writes about
itself must not be the reason to write again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice

from millstream.api.json_metrics import ColdNumbers
from millstream.api.long_poll import LongPolls
from millstream.api.sse import SseReaders
from millstream.engine.engine import Engine
from millstream.heap import resident_bytes
from millstream.http.server import Server
from millstream.limits import METRIC_SERIES_MAX
from millstream.system.interval_records import Measured, Series, single

# Asked by programs around the clock, whether or not a client is there.
BACKGROUND_ROUTES = frozenset(("healthz", "readyz", "metrics", "jobs", "operator"))
COMMIT = Series("tieredstore.ingest.flush.latency", "ns")


class Measurements:
    def __init__(
        self,
        server: Server,
        engine: Engine,
        polls: LongPolls,
        sse: SseReaders,
        cold: Callable[[], ColdNumbers] | None,
    ) -> None:
        self._server = server
        self._engine = engine
        self._polls = polls
        self._sse = sse
        self._cold = cold
        self._told: dict[Series, int] = {}  # how far counters were, and levels
        self._activity = 0
        self._next = self._told, self._activity
        self._commits = _Commits(engine)

    def take(self) -> list[tuple[Series, Measured]]:
        """What changed since `settle` was last called; nothing when no client was there."""
        activity = self._count_activity()
        if activity == self._activity:
            return []
        told, counters, levels = self._told, dict(self._counters()), dict(self._levels())
        found = [
            (series, single(value - told.get(series, 0)))
            for series, value in counters.items()
            if value != told.get(series, 0)
        ]
        found += [
            (series, single(value))
            for series, value in levels.items()
            if value != told.get(series, 0)
        ]
        if (commits := self._commits.take()) is not None:
            found.append((COMMIT, commits))
        self._next = counters | levels, activity
        return sorted(found, key=lambda each: each[0])[:METRIC_SERIES_MAX]

    def settle(self) -> None:
        """What was taken last is written."""
        self._told, self._activity = self._next
        self._commits.settle()

    def _count_activity(self) -> int:
        counts = self._server.counts.items()
        return sum(sum(by.values()) for route, by in counts if route not in BACKGROUND_ROUTES)

    def _counters(self) -> Iterator[tuple[Series, int]]:
        requests: Counter[tuple[str, str]] = Counter()
        for route, by_status in self._server.counts.items():
            for status, count in by_status.items():
                requests[route, f"{status // 100}xx"] += count
        for (route, status_class), count in requests.items():
            tags = (("route", route), ("status", status_class))
            yield Series("millstream.http.requests", "count", tags), count
        engine = self._engine
        yield Series("millstream.appends", "count"), engine.appends
        yield Series("millstream.journal.written", "bytes"), engine.journal.stats.bytes_written
        over_limit = "tieredstore.backpressure.over_limit"
        yield Series(over_limit, "count", (("reason", "queue"),)), engine.queue.refused
        yield Series(over_limit, "count", (("reason", "backlog"),)), engine.hot_budget.refused
        yield Series("millstream.append.timeouts", "count"), engine.queue.timed_out
        if self._cold is not None:
            cold = self._cold()
            for kind, count in cold.requests.items():
                operation = (("operation", kind),)
                yield Series("tieredstore.objectstore.requests", "count", operation), count
            yield Series("tieredstore.objectstore.read", "bytes"), cold.bytes_read
            yield Series("tieredstore.objectstore.written", "bytes"), cold.bytes_written
            yield Series("millstream.cold.reads", "count"), cold.windows
            yield Series("millstream.cold.segments", "count"), cold.segments

    def _levels(self) -> Iterator[tuple[Series, int]]:
        engine, machine = self._engine, self._engine.machine
        yield Series("tieredstore.ingest.queue.requests", "count"), engine.journal.depth
        hot_bytes = sum(machine.changes.hot_bytes)
        yield Series("tieredstore.backpressure.current.bytes", "bytes"), hot_bytes
        yield Series("millstream.streams", "count"), len(machine.names)
        yield Series("millstream.http.connections", "count"), len(self._server.connections)
        readers = "millstream.live.readers"
        yield Series(readers, "count", (("mode", "long-poll"),)), self._polls.waiting
        yield Series(readers, "count", (("mode", "sse"),)), self._sse.readers
        yield Series("millstream.journal.log", "bytes"), engine.journal.log_bytes
        yield Series("process.rss.bytes", "bytes"), resident_bytes()


class _Commits:
    """How long batches took to become durable."""

    def __init__(self, engine: Engine) -> None:
        self._stats = engine.journal.stats
        self._told = self._next = (list(self._stats.commit_log2), 0.0)

    def take(self) -> Measured | None:
        stats = self._stats
        self._next = (list(stats.commit_log2), stats.commit_seconds_sum)
        pairs = zip(self._next[0], self._told[0], strict=True)
        more = [now - before for now, before in pairs]
        count = sum(more)
        sample = [int(seconds * 1e9) for seconds in islice(reversed(stats.recent_seconds), count)]
        if not count or not sample:
            return None
        buckets = {1 << (bits - 1) if bits else 0: n for bits, n in enumerate(more) if n}
        total = int((self._next[1] - self._told[1]) * 1e9)
        return Measured(count, total, sample, buckets)

    def settle(self) -> None:
        self._told = self._next
