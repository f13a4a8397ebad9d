"""One Spark session and one S3 server for all tests here; a world of its own for each."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.pipeline.session import start_session
from millstream.tier.objects import ColdSettings
from tests.spark import hasty_server, server_world
from tests.spark.job_server import World
from tests.support.seaweed import SeaweedFS
from tests.support.seaweed import seaweed as seaweed


@pytest.fixture(scope="session")
def session() -> Iterator[SparkSession]:
    session = start_session("local[2]", {})
    yield session
    session.stop()


@pytest.fixture
def folder_world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, ColdSettings(f"fs:{tmp_path}/cold"))
    yield world
    world.catalog.close()


@pytest.fixture(params=["fs", "s3"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "fs":
        cold = ColdSettings(f"fs:{tmp_path}/cold")
    else:
        seaweed: SeaweedFS = request.getfixturevalue("seaweed")
        cold = seaweed.settings(f"test-{secrets.token_hex(4)}")
    world = World(tmp_path, cold)
    yield world
    world.catalog.close()


@pytest.fixture
def fs_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[server_world.World]:
    yield from _server_world(server_world.World(tmp_path), monkeypatch)


@pytest.fixture
def s3_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seaweed: SeaweedFS
) -> Iterator[server_world.World]:
    cold = seaweed.settings(f"server-{secrets.token_hex(4)}")
    yield from _server_world(server_world.World(tmp_path, cold), monkeypatch)


def _server_world(
    world: server_world.World, monkeypatch: pytest.MonkeyPatch
) -> Iterator[server_world.World]:
    """Not started yet."""
    monkeypatch.setenv(hasty_server.REQUESTS_FILE, str(world.requests_file))
    yield world
    world.end()
