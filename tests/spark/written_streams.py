"""Streams of a server, and their clients' own memory of what they wrote."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator

from tests.support.http import Client
from tests.support.pipelining import send_pipelined
from tests.support.server import ServerProcess

ROOT = "/v1/stream/spark/"


class WrittenStreams:
    """Bytes of each stream, and the offset that was handed out behind each append.

    One thread may write while others check.
    """

    def __init__(self, server: ServerProcess, count: int) -> None:
        self.server = server
        self.content = {f"{ROOT}s{number}": bytearray() for number in range(count)}
        self.offsets: dict[str, list[tuple[str, int]]] = {path: [] for path in self.content}
        for reply in send_pipelined(server.port, (("PUT", path, b"") for path in self.content)):
            assert reply.status == 201

    def append(self, appends: Iterable[tuple[str, bytes]]) -> None:
        wanted = list(appends)
        replies = send_pipelined(self.server.port, (("POST", path, data) for path, data in wanted))
        for (path, data), reply in zip(wanted, replies, strict=True):
            assert reply.status in (200, 204)
            content = self.content[path]
            content += data
            self.offsets[path].append((reply.next_offset, len(content)))

    def append_rounds(self, numbers: random.Random, rounds: int, bytes_max: int) -> None:
        """A message of up to so many bytes to each stream, so many times."""
        for _ in range(rounds):
            self.append(
                (path, numbers.randbytes(numbers.randint(1, bytes_max))) for path in self.content
            )

    def check(self, numbers: random.Random, sample: int | None = None) -> None:
        """From the start, and from an offset that was handed out long ago."""
        paths = list(self.content)
        with contextlib.closing(self.server.client()) as client:
            for path in paths if sample is None else numbers.sample(paths, sample):
                self.check_from(client, path, "-1", 0)
                self.check_from(client, path, *numbers.choice(self.offsets[path]))

    def check_from(self, client: Client, path: str, offset: str, byte: int) -> None:
        """All that is known to be there when this begins; others may write more meanwhile."""
        expected = bytes(self.content[path])[byte:]
        found = b"".join(pages(client, path, offset, len(expected)))
        assert found[: len(expected)] == expected
        if not expected:
            assert client.get(f"{path}?offset={offset}").next_offset >= offset


def pages(client: Client, path: str, offset: str, bytes_wanted: int) -> Iterator[bytes]:
    while bytes_wanted > 0:
        reply = client.get(f"{path}?offset={offset}")
        assert reply.status == 200, reply
        assert reply.body
        yield reply.body
        bytes_wanted -= len(reply.body)
        offset = reply.next_offset


def again_and_again(work: Callable[[], None], is_over: Callable[[], bool]) -> int:
    """How often; at least once."""
    rounds = 0
    while not rounds or not is_over():
        work()
        rounds += 1
    return rounds
