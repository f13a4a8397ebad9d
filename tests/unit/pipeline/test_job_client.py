from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from millstream.errors import StartupError
from millstream.pipeline import job_client
from millstream.pipeline.job_client import JobClient, JobRefused, ServerAway


@contextlib.contextmanager
def answering(*answers: tuple[int, bytes]) -> Iterator[tuple[str, list[str]]]:
    """A server with these answers in turn; its URL, and what it was asked."""
    asked: list[str] = []
    remaining = iter(answers)

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            asked.append(f"{self.command} {self.path}")
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, body = next(remaining)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = _answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_client, "WAIT_SECONDS", 0.001)


def test_nothing_to_do_is_none() -> None:
    with answering((204, b"")) as (url, asked):
        assert JobClient(url + "/").ask("compact") is None
        assert asked == ["POST /__millstream/jobs/compact"]


def test_a_busy_server_is_asked_again() -> None:
    with answering((503, b""), (500, b""), (200, b"{}")) as (url, asked):
        JobClient(url).commit("job")
        assert asked == ["POST /__millstream/jobs/job/commit"] * 3


def test_patience_ends() -> None:
    with (
        answering(*[(503, b'{"error":{"code":"x","message":"full"}}')] * 6) as (url, asked),
        pytest.raises(ServerAway, match=r"jobs/job/commit failed: full \(status 503\)"),
    ):
        JobClient(url).commit("job")
    assert len(asked) == 6


def test_a_refusal_is_told_in_the_servers_words_and_not_repeated() -> None:
    body = b'{"error":{"code":"job_conflict","message":"another job won"}}'
    with (
        answering((409, body)) as (url, asked),
        pytest.raises(JobRefused, match=r"another job won \(status 409\)"),
    ):
        JobClient(url).commit("job")
    assert len(asked) == 1


def test_a_server_that_is_not_there_is_away() -> None:
    with pytest.raises(ServerAway, match=r"http://127\.0\.0\.1:9: DELETE"):
        JobClient("http://127.0.0.1:9").give_up("job")


def test_who_is_stopped_does_not_wait() -> None:
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(ServerAway):
        JobClient("http://127.0.0.1:9", stopped).commit("job")


@pytest.mark.parametrize("url", ["", "127.0.0.1:4437", "ftp://x", "http://"])
def test_what_is_no_url_of_a_server_is_refused_at_once(url: str) -> None:
    with pytest.raises(StartupError, match=r"is not a server such as http://127\.0\.0\.1:4437"):
        JobClient(url)


def test_a_key_is_shown_and_a_server_that_wants_another_ends_the_work() -> None:
    shown: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            shown.append(self.headers.get("Authorization"))
            self.send_response(204 if len(shown) < 3 else 401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            assert JobClient(url).ask("compact") is None
            client = pickle.loads(pickle.dumps(JobClient(url, key="ms_a_b")))
            assert client.ask("compact") is None
            with pytest.raises(StartupError, match="--key-file"):
                client.ask("compact")
        finally:
            server.shutdown()
            thread.join()
    assert shown == [None, "Bearer ms_a_b", "Bearer ms_a_b"]
