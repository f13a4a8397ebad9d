"""Streams of a running server and what they have to hold; restores and checks of its store."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.http import Client
from tests.support.server import ServerProcess

TEXT = "text/plain"
BUCKET = "bkt1"
QUIET = ("--pipeline", "off", "--log-level", "warning")
EAGER = (*QUIET, "--shards", "2", "--checkpoint-wal-bytes", "2KiB")


@dataclass
class Expected:
    """What a stream shows: from `start` on, behind a snapshot if there is one."""

    data: bytes
    start: int = 0  # byte of the first message that is not trimmed
    snapshot: bytes | None = None


def run_command(*arguments: str) -> tuple[int, str]:
    """Exit code and output of `millstream ...`."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MILLSTREAM_")}
    done = subprocess.run(
        [sys.executable, "-m", "millstream", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout.decode()


class Writer:
    """Writes to whichever server it is `serving`, and knows what every stream has to hold."""

    client: Client

    def __init__(self) -> None:
        self.streams: dict[str, Expected] = {}

    def make_bucket(self) -> None:
        assert self.client.put(f"/{BUCKET}").status in (200, 201)

    def create(self, name: str, data: bytes = b"") -> None:
        reply = self.client.put(f"/{BUCKET}/{name}", data or None, content_type=TEXT)
        assert reply.status == 201, reply
        self.streams[name] = Expected(data)

    def append(self, name: str, data: bytes) -> None:
        reply = self.client.post(f"/{BUCKET}/{name}", data, content_type=TEXT)
        assert reply.status == 204, reply
        self.streams[name].data += data

    def fork(self, source: str, name: str) -> None:
        headers = {"Stream-Forked-From": f"/{BUCKET}/{source}"}
        reply = self.client.put(f"/{BUCKET}/{name}", headers=headers, content_type=TEXT)
        assert reply.status == 201, reply
        expected = self.streams[source]
        self.streams[name] = Expected(expected.data, expected.start, expected.snapshot)

    def snapshot(self, name: str, body: bytes) -> None:
        """At the tail: everything before it goes. At the same place there can be only one."""
        expected = self.streams[name]
        if expected.snapshot is not None and expected.start == len(expected.data):
            return
        tail = self.client.head(f"/{BUCKET}/{name}").next_offset
        reply = self.client.put(f"/{BUCKET}/{name}/snapshot/{tail}", body, content_type=TEXT)
        assert reply.status == 204, reply
        expected.start, expected.snapshot = len(expected.data), body

    def delete(self, name: str) -> None:
        assert self.client.delete(f"/{BUCKET}/{name}").status == 204
        del self.streams[name]

    def flush(self, name: str) -> None:
        reply = self.client.post(f"/__ursula/flush-cold/{BUCKET}/{name}")
        assert reply.status in (200, 204), reply

    def check_all(self) -> None:
        for name, expected in self.streams.items():
            assert self.read(name) == expected.data[expected.start :], name
            assert self.load_snapshot(name) == expected.snapshot, name

    def read(self, name: str) -> bytes:
        offset, data = "-1", b""
        while True:
            reply = self.client.get(f"/{BUCKET}/{name}?offset={offset}")
            if reply.status == 410:
                offset = reply.headers["stream-earliest-offset"]
                continue
            assert reply.status == 200, (name, reply)
            data += reply.body
            offset = reply.next_offset
            if reply.headers.get("stream-up-to-date") == "true":
                return data

    def load_snapshot(self, name: str) -> bytes | None:
        reply = self.client.get(f"/{BUCKET}/{name}/snapshot")
        if reply.status == 404:
            return None
        assert reply.status == 307, reply
        offset = reply.headers["stream-snapshot-offset"]
        reply = self.client.get(f"/{BUCKET}/{name}/snapshot/{offset}")
        assert reply.status == 200, reply
        return reply.body


def cold_names(cold: Path, *folders: str) -> set[str]:
    """Objects below these folders of a cold store that is a folder."""
    return {
        str(path.relative_to(cold))
        for folder in folders
        for path in (cold / folder).rglob("*")
        if path.is_file()
    }


@contextlib.contextmanager
def serving(
    writer: Writer, data_dir: Path, *flags: str, module: str = "millstream"
) -> Iterator[ServerProcess]:
    """A server that the writer writes to; it is stopped cleanly unless the block killed it."""
    server = ServerProcess(data_dir, *flags, module=module)
    try:
        with contextlib.closing(server.client()) as writer.client:
            yield server
        if server.process.poll() is None:
            assert server.stop() == 0, server.output.decode()
    finally:
        server.kill()
