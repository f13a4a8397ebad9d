"""What operators ask: is it alive, is it ready, what is it doing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from millstream.api.headers import JSON, NO_STORE, TEXT
from millstream.api.json_metrics import ColdNumbers, json_metrics
from millstream.api.long_poll import LongPolls
from millstream.api.sse import SseReaders
from millstream.engine.engine import Engine
from millstream.faults import Faults
from millstream.http.message import Request
from millstream.http.server import Server
from millstream.journal.contract import COMMIT_SECONDS_BUCKETS, Journal
from millstream.subscriptions.watch import SubscriptionNumbers
from millstream.touch.service import TouchService


def respond_health(request: Request) -> None:
    request.respond(200, TEXT, b"ok\n")


def respond_health_json(request: Request) -> None:
    request.respond(200, JSON, b'{"ok":true}')


class Readiness:
    """/readyz: 200 while the server does all that it promises, else 503 with the reasons."""

    def __init__(
        self, faults: Faults, journal: Journal, is_store_full: Callable[[], bool] | None = None
    ) -> None:
        self.is_open = False  # it listens, and does not stop yet
        self._faults = faults
        self._journal = journal
        self._is_store_full = is_store_full

    def respond(self, request: Request) -> None:
        reasons = self._reasons()
        answer: dict[str, object] = {"ready": not reasons}
        if reasons:
            answer["reasons"] = reasons
        unexpected = self._unexpected_errors()
        if unexpected is not None:
            answer["unexpected_errors"] = unexpected
        body = msgspec.json.encode(answer) + b"\n"
        if reasons:
            request.respond(503, JSON + b"retry-after: 1\r\n", body)
        else:
            request.respond(200, JSON, body)

    def _reasons(self) -> list[dict[str, str]]:
        """Codes are for programs, messages for people."""
        reasons = []
        if not self.is_open:
            reasons.append({"code": "not_open", "message": "the server starts or stops"})
        if self._journal.is_full:
            message = "the disk is full: deletions are taken, appends and creations are not"
            reasons.append({"code": "disk_full", "message": message})
        elif self._is_store_full is not None and self._is_store_full():
            message = "the disk is full, that of the cold store: appends are refused"
            reasons.append({"code": "disk_full", "message": message})
        for where, fault in self._faults.failing().items():
            message = f"{where} has failed unexpectedly and not worked since: {fault.error}"
            reasons.append({"code": f"{where}_failed", "message": message})
        return reasons

    def _unexpected_errors(self) -> dict[str, object] | None:
        """A note for operators: these do not make the server unready by themselves."""
        last = self._faults.last
        if last is None:
            return None
        return {
            "count": sum(self._faults.counts.values()),
            "last": last.error,
            "last_where": last.where,
            "last_seconds_ago": round(self._faults.seconds_since(last), 1),
        }


class Metrics:
    """Reads plain numbers when it is asked; the paths that count only add integers."""

    def __init__(
        self,
        server: Server,
        engine: Engine,
        polls: LongPolls,
        sse: SseReaders,
        cold: Callable[[], ColdNumbers] | None = None,
        subscriptions: Callable[[], SubscriptionNumbers] | None = None,
        touch: TouchService | None = None,
    ) -> None:
        self._server = server
        self._engine = engine
        self._polls = polls
        self._sse = sse
        self._compression = polls.reads.compression
        self._cold = cold
        self._subscriptions = subscriptions
        self._touch = touch
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def respond_json(self, request: Request) -> None:
        """The same numbers under the names of other servers; see json_metrics.py."""
        cold = None if self._cold is None else self._cold()
        subscribers = self._sse.readers
        body = json_metrics(self._server, self._engine, self._polls.waiting, subscribers, cold)
        request.respond(200, JSON, msgspec.json.encode(body))

    def respond(self, request: Request) -> None:
        content_type = CONTENT_TYPE_LATEST.encode()
        headers = b"content-type: %b\r\n%b" % (content_type, NO_STORE)
        self._compression.respond(request, headers, generate_latest(self._registry), content_type)

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "millstream_http_requests", "Requests answered", labels=["route", "status"]
        )
        for route, counts in self._server.counts.items():
            for status, count in counts.items():
                requests.add_metric([route, str(status)], count)
        yield requests
        yield GaugeMetricFamily(
            "millstream_http_connections", "Open connections", len(self._server.connections)
        )
        readers = GaugeMetricFamily(
            "millstream_live_readers", "Readers waiting for new data", labels=["mode"]
        )
        readers.add_metric(["long-poll"], self._polls.waiting)
        readers.add_metric(["sse"], self._sse.readers)
        if self._touch is not None:
            readers.add_metric(["touch"], self._touch.waits)
        yield readers
        if self._touch is not None:
            yield GaugeMetricFamily(
                "millstream_touch_streams",
                "State-protocol streams whose touches are kept for who waits",
                self._touch.streams,
            )
        yield from self._collect_journal()
        yield from self._collect_state()
        if self._subscriptions is not None:
            yield from _collect_subscriptions(self._subscriptions())
        yield self._unexpected_errors()
        if self._cold is not None:
            yield from _collect_cold(self._cold())

    def _unexpected_errors(self) -> Metric:
        errors = CounterMetricFamily(
            "millstream_unexpected_errors",
            "Errors that no code foresaw; the log has each with its traceback",
            labels=["where"],
        )
        for where, count in self._engine.faults.counts.items():
            errors.add_metric([where], count)
        return errors

    def _collect_journal(self) -> Iterable[Metric]:
        stats = self._engine.journal.stats
        yield CounterMetricFamily(
            "millstream_commands", "Commands committed by the journal", stats.commands
        )
        yield CounterMetricFamily(
            "millstream_commit_batches", "Batches committed by the journal", stats.batches
        )
        yield CounterMetricFamily(
            "millstream_wal_written_bytes", "Bytes written to the log", stats.bytes_written
        )
        total, buckets = 0, []
        for bound, count in zip(COMMIT_SECONDS_BUCKETS, stats.commit_seconds, strict=False):
            total += count
            buckets.append((str(bound), float(total)))
        buckets.append(("+Inf", float(total + stats.commit_seconds[-1])))
        latency = HistogramMetricFamily(
            "millstream_commit_seconds", "Time from the start of a batch until it is durable"
        )
        latency.add_metric([], buckets, stats.commit_seconds_sum)
        yield latency
        yield GaugeMetricFamily(
            "millstream_wal_bytes", "Size of the log on disk", self._engine.journal.log_bytes
        )
        yield GaugeMetricFamily(
            "millstream_disk_full",
            "1 while only what makes room is taken, else 0",
            int(self._engine.journal.is_full),
        )
        queue = self._engine.queue
        yield CounterMetricFamily(
            "millstream_queue_refused",
            "Appends refused: too much waited for the log",
            queue.refused,
        )
        yield CounterMetricFamily(
            "millstream_append_timeouts", "Appends that the log kept waiting", queue.timed_out
        )
        yield GaugeMetricFamily(
            "millstream_journal_depth",
            "Commands taken and not committed",
            self._engine.journal.depth,
        )

    def _collect_state(self) -> Iterable[Metric]:
        machine = self._engine.machine
        yield CounterMetricFamily(
            "millstream_appends", "Appends and closes applied", self._engine.appends
        )
        yield GaugeMetricFamily("millstream_streams", "Streams", len(machine.names))
        yield GaugeMetricFamily(
            "millstream_hot_bytes",
            "Bytes of stream content that are in no segment yet",
            sum(machine.changes.hot_bytes),
        )
        yield GaugeMetricFamily(
            "millstream_resident_streams", "Streams in memory", len(machine.by_id)
        )


def _collect_subscriptions(numbers: SubscriptionNumbers) -> Iterable[Metric]:
    yield GaugeMetricFamily(
        "millstream_subscriptions", "Subscriptions, busy or not", numbers.subscriptions
    )
    yield GaugeMetricFamily(
        "millstream_wakes_in_flight", "Wakes that are not over yet", numbers.wakes_in_flight
    )
    webhooks = CounterMetricFamily(
        "millstream_webhooks", "Webhooks sent, by what came of it", labels=["outcome"]
    )
    for outcome, count in numbers.webhooks.items():
        webhooks.add_metric([outcome], count)
    yield webhooks
    yield GaugeMetricFamily(
        "millstream_wake_retries_waiting",
        "Wakes that could not be delivered and are tried again",
        numbers.retries_waiting,
    )
    yield GaugeMetricFamily(
        "millstream_oldest_undelivered_wake_seconds",
        "For how long the oldest wake waits to be delivered, since the start of the server at most",
        numbers.oldest_undelivered_seconds,
    )
    yield GaugeMetricFamily(
        "millstream_runaway_subscriptions",
        "Subscriptions that wake without a pause, as one does that feeds itself",
        numbers.runaways,
    )


def _collect_cold(cold: ColdNumbers) -> Iterable[Metric]:
    requests = CounterMetricFamily(
        "millstream_cold_requests", "Requests to the object store", labels=["kind"]
    )
    for kind, count in cold.requests.items():
        requests.add_metric([kind], count)
    yield requests
    moved = CounterMetricFamily(
        "millstream_cold_bytes", "Bytes moved from and to the object store", labels=["direction"]
    )
    moved.add_metric(["read"], cold.bytes_read)
    moved.add_metric(["written"], cold.bytes_written)
    yield moved
    yield CounterMetricFamily(
        "millstream_flushes", "Segments written to the object store", cold.segments
    )
    yield CounterMetricFamily("millstream_checkpoints", "Checkpoints stored", cold.checkpoints)
    yield GaugeMetricFamily(
        "millstream_dead_bytes",
        "Bytes of segments that no reader can see any more, about",
        cold.dead_bytes,
    )
    yield GaugeMetricFamily(
        "millstream_dead_bytes_overdue",
        "Bytes that --erase-within promised to be gone by now, about",
        cold.dead_bytes_overdue,
    )
    yield CounterMetricFamily(
        "millstream_catalog_uploads", "Copies of the catalog in the object store", cold.uploads
    )
    yield CounterMetricFamily(
        "millstream_windows", "Reads that needed the object store", cold.windows
    )
    yield GaugeMetricFamily(
        "millstream_held_bytes",
        "Bytes of stream content that are in a segment and in memory still",
        cold.held_bytes,
    )
    yield GaugeMetricFamily(
        "millstream_cold_cache_bytes", "Decoded cold content kept for readers", cold.cache_bytes
    )
