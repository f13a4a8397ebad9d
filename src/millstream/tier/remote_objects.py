"""Remote object stores: S3 and what else obstore speaks. The only module that knows obstore.

An operation has one deadline, `timeout_seconds`, that includes every retry. obstore's own retries
are switched off, because they know nothing of ours and would multiply with them. The timeout of an
obstore client is fixed when it is made, so there are a few clients, each with half the timeout of
the one before: a try takes the most patient client that still ends before the deadline, and a
store that hangs once leaves time for another try.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import HTTPStore, MemoryStore, from_url

from millstream.errors import (
    ObjectMissing,
    ObjectTooShort,
    StartupError,
    StoreRefused,
    StoreUnavailable,
)
from millstream.tier.cold_settings import ColdSettings
from millstream.tier.object_names import ObjectInfo

CLIENTS = 5  # timeouts of 1/2, 1/4, ... 1/32 of the deadline; what is left then is too short to try
CONNECT_SECONDS_MAX = 5.0  # a host that does not take a connection by then is away
BACKOFF_SECONDS, BACKOFF_SECONDS_MAX = 0.05, 2.0  # waits double; jitter takes up to half away
DELETE_NAMES_MAX = 1000  # what S3 takes in one request
LIST_PAGE = 1000  # what S3 gives in one answer
TRANSIENT_CODES = ("RequestTimeout", "IncompleteBody", "SlowDown")  # S3 sends them with a 4xx too
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_INSTANCE_KEYS = re.compile(r"http://169\.254\.\d+\.\d+")  # the last place obstore looks for keys
_BARE_REDIRECT = "Received redirect without LOCATION"
_CAUSES = (  # obstore says "error sending request" and keeps the reason in its debug text
    re.compile(r'\bmessage: "([^"]+)"'),
    re.compile(r'\berror: "([^"]+)"'),
    re.compile(r"\b(TimedOut|IncompleteMessage|UnexpectedEof)\b"),
)

Result = TypeVar("Result")


class _ShortAnswer(Exception):
    """A body ended before its end."""


class _Deadline:
    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def seconds_left(self) -> float:
        return self._end - time.monotonic()


_pid_of_threads: int | None = None  # the process in which obstore has started its threads


def _refuse_after_fork() -> None:
    """obstore's threads do not survive a fork: a request of the child would wait for ever."""
    global _pid_of_threads
    if _pid_of_threads is None:
        _pid_of_threads = os.getpid()
    elif _pid_of_threads != os.getpid():
        raise RuntimeError(
            "this process was forked from one that had used the object store; "
            "start it by spawn, or fork before the first use"
        )


class RemoteObjects:
    """Names and sizes are checked already; `count` hears of every request sent."""

    def __init__(self, settings: ColdSettings, count: Callable[[str], None]) -> None:
        self._settings = settings
        self._count = count
        self._making = threading.Lock()
        self._clients: list[Any] = [self._make_client(settings.timeout_seconds / 2)]
        self._waits = random.Random()

    # One operation each

    def put(self, name: str, data: bytes) -> None:
        deadline = self._deadline()

        def attempt(client: Any) -> None:
            obstore.put(client, name, data, use_multipart=False)

        self._run("put", name, attempt, deadline)
        self._verify_size(name, len(data), deadline)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        deadline = self._deadline()
        tries = 0

        def attempt(client: Any) -> bool:
            nonlocal tries
            tries += 1
            try:
                obstore.put(client, name, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
            return True

        is_ours = self._run("put", name, attempt, deadline)
        if not is_ours and tries > 1:  # an earlier try may have arrived though its answer did not
            is_ours = self._get(name, deadline) == data
        if is_ours:
            self._verify_size(name, len(data), deadline)
        return is_ours

    def _verify_size(self, name: str, expected: int, deadline: _Deadline) -> None:
        found = self._size(name, deadline)
        if found != expected:
            what = "nothing" if found is None else f"{found} bytes"
            raise StoreUnavailable(
                f"{self._place(name)} was put, but is not there as it should be: "
                f"expected {expected} bytes, found {what}"
            )

    def get(self, name: str) -> bytes:
        return self._get(name, self._deadline())

    def _get(self, name: str, deadline: _Deadline) -> bytes:
        def attempt(client: Any) -> bytes:
            answer = obstore.get(client, name)
            data = answer.bytes().to_bytes()
            _check_length(data, answer.meta["size"])
            return data

        return self._run("get", name, attempt, deadline)

    def get_range(self, name: str, start: int, length: int) -> bytes:
        deadline = self._deadline()

        def attempt(client: Any) -> bytes | int:
            """The bytes, or the size of an object that is too short for them."""
            answer = obstore.get(client, name, options={"range": (start, start + length)})
            size: int = answer.meta["size"]
            if start + length > size:
                return size
            data = answer.bytes().to_bytes()
            _check_length(data, length)
            return data

        found: bytes | int | None
        try:
            found = self._run("get", name, attempt, deadline)
        except _OutOfRange:
            found = self._size(name, deadline)
        if isinstance(found, bytes):
            return found
        raise ObjectTooShort(
            f"{self._place(name)} is too short: expected bytes {start} to {start + length}, "
            f"found {found} bytes in all"
        )

    def size(self, name: str) -> int | None:
        return self._size(name, self._deadline())

    def _size(self, name: str, deadline: _Deadline) -> int | None:
        def attempt(client: Any) -> int:
            return obstore.head(client, name)["size"]

        try:
            return self._run("head", name, attempt, deadline)
        except ObjectMissing:
            return None

    def delete(self, names: Sequence[str]) -> None:
        def attempt(client: Any) -> None:
            obstore.delete(client, names)

        what = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        try:
            self._run("delete", what, attempt, self._deadline())
        except ObjectMissing:  # some stores mind; then which of them is gone is not known
            if len(names) > 1:
                for name in names:
                    self.delete([name])

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        last: str | None = None
        pages: Iterator[Sequence[Any]] | None = None

        def attempt(client: Any) -> Sequence[Any]:
            """The next page. After a failure the listing starts again behind the last name."""
            nonlocal pages
            if pages is None:
                pages = iter(
                    obstore.list(client, prefix or None, offset=last, chunk_size=LIST_PAGE)
                )
            try:
                return next(pages, [])
            except BaseException:
                pages = None
                raise

        while page := self._run("list", prefix + "/", attempt, self._deadline()):
            for entry in page:
                modified_ms = int(entry["last_modified"].timestamp() * 1000)
                yield ObjectInfo(entry["path"], entry["size"], modified_ms)
            last = page[-1]["path"]

    # Tries

    def _run(
        self,
        kind: str,
        name: str,
        attempt: Callable[[Any], Result],
        deadline: _Deadline,
    ) -> Result:
        """The result of the first try that gets one. Raises our errors only."""
        _refuse_after_fork()
        wait_seconds, cause = BACKOFF_SECONDS, "no time for a try"
        last: Exception | None = None
        while (client := self._client_within(deadline.seconds_left())) is not None:
            self._count(kind)
            try:
                return attempt(client)
            except (BaseError, OSError, _ShortAnswer) as error:
                self._raise_if_final(kind, name, error)
                cause, last = _cause_of(error), error
            wait = wait_seconds * self._waits.uniform(0.5, 1)
            time.sleep(max(0.0, min(wait, deadline.seconds_left())))
            wait_seconds = min(2 * wait_seconds, BACKOFF_SECONDS_MAX)
        seconds = self._settings.timeout_seconds
        raise StoreUnavailable(
            f"cannot {kind} {self._place(name)} within {seconds:g} s: {cause}"
        ) from last

    def _deadline(self) -> _Deadline:
        return _Deadline(self._settings.timeout_seconds)

    def _client_within(self, seconds: float) -> Any | None:
        """The most patient client that gives up within this time."""
        patience = self._settings.timeout_seconds / 2
        for index in range(CLIENTS):
            if patience <= seconds:
                return self._client(index, patience)
            patience /= 2
        return None

    def _client(self, index: int, patience: float) -> Any:
        with self._making:
            while len(self._clients) <= index:
                self._clients.append(None)
            if self._clients[index] is None:
                self._clients[index] = self._make_client(patience)
            return self._clients[index]

    def _make_client(self, patience: float) -> Any:
        settings = self._settings
        options: Any = {
            "timeout": timedelta(seconds=patience),
            "connect_timeout": timedelta(seconds=min(patience, CONNECT_SECONDS_MAX)),
        }
        config: Any = {}
        try:
            if _is_s3(settings.url):
                config = _s3_config(settings)
                options["allow_http"] = settings.endpoint.startswith("http:")
            client = from_url(
                settings.url,
                config=config,
                client_options=options,
                retry_config={"max_retries": 0},
            )
        except (BaseError, ValueError) as error:
            raise StartupError(f"cannot use --cold {settings.url}: {_first_line(error)}") from error
        if isinstance(client, HTTPStore | MemoryStore):
            raise StartupError(
                f"cannot use --cold {settings.url}: it is no S3, Google or Azure address; "
                "for another S3 server give --cold s3://bucket/prefix and --cold-endpoint"
            )
        return client

    def _raise_if_final(self, kind: str, name: str, error: Exception) -> None:
        """Raises what no other try would mend."""
        text = str(error)
        found = _CODE.search(text)
        code = found[1] if found else ""
        if code == "NoSuchBucket":
            raise StoreRefused(
                f"{self._settings.url} has no such bucket; create it or change --cold"
            ) from error
        if isinstance(error, FileNotFoundError):
            raise ObjectMissing(f"there is no {self._place(name)}") from error
        if _INSTANCE_KEYS.search(text):
            raise StoreRefused(
                f"no keys for {self._settings.url}: give {_names_of_keys(self._settings.url)}"
            ) from error
        if isinstance(error, NotSupportedError):
            raise StoreRefused(
                f"{self._settings.url} cannot {kind}: {_first_line(error)}"
            ) from error
        found = _STATUS.search(text)
        status = int(found[1]) if found else 0
        if status == 416:
            raise _OutOfRange(name) from error
        if isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in (401, 403):
            raise StoreRefused(
                f"the object store does not let us {kind} {self._place(name)} "
                f"({code or status or 'no permission'}): check --cold-access-key-id and "
                "--cold-secret-access-key and what they are allowed"
            ) from error
        if _BARE_REDIRECT in text or code in ("PermanentRedirect", "AuthorizationHeaderMalformed"):
            raise StoreRefused(
                f"{self._settings.url} is in another region; change --cold-region"
            ) from error
        if 400 <= status < 500 and status not in (408, 409, 429) and code not in TRANSIENT_CODES:
            raise StoreRefused(
                f"the object store refused to {kind} {self._place(name)}: {_first_line(error)}"
            ) from error

    def _place(self, name: str) -> str:
        return f"object {name} in {self._settings.url}"


class _OutOfRange(Exception):
    """The store says that the range begins behind the end of the object."""


def _is_s3(url: str) -> bool:
    return url.startswith(("s3:", "s3a:"))


def _names_of_keys(url: str) -> str:
    if _is_s3(url):
        return (
            "--cold-access-key-id and --cold-secret-access-key, "
            "or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    return "the variables of its provider, such as GOOGLE_APPLICATION_CREDENTIALS"


def _s3_config(settings: ColdSettings) -> dict[str, Any]:
    """Keys that are not given are looked for by obstore: variables, web identity, instance."""
    bucket = urlsplit(settings.url).netloc
    config: dict[str, Any] = {
        # A bucket with a dot in its name matches no certificate as a host.
        "virtual_hosted_style_request": not settings.endpoint and "." not in bucket
    }
    region = settings.region or "us-east-1"
    address = settings.endpoint or f"https://{bucket}.s3.{region}.amazonaws.com"
    HTTPStore.from_url(address)  # raises; an S3 client would panic at its first request
    if settings.endpoint:
        config["endpoint"] = settings.endpoint
    if settings.region:
        config["region"] = settings.region
    if settings.access_key_id:
        config["access_key_id"] = settings.access_key_id
        config["secret_access_key"] = settings.secret_access_key
        # Also when empty: a token in the environment belongs to another key.
        config["session_token"] = settings.session_token
    return config


def _check_length(data: bytes, expected: int) -> None:
    if len(data) != expected:
        raise _ShortAnswer(f"expected {expected} bytes, found {len(data)}")


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]


def _cause_of(error: Exception) -> str:
    """What went wrong in one line, with the reason that obstore hides."""
    text = str(error)
    reason = next((match[1] for pattern in _CAUSES if (match := pattern.search(text))), "")
    return f"{_first_line(error)} ({reason})" if reason else _first_line(error)
