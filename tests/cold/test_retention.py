"""Buckets that do not keep everything: old content goes, by age and by size, the rest stays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.api import TEXT, error_code
from tests.support.http import Client
from tests.support.server import running_server
from tests.support.waiting import wait_until

EAGER = (
    *("--flush-bytes", "1", "--checkpoint-wal-bytes", "1", "--retention-interval", "100ms"),
    *("--log-level", "warning"),
)
PIECE = b"x" * 1000


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with running_server(tmp_path / "data", *EAGER) as server:
        client = server.client()
        assert client.call("PUT", "/logs").status == 201
        yield client
        client.close()


def write(client: Client, stream: str, pieces: int) -> None:
    """One segment for each piece."""
    assert client.call("PUT", stream, headers={"Content-Type": TEXT}).status == 201
    for _ in range(pieces):
        assert client.call("POST", stream, PIECE, headers={"Content-Type": TEXT}).status == 204
        bucket, name = stream.strip("/").split("/")
        client.call("POST", f"/__ursula/flush-cold/{bucket}/{name}")


def earliest(client: Client, stream: str) -> int:
    """The first byte that can still be read."""
    reply = client.call("GET", f"{stream}?offset=-1")
    if reply.status == 200:
        return 0
    assert reply.status == 410
    return int(reply.headers["stream-earliest-offset"].partition("_")[2])


def retain(client: Client, bucket: str, **limits: int) -> dict[str, int | None]:
    reply = client.call("PUT", f"/__millstream/retention/{bucket}", json.dumps(limits).encode())
    assert reply.status == 200, reply.body
    described: dict[str, int | None] = json.loads(reply.body)
    return described


def test_a_bucket_with_a_size_keeps_that_much_of_each_stream(client: Client) -> None:
    write(client, "/logs/long", 12)
    write(client, "/logs/short", 3)
    assert retain(client, "logs", max_bytes=5000)["max_bytes"] == 5000
    wait_until(lambda: earliest(client, "/logs/long") == 7000)
    reply = client.call("GET", "/logs/long?offset=0000000000000007_0000000000007000")
    assert (reply.status, reply.body) == (200, PIECE * 5)
    assert client.call("GET", "/logs/short?offset=-1").body == PIECE * 3


def test_a_bucket_with_an_age_gives_up_what_is_older(client: Client) -> None:
    write(client, "/logs/old", 4)
    retain(client, "logs", max_age_seconds=1)
    wait_until(lambda: earliest(client, "/logs/old") == 4000)
    assert client.call("POST", "/logs/old", b"new", headers={"Content-Type": TEXT}).status == 204
    reply = client.call("GET", "/logs/old?offset=0000000000000004_0000000000004000")
    assert reply.body == b"new"


def test_other_buckets_and_what_follows_a_snapshot_are_kept(client: Client) -> None:
    assert client.call("PUT", "/keep").status == 201
    write(client, "/keep/all", 8)
    write(client, "/logs/based", 8)
    offset = "0000000000000002_0000000000002000"
    assert client.call("PUT", f"/logs/based/snapshot/{offset}", b"state").status == 204
    write(client, "/logs/gone", 8)
    retain(client, "logs", max_bytes=1000)
    wait_until(lambda: earliest(client, "/logs/gone") == 7000)
    assert client.call("GET", "/keep/all?offset=-1").body == PIECE * 8
    assert client.call("GET", f"/logs/based?offset={offset}").body == PIECE * 6


def test_a_fork_keeps_what_its_source_gives_up(client: Client) -> None:
    assert client.call("PUT", "/keep").status == 201
    write(client, "/logs/source", 8)
    headers = {"Content-Type": TEXT, "Stream-Forked-From": "/logs/source"}
    assert client.call("PUT", "/keep/fork", headers=headers).status == 201
    retain(client, "logs", max_bytes=1000)
    wait_until(lambda: earliest(client, "/logs/source") == 7000)
    assert client.call("GET", "/keep/fork?offset=-1").body == PIECE * 8


def test_retention_survives_a_restart_and_can_be_taken_back(tmp_path: Path) -> None:
    for survives_by in ("stop", "kill"):
        folder = tmp_path / survives_by
        with running_server(folder, *EAGER) as server:
            client = server.client()
            assert client.call("PUT", "/logs").status == 201
            retain(client, "logs", max_bytes=7, max_age_seconds=60)
            client.close()
            getattr(server, survives_by)()
        with running_server(folder, *EAGER) as server:
            client = server.client()
            described = json.loads(client.call("GET", "/__millstream/retention/logs").body)
            assert described == {"bucket_id": "logs", "max_age_seconds": 60, "max_bytes": 7}
            assert client.call("DELETE", "/__millstream/retention/logs").status == 200
            described = json.loads(client.call("GET", "/__millstream/retention/logs").body)
            assert described["max_bytes"] is described["max_age_seconds"] is None
            client.close()


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"max_bytes": -1}', b'{"max_bytes": "7"}', b'{"max_age_seconds": 0}']
)
def test_a_retention_that_makes_no_sense_is_refused(client: Client, body: bytes) -> None:
    reply = client.call("PUT", "/__millstream/retention/logs", body)
    assert (reply.status, error_code(reply)) == (400, "invalid_request")


def test_a_bucket_that_does_not_exist_has_no_retention(client: Client) -> None:
    assert client.call("GET", "/__millstream/retention/none").status == 404
    assert client.call("PUT", "/__millstream/retention/none", b"{}").status == 404
    assert client.call("POST", "/__millstream/retention/logs").status == 405
