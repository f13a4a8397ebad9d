"""One server per test, which dies at times when the weather is stormy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.phoenix import Phoenix


@pytest.fixture(params=["calm", "stormy"])
def weather(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Phoenix]:
    """Connections end often enough that every client meets the end of one."""
    server = Phoenix(tmp_path, "--sse-lifetime", "2", "--log-level", "warning")
    yield server
    server.stop()
    assert "Traceback" not in server.output, server.output


@pytest.fixture
def strike(server: Phoenix, weather: str) -> Callable[[], None] | None:
    """What a bad moment brings."""
    return server.die_and_return if weather == "stormy" else None
