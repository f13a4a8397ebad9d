"""Answers every request with the same bytes: what the event loop, the parser and the sockets cost.

    python -m bench.constant_server PORT

Run by `workloads/append.py` beside the server under test. No server on this loop can be cheaper, so
the difference between the two is what Millstream adds, whatever the machine is like that minute.
"""

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import httptools
import uvloop

from bench import processes
from bench.servers import REPO, Server, wait_ready
from bench.wire import HOST

ANSWER = b"HTTP/1.1 204 No Content\r\nstream-next-offset: 0000000000000001_0000000000000256\r\n\r\n"


class Constant(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.parser = httptools.HttpRequestParser(self)
        self.headers: dict[bytes, bytes] = {}

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self.body = body

    def on_message_complete(self) -> None:
        self.transport.write(ANSWER)


@contextlib.contextmanager
def running_beside(server: Server) -> Iterator[Server]:
    """A constant server that can be loaded as the given one can."""
    port = processes.free_port()
    log_path = server.work_dir / "constant.log"
    with log_path.open("wb") as log:
        command = [sys.executable, "-m", "bench.constant_server", str(port)]
        process = processes.start(command, cwd=REPO, stdout=log)
    try:
        wait_ready(replace(server.kind, reference=True), port, process, log_path)
        yield replace(server, port=port, pid=process.pid)
    finally:
        processes.stop(process)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Constant, HOST, port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
