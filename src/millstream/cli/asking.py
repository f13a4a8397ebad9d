"""Requests of commands to a running server."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from millstream.config import InvalidSetting
from millstream.errors import StartupError

DEFAULT_SERVER = "http://127.0.0.1:4437"
ANSWER_SECONDS_MAX = 600.0  # a collection of very many objects takes its time


def ask(server: str, method: str, path: str) -> Any:
    """The JSON of the answer. Raises StartupError when there is none, or an error."""
    url = server.rstrip("/") + path
    if not url.startswith(("http://", "https://")):
        raise InvalidSetting(
            f"--server: {server!r} is not an address such as http://127.0.0.1:4437"
        )
    request = urllib.request.Request(url, method=method)
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX) as answer:
            return json.load(answer)
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
