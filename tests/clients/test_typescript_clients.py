"""The official TypeScript packages as their users use them, in calm and in stormy weather."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.node import run_program
from tests.clients.phoenix import Phoenix

Strike = Callable[[], None] | None


@pytest.fixture
def play(server: Phoenix, weather: str, strike: Strike) -> Callable[[str, int], Any]:
    """Runs a program; in a storm the server dies as often as the program has bad moments."""

    def run(name: str, deaths: int) -> Any:
        told = run_program(name, server.url, weather, on_mark=strike)
        assert server.deaths == (deaths if weather == "stormy" else 0)
        return told

    return run


def test_an_agents_run_is_read_whole_by_everybody(play: Callable[[str, int], Any]) -> None:
    told = play("agent.mjs", 2)
    assert told["errors"] == []
    written = [*range(told["events"]), "done"]
    for name, reader in told["readers"].items():
        assert reader["seen"] == written, name
    half = told["events"] // 2
    assert told["forked"] == [*range(half + 1), "forked"]
    assert told["head"]["offset"] == told["finalOffset"]
    assert told["head"]["streamClosed"] is True
    assert told["refused"] == 409


@pytest.mark.parametrize("program", ["stream_db.mjs", "stream_db_of_state_protocol.mjs"])
def test_a_stream_db_holds_what_was_written(
    play: Callable[[str, int], Any], weather: str, program: str
) -> None:
    told = play(program, 2)
    for follower in told["followers"]:
        assert follower["content"] == told["expected"]
        if weather == "calm":
            assert follower["opened"] == 1


def test_two_yjs_documents_converge_through_compaction(
    play: Callable[[str, int], Any], weather: str
) -> None:
    told = play("yjs.mjs", 2)
    assert told["words"] == 2 * 4 * told["rounds"]
    assert told["keys"] == 2 * told["rounds"]
    assert len(told["snapshots"]) >= (4 if weather == "calm" else 2)  # it was compacted
    if weather == "calm":
        assert told["resent"] == 0


def test_fifty_megabytes_are_read_to_the_end(play: Callable[[str, int], Any], weather: str) -> None:
    told = play("long_read.mjs", 1)
    sent = told["sent"]
    assert told["bytes"] == {"size": sent["size"], "hash": sent["hash"]}
    assert told["json"] == {"count": sent["count"], "inOrder": True}
    if weather == "calm":
        assert told["slowly"] == {"size": sent["size"], "error": None}
    else:  # what is missing is not passed off as the whole
        assert told["slowly"]["size"] < sent["size"]
        assert told["slowly"]["error"] is not None
