"""Reads by routing key, by time and by filter, over whatever is hot or cold."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import quote

import pytest

from tests.conformance.api import BINARY, JSON, TEXT, Api, error_code, halves
from tests.conformance.test_schemas import install

SEARCH: dict[str, Any] = {
    "primaryTimestampField": "at",
    "fields": {
        "at": {"kind": "date", "bindings": [{"version": 1, "jsonPointer": "/at"}], "column": True},
        "name": {
            "kind": "keyword",
            "bindings": [{"version": 1, "jsonPointer": "/name"}],
            "exact": True,
        },
        "n": {
            "kind": "integer",
            "bindings": [{"version": 1, "jsonPointer": "/n"}],
            "exact": True,
            "column": True,
        },
        "note": {
            "kind": "text",
            "analyzer": "unicode_word_v1",
            "bindings": [{"version": 1, "jsonPointer": "/note"}],
            "exists": True,
        },
    },
    "aliases": {"who": "name"},
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "at": {"type": "string"},
        "name": {"type": "string"},
        "n": {"type": "integer"},
        "note": {"type": "string"},
    },
}


def keyed_stream(api: Api, count: int, keys: int) -> str:
    path = api.stream(content_type=JSON)
    for number in range(count):
        headers = {"Stream-Key": f"k{number % keys}"} if number % 7 else {}
        assert api.append(path, json.dumps({"n": number}), JSON, headers).status == 204
    return path


def expected_of(count: int, keys: int, key: int) -> list[dict[str, int]]:
    return [{"n": n} for n in range(count) if n % 7 and n % keys == key]


def test_a_key_selects_exactly_its_entries(api: Api) -> None:
    path = keyed_stream(api, 120, 5)
    for key in range(5):
        assert api.get(f"{path}?key=k{key}").json() == expected_of(120, 5, key)
        assert api.get(f"{path}/pk/k{key}").json() == expected_of(120, 5, key)
    nothing = api.get(f"{path}?key=k")
    assert (nothing.json(), nothing.next_offset) == ([], api.tail(path))
    assert nothing.headers["stream-up-to-date"] == "true"
    assert nothing.headers["stream-end-offset"] == api.tail(path)
    assert len(api.get(f"{path}?key=").json()) == 120
    assert api.get(f"{path}/pk/k1?key=k2").json() == expected_of(120, 5, 1)


def test_pages_of_a_key_join_to_the_whole(api: Api) -> None:
    path = keyed_stream(api, 60, 3)
    found, offset = list[Any](), "-1"
    for _ in range(100):
        reply = api.get(f"{path}?key=k1&offset={offset}&max_bytes=1")
        found += reply.json()
        offset = reply.next_offset
        if reply.headers.get("stream-up-to-date"):
            break
    assert found == expected_of(60, 3, 1)


@pytest.mark.parametrize("key", ["a b", "ключ", "a/b", "x" * 1000, "100%", "\u00e9"])
def test_keys_of_any_text(api: Api, key: str) -> None:
    path = api.stream(content_type=JSON)
    install(api, path, routingKey={"jsonPointer": "/k", "required": True})
    assert api.append(path, json.dumps([{"k": key}, {"k": "other"}]), JSON).status == 204
    assert api.get(f"{path}?key={quote(key, safe='')}").json() == [{"k": key}]
    assert api.get(f"{path}/pk/{quote(key, safe='')}").json() == [{"k": key}]


def test_bytes_have_keys_too(api: Api) -> None:
    for content_type in (TEXT, BINARY):
        path = api.stream(content_type=content_type)
        for number in range(10):
            headers = {"Stream-Key": f"k{number % 2}"}
            assert api.append(path, b"%d" % number, content_type, headers).status == 204
        assert api.get(f"{path}?key=k1").body == b"13579"
        assert error_code(api.get(f"{path}?format=json")) == "invalid_request"


def test_a_key_is_followed_live(api: Api) -> None:
    path = keyed_stream(api, 10, 2)
    events = api.events(f"{path}?key=k1&offset=now&live=sse")
    events.until_up_to_date()
    waiting = api.wait(f"{path}?key=k1&offset=now&live=long-poll")
    assert api.append(path, '{"n":100}', JSON, {"Stream-Key": "k0"}).status == 204
    assert api.append(path, '{"n":101}', JSON, {"Stream-Key": "k1"}).status == 204
    reply = waiting.reply()
    assert (reply.status, reply.json()) == (200, [{"n": 101}])
    assert reply.next_offset == api.tail(path)
    for event in events:
        if event.kind == "data":
            assert json.loads(event.data) == [{"n": 101}]
            break


def test_a_long_poll_for_a_key_ends_with_its_time(api: Api) -> None:
    path = keyed_stream(api, 10, 2)
    reply = api.get(f"{path}?key=none&offset=-1&live=long-poll&timeout_ms=200")
    assert reply.status == 204
    assert reply.next_offset == api.tail(path)
    assert reply.headers["stream-up-to-date"] == "true"
    assert reply.headers["stream-cursor"]
    assert api.get(f"{path}?key=none&live=long-poll").status == 400


# Time


def test_since_finds_the_first_entry_of_a_moment(api: Api) -> None:
    path = api.stream(content_type=JSON)
    moments = list[int]()
    for number in range(40):
        moments.append(time.time_ns())
        assert api.append(path, json.dumps({"n": number}), JSON).status == 204
        time.sleep(0.003)
    for number in (0, 1, 17, 39):
        found = api.get(f"{path}?since={moments[number]}").json()
        assert found[0]["n"] in (number - 1, number)  # the clock counts milliseconds
        assert found[-1]["n"] == 39
    ahead = api.get(f"{path}?since={time.time_ns() + 10**12}")
    assert (ahead.json(), ahead.next_offset) == ([], api.tail(path))
    assert len(api.get(f"{path}?since=2001-01-01T00:00:00Z").json()) == 40
    assert len(api.get(f"{path}?since={moments[30]}&offset=-1").json()) == 40
    for bad in ("soon", "-5", "2026-13-01T00:00:00Z", "2026-01-01"):
        assert api.get(f"{path}?since={bad}").status == 400, bad


def test_hints_of_the_writer_are_kept_as_far_as_they_fit(api: Api) -> None:
    path = api.stream(content_type=JSON)
    time.sleep(0.05)
    created = time.time_ns()
    time.sleep(0.05)
    inside = created + 20_000_000
    hints = [inside, inside + 5_000_000, inside - 10**15, "2026-01-01T00:00:00.5Z"]
    for number, hint in enumerate(hints):
        headers = {"Stream-Timestamp": str(hint)}
        assert api.append(path, json.dumps({"n": number}), JSON, headers).status == 204
    assert [e["n"] for e in api.get(f"{path}?since={inside + 2_000_000}").json()] == [1, 2, 3]
    assert [e["n"] for e in api.get(f"{path}?since={inside - 2_000_000}").json()] == [0, 1, 2, 3]
    assert api.get(f"{path}?since={inside + 10_000_000}").json() == []
    ahead = str(time.time_ns() + 10**18)
    refused = api.post(path, "{}", content_type=JSON, headers={"Stream-Timestamp": ahead})
    assert refused.status == 400
    for bad in ("yesterday", "-1", "1.5", ""):
        reply = api.post(path, "{}", content_type=JSON, headers={"Stream-Timestamp": bad})
        assert reply.status == 400, bad
    assert halves(api.tail(path))[0] == 4


def test_a_hint_a_little_ahead_does_not_hold_later_entries_up(api: Api) -> None:
    path = api.stream(content_type=JSON)
    ahead = time.time_ns() + 60 * 10**9
    headers = {"Stream-Timestamp": str(ahead)}
    assert api.append(path, '{"n":0}', JSON, headers).status == 204
    time.sleep(0.01)
    now = time.time_ns()
    time.sleep(0.01)
    assert api.append(path, '{"n":1}', JSON).status == 204
    assert api.get(f"{path}?since={now}").json() == [{"n": 1}]


# Filters


def searched_stream(api: Api) -> str:
    path = api.stream(content_type=JSON)
    install(api, path, schema=SCHEMA, search=SEARCH)
    entries = [
        {"at": f"2026-01-{day:02d}T00:00:00Z", "name": f"u{day % 3}", "n": day - 5}
        for day in range(1, 31)
    ]
    entries[4]["note"] = "hello"
    assert api.append(path, json.dumps(entries), JSON).status == 204
    return path


def numbers(api: Api, path: str, filter_text: str) -> list[int]:
    reply = api.get(f"{path}?filter={quote(filter_text, safe='')}")
    assert reply.status == 200, reply.body
    assert reply.next_offset == api.tail(path)
    return [entry["n"] for entry in reply.json()]


def test_filters(api: Api) -> None:
    path = searched_stream(api)
    everything = list(range(-4, 26))
    assert numbers(api, path, "n:3") == [3]
    assert numbers(api, path, 'n:"-3"') == [-3]
    assert numbers(api, path, "n:>=20") == list(range(20, 26))
    assert numbers(api, path, "n:>20 n:<=22") == [21, 22]
    assert numbers(api, path, "n:3 OR n:5") == [3, 5]
    assert numbers(api, path, "(n:3 OR n:5) AND name:u2") == [3]
    assert numbers(api, path, "who:u1 n:<0") == [-4, -1]
    assert numbers(api, path, "NOT n:>0") == list(range(-4, 1))
    assert numbers(api, path, "-n:>0") == list(range(-4, 1))
    assert numbers(api, path, "NOT (NOT n:3 AND n:>0)") == [
        n for n in everything if n <= 0 or n == 3
    ]
    assert numbers(api, path, 'at:>="2026-01-29T00:00:00Z"') == [24, 25]
    assert numbers(api, path, "has:note") == [0]
    assert numbers(api, path, "NOT has:note") == [n for n in everything if n]


def test_filters_that_are_none(api: Api) -> None:
    path = searched_stream(api)
    for text in (
        "n:",
        "(n:3",
        "unknown:1",
        "n:abc",
        "name:>a",
        "note:hello",
        '"',
        "n:3 OR",
        "(" * 9000,
    ):
        reply = api.get(f"{path}?filter={quote(text, safe='')}")
        assert reply.status in (400, 414, 431), (text[:20], reply.status)
    assert api.get(f"{path}?filter=n:3&offset=-1&live=sse").status == 400
    assert api.get(f"{api.stream(content_type=TEXT)}?filter=n:3").status == 400
    assert api.get(f"{api.stream(content_type=JSON)}?filter=n:3").status == 400


def test_a_filter_is_followed_by_long_poll(api: Api) -> None:
    path = searched_stream(api)
    waiting = api.wait(f"{path}?filter=n:>100&offset=now&live=long-poll")
    assert api.append(path, '{"n":1}', JSON).status == 204
    assert api.append(path, '{"n":101}', JSON).status == 204
    reply = waiting.reply()
    assert (reply.status, reply.json()) == (200, [{"n": 101}])


def test_a_filter_sees_old_entries_in_their_new_form(api: Api) -> None:
    path = searched_stream(api)
    kept = {name: field for name, field in SCHEMA["properties"].items() if name != "name"}
    schema = {"type": "object", "properties": {**kept, "who": {"type": "string"}}}
    registry = api.get(f"{path}/_schema").json()
    lens = {
        "apiVersion": "durable.lens/v1",
        "schema": registry["schema"],
        "from": 1,
        "to": 2,
        "ops": [{"op": "add", "path": "/who", "schema": {"type": "string"}, "default": "all"}],
    }
    search = json.loads(json.dumps(SEARCH))
    search["fields"]["name"]["bindings"].append({"version": 2, "jsonPointer": "/who"})
    install(api, path, schema=schema, lens=lens, search=search)
    assert len(numbers(api, path, "name:all")) == 30
    assert numbers(api, path, "name:u1") == []


def test_the_scan_cap_ends_an_answer_and_says_so(memory_api: Api) -> None:
    api = memory_api
    path = api.stream(content_type=JSON)
    install(api, path, schema=SCHEMA, search=SEARCH)
    entry = json.dumps({"n": 1, "note": "x" * 1_000_000})
    for _ in range(106):
        assert api.append(path, f"[{entry}]", JSON).status == 204
    offset, steps, limited = "-1", 0, 0
    while True:
        reply = api.get(f"{path}?filter=n:2&offset={offset}")
        assert reply.json() == []
        if reply.headers.get("stream-filter-scan-limit-reached"):
            limited += 1
            assert reply.headers["stream-filter-scan-limit-bytes"] == "104857600"
            assert int(reply.headers["stream-filter-scanned-bytes"]) >= 104857600
        steps += 1
        offset = reply.next_offset
        if reply.headers.get("stream-up-to-date"):
            break
        assert steps < 50
    assert limited <= 1
    assert steps > 1
