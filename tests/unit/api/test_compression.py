from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Sequence

import pytest

from millstream.api.compression import CompressedBody, Compression
from millstream.faults import Faults
from millstream.http.encodings import GZIP, Compressor, new_compressor
from millstream.limits import COMPRESS_ON_LOOP_BYTES, COMPRESS_WAITING_MAX, COMPRESSED_BODIES_MAX
from tests.unit.api.fake_body import FakeBody
from tests.unit.api.fake_request import FakeRequest

LARGE = b"large " * COMPRESS_ON_LOOP_BYTES
SMALL = b"small"


class Broken:
    """A compressor that fails as no compressor should."""

    def compress(self, parts: Sequence[bytes | memoryview]) -> bytes:
        raise RuntimeError("out of order")

    def flush(self) -> bytes:
        return b""

    def finish(self) -> bytes:
        return b""


def telling(story: Callable[[Compression, FakeBody], Awaitable[None]]) -> Faults:
    """Tells the story and checks that no compressor is left; what went wrong unexpectedly."""

    async def tell() -> Faults:
        compression = Compression(is_on=True, faults=Faults())
        compression.start(asyncio.get_running_loop())
        await story(compression, FakeBody(is_slow=False))
        await until(lambda: compression.bodies == 0)
        compression.close()
        return compression.faults

    return asyncio.run(tell())


def opened(
    compression: Compression, body: FakeBody, compressor: Compressor | None = None
) -> CompressedBody:
    compressor = compressor or new_compressor(GZIP)
    return CompressedBody(compression, body.stream, compressor, is_live=False)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not happen")


def test_pieces_come_out_in_order_however_they_are_compressed() -> None:
    async def story(compression: Compression, body: FakeBody) -> None:
        compressed = opened(compression, body)
        pieces = [LARGE, SMALL, LARGE, SMALL, SMALL]
        for piece in pieces:
            compressed.write(piece)  # not every writer waits until it may
        compressed.end()
        await until(lambda: body.ended)
        assert zlib.decompress(body.content, zlib.MAX_WBITS | 16) == b"".join(pieces)

    assert telling(story).last is None


def test_a_body_is_blocked_while_a_thread_works_and_then_says_so() -> None:
    async def story(compression: Compression, body: FakeBody) -> None:
        compressed = opened(compression, body)
        drained = []
        compressed.on_drain = lambda: drained.append(True)
        compressed.write(LARGE)
        assert compressed.is_blocked
        await until(lambda: bool(drained))
        assert not compressed.is_blocked
        compressed.end()

    assert telling(story).last is None


@pytest.mark.parametrize("piece", [SMALL, LARGE])
@pytest.mark.parametrize("how", ["leave", "abort", "end", "leave after the end"])
def test_every_end_gives_the_compressor_back(piece: bytes, how: str) -> None:
    async def story(compression: Compression, body: FakeBody) -> None:
        compressed = opened(compression, body)
        left = []
        compressed.on_end = lambda: left.append(True)
        compressed.write(piece)
        if how.endswith("end"):
            compressed.end()
        if how == "abort":
            compressed.abort()
        if how.startswith("leave") and not body.ended:
            body.leave()
        assert bool(left) == (how == "leave")
        assert compressed.ended
        compressed.write(piece)  # of no effect

    assert telling(story).last is None


@pytest.mark.parametrize("piece", [SMALL, LARGE])
def test_a_compressor_that_fails_is_heard_and_ends_the_answer_visibly(piece: bytes) -> None:
    async def story(compression: Compression, body: FakeBody) -> None:
        compressed = opened(compression, body, Broken())
        compressed.write(piece)
        await until(lambda: body.ended)
        assert body.was_aborted

    assert telling(story).counts["read"] == 1


def test_a_busy_server_sends_answers_as_they_are() -> None:
    async def story(compression: Compression, body: FakeBody) -> None:
        request = FakeRequest({b"accept-encoding": b"gzip, identity;q=0"}).request
        assert compression.choose(request, b"text/plain", 10**6) == GZIP
        compression.bodies += COMPRESSED_BODIES_MAX
        assert compression.choose(request, b"text/plain", 10**6) is None
        assert compression.choose(request, b"text/plain", 2000) == GZIP  # costs next to nothing
        compression.bodies -= COMPRESSED_BODIES_MAX
        done: list[object] = []
        for _ in range(COMPRESS_WAITING_MAX):
            compression.run(lambda: b"", done.append)
        assert compression.choose(request, b"text/plain", 10**6) is None
        await until(lambda: len(done) == COMPRESS_WAITING_MAX)
        assert compression.choose(request, b"text/plain", 10**6) == GZIP

    telling(story)
