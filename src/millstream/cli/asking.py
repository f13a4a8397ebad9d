"""Requests of commands to a running server."""

from __future__ import annotations

import argparse
import json
import urllib.error
import urllib.request
from typing import Any

from millstream.config import KEY_VARIABLE, InvalidSetting
from millstream.errors import StartupError

DEFAULT_SERVER = "http://127.0.0.1:4437"
ANSWER_SECONDS_MAX = 600.0  # a collection of very many objects takes its time


def add_server(command: argparse.ArgumentParser, what: str = "the running server") -> None:
    command.add_argument(
        "--server",
        metavar="URL",
        default=DEFAULT_SERVER,
        help=f"{what} (default: {DEFAULT_SERVER})",
    )
    command.add_argument(
        "--key-file",
        metavar="FILE",
        help=f"file with the access key to show the server (default: what {KEY_VARIABLE} holds)",
    )


def ask(server: str, method: str, path: str, key: str | None = None, body: object = None) -> Any:
    """The JSON of the answer, or None when it is empty. Raises StartupError when there is none, or
    an error."""
    url = server.rstrip("/") + path
    if not url.startswith(("http://", "https://")):
        raise InvalidSetting(
            f"--server: {server!r} is not an address such as http://127.0.0.1:4437"
        )
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, method=method)
    if key is not None:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX) as answer:
            text = answer.read()
            return json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        try:
            text = json.loads(text)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            pass
        raise StartupError(f"{url} answered {error.code}: {text}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise StartupError(f"{url} does not answer: {reason}; is the server running?") from error
