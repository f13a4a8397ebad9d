"""What patterns may be, and that no pattern makes the creation of streams slow."""

from __future__ import annotations

import pytest

from tests.conformance.api import Api
from tests.conformance.subscribers import Control, fresh

HOOK = "https://hooks.example/in"


@pytest.fixture
def control(memory_api: Api) -> Control:
    return Control(memory_api)


def test_a_pattern_of_too_many_segments_is_refused_with_the_numbers(control: Control) -> None:
    bucket = fresh("b")
    assert control.webhook(fresh("sub"), HOOK, pattern=bucket + "/*" * 31).status == 201
    reply = control.webhook(fresh("sub"), HOOK, pattern=bucket + "/*" * 32)
    assert reply.status == 400
    assert "33 segments; at most 32" in reply.json()["error"]["message"]


def test_wildcards_in_a_row_are_one_and_freeze_nothing(memory_api: Api, control: Control) -> None:
    name = fresh("sub")
    pattern = "**/" * 330 + fresh("last")
    created = control.webhook(name, HOOK, pattern=pattern)
    assert created.status == 201
    assert created.json()["pattern"] == pattern  # as it was sent
    path = "/".join(["a"] * 63) + "/" + pattern.rpartition("/")[2]
    assert memory_api.put(f"/v1/stream/{path}").status == 201
    assert control.show(name)["stream_count"] == 1
    assert control.delete(name).status == 204


def test_patterns_that_one_stream_could_meet_are_bounded_together(control: Control) -> None:
    bucket, names = fresh("b"), []
    heavy = "/**/a" * 15  # weighs 31 with one more segment
    for number in range(32):
        names.append(fresh("sub"))
        reply = control.webhook(names[-1], HOOK, pattern=f"{bucket}{heavy}/{number}")
        assert reply.status == 201, reply
    refused = control.webhook(fresh("sub"), HOOK, pattern=f"{bucket}{heavy}/x")
    assert refused.status == 409
    error = refused.json()["error"]
    assert error["code"] == "TOO_MANY_PATTERNS"
    assert "1000" in error["message"]
    assert "no wildcards" in error["message"]
    # What cannot meet them is free, what is there already is confirmed, room comes back.
    assert control.webhook(fresh("sub"), HOOK, pattern=f"{bucket}-2{heavy}").status == 201
    assert control.webhook(names[0], HOOK, pattern=f"{bucket}{heavy}/0").status == 200
    assert control.delete(names[0]).status == 204
    assert control.webhook(fresh("sub"), HOOK, pattern=f"{bucket}{heavy}/x").status == 201
    for name in names:
        control.delete(name)


def test_a_new_stream_has_a_bounded_number_of_segments(memory_api: Api) -> None:
    root = "/v1/stream/" + fresh("deep")
    assert memory_api.put(root + "/a" * 63).status == 201
    refused = memory_api.put(root + "/a" * 64)
    assert refused.status == 400
    assert "64 segments" in refused.json()["error"]["message"]
