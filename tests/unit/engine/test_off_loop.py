from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

from millstream.engine.off_loop import OffLoop


def run(story: Callable[[OffLoop], Awaitable[None]], threads: int = 1) -> None:
    async def whole() -> None:
        off_loop = OffLoop("test", threads)
        off_loop.start(asyncio.get_running_loop())
        try:
            await story(off_loop)
        finally:
            off_loop.close()

    asyncio.run(whole())


def test_work_runs_in_a_thread_and_its_result_comes_back_on_the_loop() -> None:
    async def story(off_loop: OffLoop) -> None:
        where: list[threading.Thread] = []
        results: list[object] = []

        def done(result: str | Exception) -> None:
            where.append(threading.current_thread())
            results.append(result)

        def work() -> str:
            where.append(threading.current_thread())
            return "done"

        off_loop.run(work, done)
        await off_loop.wait_idle()
        assert results == ["done"]
        assert where[0] is not threading.current_thread()
        assert where[1] is threading.current_thread()

    run(story)


def test_an_error_comes_back_as_a_value() -> None:
    async def story(off_loop: OffLoop) -> None:
        results: list[object] = []

        def work() -> None:
            raise OSError("no")

        off_loop.run(work, results.append)
        await off_loop.wait_idle()
        assert [str(error) for error in results] == ["no"]

    run(story)


def test_idle_is_when_work_that_was_begun_by_a_callback_has_ended_too() -> None:
    async def story(off_loop: OffLoop) -> None:
        results: list[int] = []

        def done(result: int | Exception) -> None:
            assert isinstance(result, int)
            results.append(result)
            if result < 5:
                off_loop.run(lambda: result + 1, done)

        off_loop.run(lambda: 1, done)
        await off_loop.wait_idle()
        assert results == [1, 2, 3, 4, 5]

    run(story)


def test_no_more_threads_work_at_once_than_there_are() -> None:
    async def story(off_loop: OffLoop) -> None:
        lock, counts = threading.Lock(), [0, 0]
        both = threading.Barrier(2, timeout=10)

        def work() -> None:
            with lock:
                counts[0] += 1
                counts[1] = max(counts)
            both.wait()
            with lock:
                counts[0] -= 1

        for _ in range(6):
            off_loop.run(work, lambda _: None)
        await off_loop.wait_idle()
        assert counts == [0, 2]

    run(story, threads=2)


def test_no_thread_and_a_thread_that_is_ended_are_errors_like_any_other() -> None:
    async def story(off_loop: OffLoop) -> None:
        told: list[object] = []

        def leave() -> None:
            raise SystemExit(3)

        off_loop.run(leave, told.append)
        await off_loop.wait_idle()
        off_loop.close()
        off_loop.run(lambda: "never", told.append)
        await asyncio.sleep(0)
        ended, closed = told
        assert isinstance(ended, RuntimeError)
        assert isinstance(ended.__cause__, SystemExit)
        assert isinstance(closed, RuntimeError)

    run(story)
