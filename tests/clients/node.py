"""Runs a program in `programs/` with Node and hears what it tells."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

CLIENTS_DIR = Path(__file__).parent
SECONDS_MAX = 120.0


def run_program(name: str, *arguments: str, on_mark: Callable[[], None] | None = None) -> Any:
    """What the program told last; `on_mark` runs at each mark, the program goes on meanwhile."""
    process = subprocess.Popen(
        ["node", f"programs/{name}", *arguments],
        cwd=CLIENTS_DIR,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    alarm = threading.Timer(SECONDS_MAX, process.kill)
    complaints: list[str] = []
    listener = threading.Thread(target=_collect, args=(process, complaints), daemon=True)
    alarm.start()
    listener.start()
    result: Any = None
    assert process.stdout is not None
    chatter: list[str] = []
    try:
        for line in process.stdout:
            told = _parse(line)
            if told is None:
                chatter.append(line)
            elif "result" in told:
                result = told["result"]
            elif on_mark is not None:
                on_mark()
        process.wait()
    finally:
        alarm.cancel()
        process.kill()
        process.wait()
        listener.join()
        process.stdout.close()
    said = "".join(chatter + complaints)
    assert process.returncode == 0, f"{name} ended with {process.returncode}:\n{said}"
    assert result is not None, f"{name} told nothing:\n{said}"
    return result


def _collect(process: subprocess.Popen[str], lines: list[str]) -> None:
    assert process.stderr is not None
    with process.stderr:
        lines.extend(process.stderr)


def _parse(line: str) -> dict[str, Any] | None:
    """A line of ours, or None for what a library printed."""
    try:
        told = json.loads(line)
    except ValueError:
        return None
    return told if isinstance(told, dict) and ("mark" in told or "result" in told) else None
