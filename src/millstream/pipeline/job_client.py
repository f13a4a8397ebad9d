"""The requests of the job contract. Driver and executors send them; each makes its own client.

A request is repeated while the server cannot be reached or asks for patience: all of them may
arrive twice without harm.
"""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from millstream.errors import StartupError
from millstream.formats.jobs import (
    JOBS_PATH,
    MSGPACK_TYPE,
    JobOffer,
    TaskInput,
    TaskResult,
    decode_offer,
    decode_task,
    encode_task,
)

TRIES = 6
WAIT_SECONDS = 0.25  # before the second try; doubles
TIMEOUT_SECONDS = 120.0  # a server walks its catalog before it answers


class ServerAway(Exception):
    """The server could not be reached, or was too busy, until patience ended."""


class JobRefused(Exception):
    """The server does not go on with this job. Harmless: ask for another one."""


class Answer(NamedTuple):
    status: int
    body: bytes


class JobClient:
    """Picklable; not for use by two threads at once. `stopped` cuts waits short."""

    def __init__(
        self, server: str, stopped: threading.Event | None = None, key: str | None = None
    ) -> None:
        """`key` is the access key; None: the server asks for none."""
        self.server = server.rstrip("/")
        parts = urlsplit(self.server)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise StartupError(f"{server!r} is not a server such as http://127.0.0.1:4437")
        self._stopped = stopped
        self.key = key

    def ask(self, kind: str) -> JobOffer | None:
        """A job, or None: nothing is worth doing now."""
        answer = self._call("POST", kind)
        return None if answer.status == 204 else decode_offer(answer.body)

    def load_task(self, job: str, number: int) -> TaskInput:
        return decode_task(self._call("GET", f"{job}/tasks/{number}").body)

    def store_result(self, job: str, number: int, result: TaskResult) -> None:
        self._call("PUT", f"{job}/tasks/{number}", encode_task(result))

    def commit(self, job: str) -> None:
        """Everything is published, or nothing and JobRefused."""
        self._call("POST", f"{job}/commit")

    def give_up(self, job: str) -> None:
        self._call("DELETE", job, tries=1)

    def _call(self, method: str, path: str, body: bytes = b"", tries: int = TRIES) -> Answer:
        wait_seconds = WAIT_SECONDS
        for left in range(tries - 1, -1, -1):
            try:
                answer = self._try(method, JOBS_PATH + path, body)
                if answer.status < 300:
                    return answer
                if answer.status in (401, 403):
                    raise StartupError(f"{self.server}: {_message(answer)}; see --key-file")
                if answer.status < 500:
                    raise JobRefused(_message(answer))
                problem = _message(answer)
            except (OSError, http.client.HTTPException) as error:
                problem = str(error) or type(error).__name__
            if left == 0 or self._wait(wait_seconds):
                break
            wait_seconds *= 2
        raise ServerAway(f"{self.server}: {method} {JOBS_PATH}{path} failed: {problem}")

    def _wait(self, seconds: float) -> bool:
        """Whether we are asked to stop."""
        if self._stopped is not None:
            return self._stopped.wait(seconds)
        time.sleep(seconds)
        return False

    def _try(self, method: str, path: str, body: bytes) -> Answer:
        parts = urlsplit(self.server)
        assert parts.hostname is not None
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(
                parts.hostname,
                parts.port,
                timeout=TIMEOUT_SECONDS,
                context=ssl.create_default_context(),
            )
        else:
            connection = http.client.HTTPConnection(
                parts.hostname, parts.port, timeout=TIMEOUT_SECONDS
            )
        headers = {"Content-Type": MSGPACK_TYPE} if body else {}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        try:
            connection.request(method, parts.path + path, body, headers)
            response = connection.getresponse()
            return Answer(response.status, response.read())
        finally:
            connection.close()


def _message(answer: Answer) -> str:
    """What the server says in its own words, where it does."""
    try:
        fields = msgspec.json.decode(answer.body, type=dict[str, dict[str, str]])
        return f"{fields['error']['message']} (status {answer.status})"
    except (ValueError, KeyError):
        return f"status {answer.status}"
