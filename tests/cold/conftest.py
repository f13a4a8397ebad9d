"""One S3 server for all tests here, each test below a prefix of its own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.support.faulty_store import FaultyStore
from tests.support.seaweed import SeaweedFS
from tests.support.seaweed import seaweed as seaweed


@pytest.fixture
def prefix() -> str:
    return f"test-{secrets.token_hex(4)}"


@pytest.fixture
def proxy(seaweed: SeaweedFS) -> Iterator[FaultyStore]:
    with FaultyStore(seaweed.port) as proxy:
        yield proxy
