"""Errors that nobody expected are heard, wherever they happen."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import pytest
import structlog
import structlog.testing
import uvloop

from millstream.faults import PLACES, SERVICES, Faults


class Seconds:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


Lines = list[MutableMapping[str, Any]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    with structlog.testing.capture_logs() as captured:
        yield captured


def test_a_fault_is_counted_and_told_with_its_traceback(lines: Lines) -> None:
    faults = Faults()
    try:
        raise KeyError("no such shard")
    except KeyError as error:
        faults.report("flush", error)
    (line,) = lines
    assert (line["log_level"], line["where"]) == ("error", "flush")
    assert isinstance(line["exc_info"], KeyError)
    assert faults.counts["flush"] == sum(faults.counts.values()) == 1
    assert faults.last is not None
    assert faults.last.error == "KeyError: 'no such shard'"


def test_each_place_writes_one_line_a_second_and_says_what_it_left_out(
    lines: Lines,
) -> None:
    seconds = Seconds()
    faults = Faults(seconds)
    for _ in range(1000):
        faults.report("flush", RuntimeError("again"))
    faults.report("checkpoint", RuntimeError("another place"))
    seconds.now += 0.99
    faults.report("flush", RuntimeError("again"))
    assert [line["where"] for line in lines] == ["flush", "checkpoint"]
    seconds.now += 0.01
    faults.report("flush", RuntimeError("again"))
    seconds.now += 1
    faults.report("flush", RuntimeError("again"))
    first, second = lines[2:]
    assert first["not_shown"] == 1000
    assert "not_shown" not in second
    assert faults.counts["flush"] == 1003


def test_a_service_fails_until_it_works_and_an_event_never_does() -> None:
    seconds = Seconds()
    faults = Faults(seconds)
    for place in PLACES:
        faults.report(place, RuntimeError(place))
    assert set(faults.failing()) == SERVICES
    seconds.now += 5
    assert faults.seconds_since(faults.failing()["flush"]) == 5
    faults.works("flush")
    assert set(faults.failing()) == SERVICES - {"flush"}
    faults.report("flush", RuntimeError("once more"))
    assert "flush" in faults.failing()


def test_every_label_is_there_from_the_start() -> None:
    assert Faults().counts == dict.fromkeys(PLACES, 0)


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


def test_a_report_raises_nothing_even_if_the_error_cannot_be_shown() -> None:
    faults = Faults()
    faults.report("flush", _Unspeakable())
    assert faults.last is not None
    assert faults.last.error == "_Unspeakable"


def test_a_report_raises_nothing_even_if_the_log_is_broken() -> None:
    def broken(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
        raise BrokenPipeError("nobody reads stderr")

    structlog.configure(processors=[broken])
    try:
        faults = Faults()
        faults.report("flush", RuntimeError("heard in the numbers"))
        faults.works("flush")
    finally:
        structlog.reset_defaults()
    assert faults.counts["flush"] == 1


def test_threads_that_report_at_once_are_all_counted() -> None:
    faults = Faults()

    def report() -> None:
        for _ in range(2000):
            faults.report("blobs", RuntimeError("x"))

    threads = [threading.Thread(target=report) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults.counts["blobs"] == 16_000


def _fail(*_: object) -> None:
    raise RuntimeError("unforeseen")


async def _fail_slowly() -> None:
    _fail()


class _FailsWhenCollected:
    def __del__(self) -> None:
        _fail()


def _call_soon(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon(_fail)


def _timer(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_later(0.001, _fail)


def _from_thread(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon_threadsafe(_fail)


def _done_callback(loop: asyncio.AbstractEventLoop) -> None:
    future = loop.run_in_executor(None, int)
    future.add_done_callback(_fail)


def _forgotten_task(loop: asyncio.AbstractEventLoop) -> None:
    loop.create_task(_fail_slowly())  # this is the mistake


def _thread(loop: asyncio.AbstractEventLoop) -> None:
    thread = threading.Thread(target=_fail)
    thread.start()
    thread.join()


def _collected(loop: asyncio.AbstractEventLoop) -> None:
    _FailsWhenCollected()


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
@pytest.mark.parametrize(
    ("begin", "where"),
    [
        (_call_soon, "loop"),
        (_timer, "loop"),
        (_from_thread, "loop"),
        (_done_callback, "loop"),
        (_forgotten_task, "loop"),
        (_thread, "thread"),
        (_collected, "unraisable"),
    ],
)
def test_nothing_that_nobody_catches_passes_unseen(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    begin: Callable[[asyncio.AbstractEventLoop], None],
    where: str,
    lines: Lines,
) -> None:
    faults = Faults()

    async def go() -> None:
        loop = asyncio.get_running_loop()
        with faults.hearing_all(loop):
            begin(loop)
            async with asyncio.timeout(20):
                while not any(faults.counts.values()):
                    gc.collect()
                    await asyncio.sleep(0.001)
            gc.collect()  # what is told is told once
            await asyncio.sleep(0)
        assert loop.get_exception_handler() is None

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(go())
    assert {place: count for place, count in faults.counts.items() if count} == {where: 1}
    assert [str(line["exc_info"]) for line in lines] == ["unforeseen"]
