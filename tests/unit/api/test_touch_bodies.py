from __future__ import annotations

import json
from typing import Any

import pytest

from millstream.api.arguments import Query
from millstream.api.touch_bodies import parse_activation, parse_wait, settle_seconds
from millstream.errors import BodyTooLarge, InvalidRequest
from millstream.touch.keys import key_id_of

KEY = "feadeb84d447fd63"
FIELD = {"name": "a", "encoding": "string"}
TEMPLATE = {"entity": "e", "fields": [FIELD]}


def wait(**fields: Any) -> Any:
    return parse_wait(json.dumps({"cursor": "now", "keys": [KEY], **fields}).encode())


def test_a_wait_says_what_it_is_for() -> None:
    found = wait(keys=[f" {KEY} ", KEY.upper(), "todos"], keyIds=[7, 7, 8.0], timeoutMs=1500)
    ids = {key_id_of(KEY), key_id_of("todos"), 7, 8}
    assert (found.asked.key_ids, found.seconds, found.cursor) == (ids, 1.5, None)
    assert not found.asked.is_coarse
    assert found.declaration is None


def test_a_cursor_names_a_generation() -> None:
    assert wait(cursor=" 00000000000000ff:12 ").cursor == (255, 12)


@pytest.mark.parametrize(
    ("given", "seconds"), [(0, 0), (-5, 0), (10**30, 120), (120_001, 120), (0.5, 0.0005)]
)
def test_the_time_of_a_wait_has_bounds(given: float, seconds: float) -> None:
    assert wait(timeoutMs=given).seconds == seconds
    assert wait().seconds == 30


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"keys": []}, "wait requires keys or keyIds"),
        ({"keys": "x"}, "wait.keys must be a non-empty string array when provided"),
        ({"keys": None}, "wait.keys must be a non-empty string array when provided"),
        ({"keys": [" "]}, "wait.keys must be a non-empty string array when provided"),
        ({"keys": [1]}, "wait.keys must be a non-empty string array when provided"),
        ({"keys": list(map(str, range(1025)))}, "wait.keys too large (max 1024)"),
        ({"keyIds": [-1]}, "wait.keyIds must be a non-empty uint32 array when provided"),
        ({"keyIds": [2**32]}, "wait.keyIds must be a non-empty uint32 array when provided"),
        ({"keyIds": [True]}, "wait.keyIds must be a non-empty uint32 array when provided"),
        ({"keyIds": [1.5]}, "wait.keyIds must be a non-empty uint32 array when provided"),
        ({"keyIds": 5}, "wait.keyIds must be a non-empty uint32 array when provided"),
        ({"keyIds": list(range(1025))}, "wait.keyIds too large (max 1024)"),
        ({"exact": 1}, "wait.exact must be a boolean when provided"),
        ({"cursor": ""}, "wait.cursor must be a non-empty string"),
        ({"cursor": 5}, "wait.cursor must be a non-empty string"),
        (
            {"cursor": "later"},
            "wait.cursor must be in the form <epochHex>:<generation> or 'now'",
        ),
        (
            {"cursor": "00000000000000FF:-1"},
            "wait.cursor must be in the form <epochHex>:<generation> or 'now'",
        ),
        ({"timeoutMs": "5"}, "wait.timeoutMs must be a number (ms)"),
        ({"timeoutMs": True}, "wait.timeoutMs must be a number (ms)"),
        ({"timeoutMs": None}, "wait.timeoutMs must be a number (ms)"),
        ({"templateIdsUsed": [5]}, "wait.templateIdsUsed must be a string array"),
        ({"interestMode": "both"}, "wait.interestMode must be 'fine' or 'coarse'"),
        ({"interestMode": None}, "wait.interestMode must be 'fine' or 'coarse'"),
        (
            {"declareTemplates": [TEMPLATE], "inactivityTtlMs": -1},
            "wait.inactivityTtlMs must be a non-negative number (ms)",
        ),
        (
            {"declareTemplates": [{}]},
            "wait.declareTemplates contains invalid template definitions",
        ),
    ],
)
def test_what_is_wrong_with_a_wait_is_told(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        wait(**fields)
    assert refused.value.message == message


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 2000])
def test_what_is_no_json_is_told(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="wait body must be valid JSON"):
        parse_wait(body)
    with pytest.raises(InvalidRequest, match="activate body must be valid JSON"):
        parse_activation(body)


def test_a_body_has_a_largest_size() -> None:
    with pytest.raises(BodyTooLarge):
        parse_wait(b" " * (1 << 20) + b"{}")


def test_a_missing_cursor_is_told() -> None:
    with pytest.raises(InvalidRequest, match=r"wait\.cursor must be a non-empty string"):
        parse_wait(json.dumps({"keys": [KEY]}).encode())


def test_what_is_no_list_of_templates_is_ignored() -> None:
    found = wait(templateIdsUsed="x", declareTemplates={})
    assert (found.asked.template_ids, found.declaration) == (frozenset(), None)
    assert wait(templateIdsUsed=["no id", " 00000000000000FF "]).asked.template_ids == {255}


def test_equal_keys_count_once() -> None:
    assert len(wait(keys=[KEY] * 5000).asked.key_ids) == 1


@pytest.mark.parametrize(
    ("keys", "count"), [([KEY], 1), ([KEY, "x"], 0), ([f"{n:016x}" for n in range(17)], 0)]
)
def test_exact_waits_have_up_to_sixteen_whole_keys(keys: list[str], count: int) -> None:
    assert len(wait(keys=keys, exact=True).asked.exact_keys) == count


def activation(**fields: Any) -> Any:
    return parse_activation(json.dumps({"templates": [TEMPLATE], **fields}).encode())


def test_templates_are_sorted_by_their_fields() -> None:
    fields = [{"name": " b ", "encoding": "int64"}, FIELD]
    [declared] = activation(templates=[{"entity": " e ", "fields": fields}]).templates
    assert declared == ("e", (("a", "string"), ("b", "int64")))
    assert activation().ttl_ms is None
    assert activation(inactivityTtlMs=5.7).ttl_ms == 5


@pytest.mark.parametrize(
    "fields",
    [[{"name": "a", "encoding": "uuid"}], [{"name": "a"}], [FIELD, FIELD]],
)
def test_a_template_that_cannot_be_is_not_an_error(fields: Any) -> None:
    assert activation(templates=[{"entity": "e", "fields": fields}, TEMPLATE]).templates[0] is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"templates": []}, "activate.templates must be a non-empty array"),
        ({"templates": {}}, "activate.templates must be a non-empty array"),
        ({"templates": [TEMPLATE] * 257}, "activate.templates too large (max 256)"),
        ({"templates": [5]}, "activate.templates contains invalid template definitions"),
        (
            {"templates": [{"entity": "", "fields": [FIELD]}]},
            "activate.templates contains invalid template definitions",
        ),
        (
            {"templates": [{"entity": "e", "fields": [FIELD] * 4}]},
            "activate.templates contains invalid template definitions",
        ),
        (
            {"templates": [{"entity": "e", "fields": [{"encoding": "string"}]}]},
            "activate.templates contains invalid template definitions",
        ),
        (
            {"inactivityTtlMs": -1},
            "activate.inactivityTtlMs must be a non-negative number (ms)",
        ),
        (
            {"inactivityTtlMs": "1"},
            "activate.inactivityTtlMs must be a non-negative number (ms)",
        ),
    ],
)
def test_what_is_wrong_with_an_activation_is_told(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        activation(**fields)
    assert refused.value.message == message


@pytest.mark.parametrize(
    ("query", "seconds"),
    [
        (b"", None),
        (b"timeoutMs=5", None),
        (b"settle=flush", 30),
        (b"settle=flush&timeoutMs=", 30),
        (b"settle=flush&timeoutMs=1500", 1.5),
        (b"settle=flush&timeoutMs=999999", 120),
        (b"settle=flush&timeoutMs=-3", 0),
    ],
)
def test_meta_may_wait(query: bytes, seconds: float | None) -> None:
    assert settle_seconds(Query(query)) == seconds


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (b"settle=x", "meta.settle must be 'flush' when provided"),
        (b"settle=", "meta.settle must be 'flush' when provided"),
        (b"timeoutMs=x", r"meta.timeoutMs must be a number \(ms\)"),
        (b"timeoutMs=nan", r"meta.timeoutMs must be a number \(ms\)"),
    ],
)
def test_what_is_wrong_with_meta_is_told(query: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        settle_seconds(Query(query))
