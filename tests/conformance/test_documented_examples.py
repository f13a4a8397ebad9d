"""What README and docs tell people to type is typed here, and answers what they say."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.api import JSON, Api
from tests.support.server import ServerProcess, running_server
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"(curl .*?)  +# (\d{3}|tails) (.*)")
ADDRESS = "http://127.0.0.1:4437"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with running_server(tmp_path) as server:
        yield server


def tour() -> tuple[dict[str, str], list[tuple[str, str, str]]]:
    """The variables of the README's tour, and its commands with what is said of each."""
    text = (ROOT / "README.md").read_text().partition("## A tour with curl")[2]
    blocks = re.findall(r"```\n(.*?)```", text, re.DOTALL)[:2]
    lines = "".join(blocks).replace("\\\n", "").splitlines()
    variables = dict(line.split("=", 1) for line in lines if re.match(r"[A-Z]=", line))
    commands = [match.groups() for line in lines if (match := COMMAND.fullmatch(line))]
    assert len(variables) + len(commands) == len([line for line in lines if line])
    return variables, [(command, kind, said) for command, kind, said in commands]


def test_the_tour_of_the_readme_answers_what_it_says(server: ServerProcess) -> None:
    variables, commands = tour()
    environment = {"PATH": os.environ["PATH"]}
    for name, value in variables.items():
        environment[name] = value.strip("'").replace(ADDRESS, server.url)
    answers = dict[str, str]()
    with contextlib.ExitStack() as stack:
        tail: subprocess.Popen[str] | None = None
        for command, status, said in commands:
            if status == "tails":
                tail = stack.enter_context(tail_of(command, environment, server))
                continue
            answer = run(command, environment)
            assert answer.startswith(f"HTTP/1.1 {status} "), (command, answer)
            if said.startswith("["):
                assert answer.endswith(said), (command, answer)
            answers[command] = answer
        assert tail is not None
        events, _ = tail.communicate(timeout=20)  # ends because the stream was closed
        assert 'data:{"event":"live"}' in events.replace("[", "").replace("]", "")
        assert '"streamClosed":true' in events
    check_the_rest(answers, environment)


def run(command: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


@contextlib.contextmanager
def tail_of(
    command: str, environment: dict[str, str], server: ServerProcess
) -> Iterator[subprocess.Popen[str]]:
    """The command that goes on in the background, once the server knows of it."""
    process = subprocess.Popen(
        ["bash", "-c", "exec " + command.removesuffix("&").strip()],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        with contextlib.closing(Api(server)) as api:
            wait_until(lambda: b'live_readers{mode="sse"} 1.0' in api.get("/metrics").body)
        yield process
    finally:
        process.kill()
        process.communicate()


def check_the_rest(answers: dict[str, str], environment: dict[str, str]) -> None:
    """What the words behind the statuses promise."""
    repeated = next(command for command in answers if "Producer-Seq" in command)
    assert run(repeated, environment).startswith("HTTP/1.1 204")
    head = next(answer for command, answer in answers.items() if " -I " in command)
    assert "stream-closed: true" in head
    assert "stream-next-offset: 0000000000000004_0000000000000051" in head
    listing = next(answer for command, answer in answers.items() if "/streams" in command)
    [listed] = json.loads(listing.partition("\n\n")[2])["streams"]
    assert listed["stream_id"] == "run-1"
    bootstrap = next(answer for command, answer in answers.items() if "bootstrap" in command)
    boundary = re.search(r"boundary=(\S+)", bootstrap)[1]  # type: ignore[index]
    parts = bootstrap.split(f"--{boundary}")[1:-1]
    contents = [part.partition("\n\n")[2].removesuffix("\n") for part in parts]
    assert contents == ["the sum is 3", '{"n":3}']
    assert "content-type: text/plain" in parts[0].lower()


def test_the_example_of_a_subscription_has_the_right_offset(server: ServerProcess) -> None:
    page = (ROOT / "docs/subscriptions.md").read_text()
    [body] = re.findall(r"curl -X PUT \$S/events/orders .* -d '(.*)'", page)
    [tail] = set(re.findall(r'"(?:tail_offset|offset)": "(\d{16}_\d{16})"', page))
    with contextlib.closing(Api(server)) as api:
        assert api.put("/v1/stream/events/orders", body, content_type=JSON).status == 201
        assert api.tail("/v1/stream/events/orders") == tail
