"""Whatever a collaborator of a service raises, and wherever: it is heard, shown, and got over.

The next service, or the next step of one, belongs into STEPS. A step names an attribute that raises
from the moment the work begins until it is told to stop; then the work must get done by itself.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
import structlog
import structlog.testing

from millstream.api.operations import Readiness
from millstream.cold.eviction import Eviction
from millstream.cold.memory_keeper import MemoryKeeper
from millstream.cold.retention import RetentionSweeps
from millstream.engine.timings import Backoff, Timings
from millstream.faults import Faults, Service
from millstream.http.message import Request
from millstream.journal.memory import MemoryJournal
from millstream.limits import MIB
from millstream.state.changes import Capture
from millstream.state.commands import CreateStream, SetRetention
from tests.unit.cold.cold_office import until
from tests.unit.cold.tier_world import PATIENCE, tier

FAULTS = (RuntimeError, KeyError, MemoryError)  # by turns: they are all the same to the policy
BRIEF = 0.005
RETRY = Backoff(BRIEF, 4 * BRIEF)
HASTY = replace(
    PATIENCE,
    flush_retry=RETRY,
    flush_look=BRIEF,
    checkpoint_retry=RETRY,
    eviction_retry=RETRY,
    upload_retry=RETRY,
    garbage_retry=RETRY,
    retention_retry=RETRY,
    lifetimes_retry=RETRY,
    memory_look=BRIEF,
    memory_rest=Backoff(BRIEF, BRIEF),
)

World = Any  # a TierWorld, with what a work hangs onto it


class Sabotage:
    """Raises in place of an attribute; `at(n)`: calls that go well before."""

    def __init__(self, owner: Any, name: str, error: Exception) -> None:
        self.calls = 0
        self._owner, self._name = owner, name
        self._is_own = name in vars(owner)
        self._before = getattr(owner, name)

        def fail(*_: object, **__: object) -> None:
            self.calls += 1
            raise error

        async def fail_later(*_: object, **__: object) -> None:
            fail()

        is_coroutine = inspect.iscoroutinefunction(self._before)
        setattr(owner, name, fail_later if is_coroutine else fail)

    def end(self) -> None:
        if self._is_own:
            setattr(self._owner, self._name, self._before)
        else:
            delattr(self._owner, self._name)


class Work(NamedTuple):
    """What a service is made to do: `prepare` while all is well, then `begin`."""

    prepare: Callable[[World], Awaitable[Any]]
    begin: Callable[[World, Any], None]
    is_done: Callable[[World, Any], bool]
    timings: Timings = HASTY


# Flush


async def _some_content(world: World) -> Any:
    return await world.create(b"a", b"content")


def _ask_for_flush(world: World, stream: Any) -> None:
    world.flusher._limits = world.flusher._limits._replace(shard_bytes=1)
    world.flusher._check()


FLUSH = Work(
    _some_content,
    _ask_for_flush,
    lambda world, stream: stream.log.cold_byte == stream.log.tail_byte,
)


# Checkpoint


async def _change(world: World) -> Any:
    await world.create(b"a", b"content")
    return []


def _ask_for_checkpoint(world: World, told: Any) -> None:
    async def ask() -> None:
        await world.checkpointer.checkpoint()
        if isinstance(told, list):
            told.append(True)

    world.group.create_task(ask())


CHECKPOINT = Work(
    _change,
    _ask_for_checkpoint,
    lambda world, told: bool(told) and world.catalog.find(b"a") is not None,
)

# Uploads


async def _checkpointed(world: World) -> Any:
    await _change(world)
    return world.uploads.count


UPLOAD = Work(
    _checkpointed,
    _ask_for_checkpoint,
    lambda world, count: world.uploads.count > count,
)

# Garbage


async def _unused_segment(world: World) -> Any:
    stream = await world.create(b"a", b"content")
    await world.flush(stream)
    await world.upload()
    await world.delete(stream)
    await world.upload()
    await world.create(b"b")
    await world.upload()
    assert world.names("segments/")


GARBAGE = Work(
    _unused_segment,
    lambda world, _: world.garbage.hurry(),
    lambda world, _: not world.names("segments/"),
)


async def _two_uploads(world: World) -> Any:
    for path in (b"a", b"b"):
        await world.create(path)
        await world.upload()


ORPHANS = Work(
    _two_uploads,
    lambda world, _: world.objects.put("segments/0000/1000000000000-0badcafe.parquet", b"old"),
    lambda world, _: bool(world.garbage._remembered),
    replace(HASTY, orphan_first_look=BRIEF, orphan_look=BRIEF),
)

# Eviction


async def _start_eviction(world: World, streams_max: int) -> None:
    world.eviction = Eviction(world.engine, streams_max, HASTY)
    await world.parts.enter_async_context(world.eviction.running(world.group))


async def _stored_stream(world: World) -> Any:
    await world.flush(await world.create(b"a", b"content"))
    await world.checkpoint()
    await _start_eviction(world, 10)


def _let_none_stay(world: World, _: Any) -> None:
    world.eviction._streams_max = 0
    world.eviction.check()


EVICTION = Work(_stored_stream, _let_none_stay, lambda world, _: not world.machine.by_id)

# Retention


async def _old_content(world: World) -> Any:
    stream = await world.create(b"bucket/a", b"old")
    await world.flush(stream)
    await world.append(stream, b"new")
    await world.submit(SetRetention(world.clock.now_ms(), b"bucket", age_ms=1))
    await world.checkpoint()
    world.retention = RetentionSweeps(world.engine, world.catalog, BRIEF, world.timings)
    await world.parts.enter_async_context(world.retention.running(world.group))
    return stream


RETENTION = Work(
    _old_content,
    lambda world, stream: world.clock.advance(10),
    lambda world, stream: stream.log.first_ordinal == 1,
)

# Lifetimes


async def _mortal(world: World) -> Any:
    now_ms = world.clock.now_ms()
    for path in (b"a", b"b"):
        await world.submit(CreateStream(now_ms, path, b"text/plain", ttl_ms=30))
    for path in (b"a", b"b"):
        stream = world.machine.find(path)
        assert stream is not None
        world.engine.lifetimes.follow(stream)


async def _mortal_at_rest(world: World) -> Any:
    await world.submit(CreateStream(world.clock.now_ms(), b"a", b"text/plain", ttl_ms=30))
    await world.checkpoint()
    await _start_eviction(world, 0)
    world.eviction.check()
    await until(lambda: not world.machine.by_id)


def _let_time_pass(world: World, _: Any) -> None:
    world.clock.advance(1000)
    if not world.machine.by_id:
        world.engine.lifetimes.sweep()


def _all_gone(world: World, _: Any) -> bool:
    return world.machine.names.buckets.get(b"_default") is None or not any(
        world.machine.residents.by_path.get(path) for path in (b"a", b"b")
    )


LIFETIMES = Work(_mortal, _let_time_pass, _all_gone)
LIFETIMES_AT_REST = Work(
    _mortal_at_rest, _let_time_pass, lambda world, _: bool(world.machine.residents.removed)
)

# Memory


async def _keeper(world: World) -> Any:
    keeper = world.keeper = MemoryKeeper(world.engine.faults, world.timings)
    await world.parts.enter_async_context(keeper.running(world.group))
    return keeper


class _Mark:
    returns = 0


def _note_returns(world: World, keeper: Any) -> None:
    _Mark.returns = keeper.returns


MEMORY = Work(_keeper, _note_returns, lambda world, keeper: keeper.returns > _Mark.returns)


class Step(NamedTuple):
    service: Service
    work: Work
    owner: Callable[[World], Any]
    name: str
    is_last: bool = False  # the work is done by then: it is heard, and there is nothing to repeat

    def __str__(self) -> str:
        return f"{self.service}: {self.name}"


def module(name: str) -> Callable[[World], Any]:
    return lambda _: importlib.import_module(f"millstream.{name}")


STEPS = [
    Step("flush", FLUSH, lambda w: w.flusher._published, "shrink"),
    Step("flush", FLUSH, lambda w: w.flusher, "_begin_flushes"),
    Step("flush", FLUSH, lambda w: w.flusher, "_plan"),
    Step("flush", FLUSH, module("cold.flusher"), "plan_flushes"),
    Step("flush", FLUSH, lambda w: w.machine.changes, "hot_streams"),
    Step("flush", FLUSH, module("cold.flusher"), "_content"),
    Step("flush", FLUSH, module("cold.flusher"), "segment_name"),
    Step("flush", FLUSH, lambda w: w.pending, "add"),
    Step("flush", FLUSH, module("cold.flusher"), "encode_segment"),
    Step("flush", FLUSH, lambda w: w.objects, "put"),
    Step("flush", FLUSH, module("cold.flusher"), "PublishRuns"),
    Step("flush", FLUSH, lambda w: w.engine, "submit"),
    Step("flush", FLUSH, lambda w: w.flusher._published, "add", is_last=True),
    Step("flush", FLUSH, lambda w: w.flusher, "_gather"),
    Step("flush", FLUSH, lambda w: w.flusher, "_take_to_store"),
    Step("flush", FLUSH, lambda w: w.flusher._threads, "run"),
    Step("flush", FLUSH, lambda w: w.engine, "perform"),
    Step("flush", FLUSH, lambda w: w.pending, "remove", is_last=True),
    Step("checkpoint", CHECKPOINT, lambda w: w.flusher, "flush_floor"),
    Step("checkpoint", CHECKPOINT, module("cold.checkpointer"), "take_records"),
    Step("checkpoint", CHECKPOINT, lambda w: w.machine.changes, "begin_capture"),
    Step("checkpoint", CHECKPOINT, lambda w: Capture, "take_some"),
    Step("checkpoint", CHECKPOINT, module("state.changes"), "image_of"),
    Step("checkpoint", CHECKPOINT, lambda w: w.machine.changes, "end_capture"),
    Step("checkpoint", CHECKPOINT, lambda w: Capture, "encode"),
    Step("checkpoint", CHECKPOINT, module("cold.checkpointer"), "encode_checkpoint"),
    Step("checkpoint", CHECKPOINT, module("cold.checkpointer"), "store_checkpoint"),
    Step("checkpoint", CHECKPOINT, lambda w: w.catalog, "merge"),
    Step("checkpoint", CHECKPOINT, lambda w: w.machine.changes, "settle"),
    Step("checkpoint", CHECKPOINT, lambda w: w.journal, "retire"),
    Step("checkpoint", CHECKPOINT, lambda w: w.checkpointer._thread, "run"),
    Step("checkpoint", CHECKPOINT, lambda w: w.checkpointer, "_settle"),
    Step("eviction", EVICTION, lambda w: w.eviction, "_evict_some"),
    Step("eviction", EVICTION, lambda w: w.machine.changes, "is_stored"),
    Step("eviction", EVICTION, lambda w: w.machine.residents, "evict"),
    Step("uploads", UPLOAD, lambda w: w.checkpointer, "in_thread"),
    Step("uploads", UPLOAD, lambda w: w.uploads, "_store_newest"),
    Step("uploads", UPLOAD, lambda w: w.catalog, "file_names"),
    Step("uploads", UPLOAD, lambda w: w.catalog, "back_up"),
    Step("uploads", UPLOAD, module("cold.catalog_uploads"), "store_file"),
    Step("uploads", UPLOAD, module("cold.catalog_uploads"), "store_manifest"),
    Step("uploads", UPLOAD, module("cold.catalog_uploads"), "_Stored"),
    Step("garbage", GARBAGE, lambda w: w.garbage, "look"),
    Step("garbage", GARBAGE, lambda w: w.checkpointer, "in_thread"),
    Step("garbage", GARBAGE, lambda w: w.catalog, "garbage"),
    Step("garbage", GARBAGE, lambda w: w.jobs, "busy_names"),
    Step("garbage", GARBAGE, lambda w: w.garbage, "_still_garbage"),
    Step("garbage", GARBAGE, lambda w: w.garbage, "_delete_some"),
    Step("garbage", GARBAGE, lambda w: w.objects, "delete"),
    Step("garbage", GARBAGE, lambda w: w.catalog, "forget_garbage"),
    Step("garbage", ORPHANS, lambda w: w.garbage, "find_orphans"),
    Step("garbage", ORPHANS, lambda w: w.objects, "list"),
    Step("garbage", ORPHANS, lambda w: w.catalog, "knows_segment"),
    Step("garbage", ORPHANS, lambda w: w.jobs, "oldest_start_ms"),
    Step("retention", RETENTION, lambda w: w.catalog, "aged"),
    Step("retention", RETENTION, lambda w: w.machine, "find_by_id"),
    Step("retention", RETENTION, lambda w: w.engine, "submit_and_forget"),
    Step("retention", RETENTION, lambda w: w.retention, "_find"),
    Step("retention", RETENTION, lambda w: w.retention, "_trim"),
    Step("lifetimes", LIFETIMES, lambda w: w.engine, "submit"),
    Step("lifetimes", LIFETIMES, lambda w: w.engine.lifetimes, "confirm_alive"),
    Step("lifetimes", LIFETIMES, module("engine.lifetimes"), "ExpireStream"),
    Step("lifetimes", LIFETIMES_AT_REST, lambda w: w.catalog, "due"),
    Step("lifetimes", LIFETIMES_AT_REST, lambda w: w.catalog, "next_deadline"),
    Step("lifetimes", LIFETIMES_AT_REST, lambda w: w.machine, "find_by_id"),
    Step("lifetimes", LIFETIMES_AT_REST, lambda w: w.engine, "submit"),
    Step("memory", MEMORY, module("cold.memory_keeper"), "resident_bytes"),
    Step("memory", MEMORY, module("cold.memory_keeper"), "return_unused"),
    Step("memory", MEMORY, lambda w: w.keeper, "_note_return"),
]


class _Asked:
    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        self.status, self.answer = status, json.loads(body)


def ask_ready(faults: Faults) -> tuple[int, list[str]]:
    readiness, asked = Readiness(faults, MemoryJournal()), _Asked()
    readiness.is_open = True
    readiness.respond(cast(Request, asked))
    return asked.status, [reason["code"] for reason in asked.answer.get("reasons", [])]


@pytest.mark.parametrize(
    ("step", "error"),
    [(step, FAULTS[i % len(FAULTS)]) for i, step in enumerate(STEPS)]
    + [(step, OSError) for step in STEPS],
    ids=str,
)
def test_trouble_is_heard_shown_and_got_over(
    step: Step, error: type[Exception], tmp_path: Path
) -> None:
    """If this hangs or fails, the service was dead, deaf or silent after the error."""

    async def story() -> None:
        with structlog.testing.capture_logs() as logs:
            async with tier(tmp_path, step.work.timings) as world:
                await in_trouble(world, logs)

    async def is_shown_and_repeated(faults: Faults, sabotage: Sabotage) -> None:
        codes = [] if error is OSError else [f"{step.service}_failed"]
        assert ask_ready(faults)[1] == codes
        calls = sabotage.calls
        await until(lambda: sabotage.calls > calls)
        assert ask_ready(faults)[1] == codes

    async def in_trouble(world: World, logs: list[Any]) -> None:
        faults, work = world.engine.faults, step.work
        what = await work.prepare(world)
        assert not faults.failing()
        sabotage = Sabotage(step.owner(world), step.name, error("injected"))
        try:
            work.begin(world, what)
            if error is OSError:
                await until(lambda: "injected" in str(logs))
            else:
                await until(lambda: faults.counts[step.service])
            if not step.is_last:
                await is_shown_and_repeated(faults, sabotage)
        finally:
            sabotage.end()
        await until(lambda: work.is_done(world, what))
        await until(lambda: not faults.failing())
        assert ask_ready(faults) == (200, [])
        if error is OSError:
            assert not any(faults.counts.values()), "the world's errors are no faults of ours"

    asyncio.run(story())


@pytest.mark.parametrize("list_of", ["checkpointer", "uploads"])
def test_who_is_told_of_something_and_fails_harms_nobody_else(list_of: str, tmp_path: Path) -> None:
    told = []

    def fail(*_: object) -> None:
        raise RuntimeError("a listener")

    async def story() -> None:
        async with tier(tmp_path) as world:
            calls: list[Callable[..., None]] = getattr(world, list_of).after
            calls.insert(0, fail)
            calls.append(lambda *_: told.append(True))
            await world.create(b"a")
            await world.upload()
            assert told
            assert world.engine.faults.counts["watcher"] == 1

    asyncio.run(story())


def test_a_stop_does_not_wait_for_the_back_off(tmp_path: Path) -> None:
    async def story() -> None:
        timings = replace(PATIENCE, checkpoint_retry=Backoff(3600.0, 3600.0))
        async with asyncio.timeout(20), tier(tmp_path, timings) as world:
            await world.create(b"a", bytes(2 * MIB))
            Sabotage(world.catalog, "merge", RuntimeError("injected"))
            world.group.create_task(world.checkpointer.checkpoint())
            await until(lambda: world.engine.faults.counts["checkpoint"])

    asyncio.run(story())
