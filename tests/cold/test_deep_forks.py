"""A long chain of forks on a server that keeps next to nothing in memory: made, read, restarted,
deleted from its root to its tip. The end of the tip ends them all."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from tests.support.server import MOSTLY_COLD, ServerProcess

DEPTH = sys.getrecursionlimit() + 100
MODULE = "tests.cold.strict_server"


def path(number: int) -> str:
    return f"/v1/stream/deep/{number}"


def test_a_chain_of_forks_longer_than_the_stack_lives_and_ends(tmp_path: Path) -> None:
    flags = (*MOSTLY_COLD, "--checkpoint-wal-bytes", "64KiB")
    server = ServerProcess(tmp_path / "data", *flags, module=MODULE)
    try:
        with contextlib.closing(server.client()) as client:
            assert client.put(path(0), b"m", content_type="text/plain").status == 201
            for number in range(1, DEPTH):
                source = {"Stream-Forked-From": path(number - 1)}
                reply = client.put(path(number), b"m", headers=source)
                assert reply.status == 201, reply
            assert client.get(path(DEPTH - 1) + "?offset=-1").body == b"m" * DEPTH
            for number in range(DEPTH - 1):
                assert client.call("DELETE", path(number)).status == 204
            assert client.get(path(0)).status == 410
        server.kill()
        server = ServerProcess(tmp_path / "data", *flags, module=MODULE)
        with contextlib.closing(server.client()) as client:
            assert client.get(path(DEPTH - 1) + "?offset=-1").body == b"m" * DEPTH
            assert client.call("DELETE", path(DEPTH - 1)).status == 204
            for number in (0, DEPTH // 2, DEPTH - 1):
                assert client.get(path(number)).status == 404
            assert client.get("/readyz").status == 200
        assert server.stop() == 0
        server = ServerProcess(tmp_path / "data", *flags)
        with contextlib.closing(server.client()) as client:
            assert client.get("/v1/streams").json() == []
        assert server.stop() == 0
    finally:
        server.kill()
