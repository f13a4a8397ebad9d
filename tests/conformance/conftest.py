"""Servers that live as long as the test session, one per journal."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.api import Api
from tests.conformance.raw import RawConnection
from tests.support.server import LOCAL_WEBHOOKS, MOSTLY_COLD, ServerProcess

# A wake-up that never comes ends as a 204 after five seconds instead of twenty.
FLAGS = ("--long-poll-timeout", "5", *LOCAL_WEBHOOKS)
# Few streams stay in memory between requests, and checkpoints come often enough to let them go.
COLD_FLAGS = ("--resident-streams", "4", "--checkpoint-wal-bytes", "64KiB")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--everything-cold",
        action="store_true",
        help="the server with a log keeps nothing in memory (tests/cold/eager_server.py)",
    )


# Where it can matter that content lies in the cold store and streams rest in the catalog.
COLD_MODULES = (
    *("test_reads", "test_json_mode", "test_offsets", "test_caching", "test_long_poll", "test_sse"),
    *("test_long_answers", "test_compression"),
    *("test_forks", "test_snapshots", "test_bootstrap", "test_bucketed_streams", "test_buckets"),
    *("test_expiry", "test_delete", "test_closing", "test_producers", "test_append_batch"),
    *("test_append_check_order", "test_creation", "test_listing", "test_subscriptions"),
    *("test_system_streams",),
    *("test_schemas", "test_profiles", "test_key_reads"),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "api" in metafunc.fixturenames:
        is_cold = metafunc.module.__name__.rpartition(".")[2] in COLD_MODULES
        journals = ["memory", "wal", "cold"] if is_cold else ["memory", "wal"]
        metafunc.parametrize("api", journals, indirect=True)


@pytest.fixture(scope="session")
def servers(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[Callable[[str], ServerProcess]]:
    """One server per journal, started when first asked for. It must not print a stack trace."""
    started = dict[str, ServerProcess]()

    def server_for(journal: str) -> ServerProcess:
        if journal not in started:
            data_dir = None if journal == "memory" else tmp_path_factory.mktemp("data")
            is_eager = journal != "memory" and pytestconfig.getoption("--everything-cold")
            module = "tests.cold.eager_server" if is_eager else "millstream"
            if journal == "cold":
                module = "tests.cold.strict_server"
            cold = MOSTLY_COLD if journal == "cold" else COLD_FLAGS if is_eager else ()
            started[journal] = ServerProcess(data_dir, *FLAGS, *cold, module=module)
        return started[journal]

    yield server_for
    exits = {journal: server.stop() for journal, server in started.items()}
    assert set(exits.values()) <= {0}, exits
    for server in started.values():
        assert "Traceback" not in server.finish_output(), server.output.decode()


@pytest.fixture
def api(request: pytest.FixtureRequest, servers: Callable[[str], ServerProcess]) -> Iterator[Api]:
    """For everything where storage or locking could make a difference: runs once per journal."""
    yield from speak_to(servers(request.param))


@pytest.fixture
def memory_api(servers: Callable[[str], ServerProcess]) -> Iterator[Api]:
    """For rules of syntax and headers, which no journal can change."""
    yield from speak_to(servers("memory"))


@pytest.fixture
def connect(
    servers: Callable[[str], ServerProcess],
) -> Iterator[Callable[[], RawConnection]]:
    """Opens raw connections to the memory server and closes them after the test."""
    opened = list[RawConnection]()

    def open_connection() -> RawConnection:
        opened.append(RawConnection(servers("memory").port))
        return opened[-1]

    yield open_connection
    for connection in opened:
        connection.close()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command += ["-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="session")
def trusting(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate[0]))


def speak_to(server: ServerProcess) -> Iterator[Api]:
    api = Api(server)
    try:
        yield api
    finally:
        api.close()
