"""Commands that cannot be applied and answers that cannot be given, amid appends of others.

Whatever fails: what was acknowledged is there once, where it was said to be; what got no answer is
there once at most; and a server whose memory and log are apart ends by itself and says why.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.crash.failing_server import FAILS_AFTER, FAILS_BEFORE, FAILS_IN_REPLY
from tests.support.http import Client, Reply
from tests.support.server import MOSTLY_COLD, ServerProcess, free_port

WRITERS, STREAMS = 6, 10
MODULE = "tests.crash.failing_server"
TEXT = "text/plain"


@dataclass
class Sent:
    """What one writer knows of its messages."""

    acknowledged: dict[bytes, tuple[str, int]] = field(default_factory=dict)  # stream, end
    applied: set[bytes] = field(default_factory=set)  # the reply failed, nothing else did
    unknown: set[bytes] = field(default_factory=set)


class Writers:
    """Write until they are told to stop; a server that is away is waited for."""

    def __init__(self, port: int, seed: int) -> None:
        self.port = port
        self.seed = seed
        self.sent = [Sent() for _ in range(WRITERS)]
        self.fault: bytes | None = None  # for the next message of anybody
        self.is_over = False
        self.wrong: list[str] = []
        self._threads = [
            threading.Thread(target=self._write, args=(number,), daemon=True)
            for number in range(WRITERS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self.is_over = True
        for thread in self._threads:
            thread.join(60)

    @property
    def acknowledged(self) -> int:
        return sum(len(sent.acknowledged) for sent in self.sent)

    def _write(self, writer: int) -> None:
        rng, sent = random.Random(self.seed * 100 + writer), self.sent[writer]
        with contextlib.closing(Client("127.0.0.1", self.port, 10.0)) as client:
            self._write_with(client, rng, sent, writer)

    def _write_with(self, client: Client, rng: random.Random, sent: Sent, writer: int) -> None:
        number = 0
        while not self.is_over:
            number += 1
            stream = f"/v1/stream/s{rng.randrange(STREAMS)}"
            fault, self.fault = self.fault, None
            message = b"w%d-%d%b\n" % (writer, number, fault or b"")
            try:
                reply = client.post(stream, message, content_type=TEXT)
            except OSError:
                reply = None
            except Exception as error:  # http.client has many names for a closed connection
                reply = None
                if type(error).__module__ != "http.client":
                    self.wrong.append(repr(error))
            self._note(sent, message, stream, reply)
            if reply is None:
                client.connection.close()
                time.sleep(0.05)

    def _note(self, sent: Sent, message: bytes, stream: str, reply: Reply | None) -> None:
        if reply is None:
            sent.unknown.add(message)
        elif reply.status == 204:
            end = int(reply.next_offset.partition("_")[2])
            sent.acknowledged[message] = (stream, end)
        elif FAILS_IN_REPLY in message and reply.status == 500:
            sent.applied.add(message)
        elif reply.status == 500 and b"append_outcome_unknown" in reply.body:
            sent.unknown.add(message)
        elif reply.status != 503:  # refused, as the server stops
            self.wrong.append(f"{message!r}: {reply}")


def read_all(client: Client, stream: str) -> bytes:
    content, offset = b"", "-1"
    while True:
        reply = client.get(f"{stream}?offset={offset}")
        assert reply.status == 200, reply
        content += reply.body
        if "stream-up-to-date" in reply.headers:
            return content
        offset = reply.next_offset


def check(server: ServerProcess, writers: Writers) -> None:
    """Everything acknowledged, once, in its place; nothing twice; nothing nobody sent."""
    streams = [f"/v1/stream/s{number}" for number in range(STREAMS)]
    with contextlib.closing(server.client()) as client:
        contents = {stream: read_all(client, stream) for stream in streams}
    lines = [line + b"\n" for content in contents.values() for line in content.splitlines()]
    assert len(lines) == len(set(lines)), "a message is there twice"
    there, promised = set(lines), set[bytes]()
    for sent in writers.sent:
        for message, (stream, end) in sent.acknowledged.items():
            found = contents[stream][end - len(message) : end]
            assert found == message, f"{message!r} is not where it was acknowledged: {found!r}"
        promised |= sent.acknowledged.keys()
        assert sent.applied <= there
    known = {m for sent in writers.sent for m in (*sent.unknown, *sent.applied)} | promised
    assert there <= known
    assert writers.wrong == []


def wait_for_more(writers: Writers, count: int) -> None:
    deadline, wanted = time.monotonic() + 60, writers.acknowledged + count
    while writers.acknowledged < wanted:
        assert time.monotonic() < deadline, "nothing is acknowledged any more"
        time.sleep(0.01)


@pytest.mark.parametrize("flags", [(), MOSTLY_COLD], ids=["hot", "mostly cold"])
def test_what_fails_in_apply_or_reply_loses_moves_and_doubles_nothing(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    seed = 5
    print(f"seed {seed}")
    port, rng = free_port(), random.Random(seed)
    server = ServerProcess(tmp_path / "data", *flags, port=port, module=MODULE)
    writers = Writers(port, seed)
    try:
        with contextlib.closing(server.client()) as client:
            for number in range(STREAMS):
                assert client.put(f"/v1/stream/s{number}", content_type=TEXT).status == 201
        writers.start()
        for fault in (FAILS_AFTER, FAILS_BEFORE, b"", FAILS_BEFORE, FAILS_AFTER):
            wait_for_more(writers, rng.randrange(20, 200))
            writers.fault = FAILS_IN_REPLY
            wait_for_more(writers, 50)
            assert server.process.poll() is None, "a reply that fails must not end the server"
            writers.fault = fault or None
            if fault:
                assert server.process.wait(30) == 1
            else:
                server.kill()
            output = server.finish_output()
            if fault:
                assert "a committed command could not be applied" in output
                assert "InjectedFault" in output
                assert "Traceback" in output
            server = ServerProcess(tmp_path / "data", *flags, port=port, module=MODULE)
        wait_for_more(writers, 50)
        writers.stop()
        assert sum(len(sent.applied) for sent in writers.sent) >= 4
        check(server, writers)
        server.kill()
        server = ServerProcess(tmp_path / "data", *flags, port=port)
        check(server, writers)
        assert server.stop() == 0
    finally:
        writers.is_over = True
        server.kill()
