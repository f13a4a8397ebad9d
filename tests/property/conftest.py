"""The servers that stories are told to; each lives as long as its module."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.property.driver import Server, running
from tests.support.seaweed import SeaweedFS
from tests.support.seaweed import seaweed as seaweed
from tests.support.server import MOSTLY_COLD


@pytest.fixture(scope="module")
def memory_server() -> Iterator[Server]:
    with running(None) as server:
        yield server


@pytest.fixture(scope="module")
def wal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.fixture(scope="module")
def cold_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("data"), *MOSTLY_COLD) as server:
        yield server


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory, seaweed: SeaweedFS) -> Iterator[Server]:
    flags = (*MOSTLY_COLD, *seaweed.flags(f"property-{secrets.token_hex(4)}"))
    with running(tmp_path_factory.mktemp("data"), *flags) as server:
        yield server
