from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millstream.errors import InvalidSchema, LensConflict, StreamNotEmpty
from millstream.limits import RULES_BYTES_MAX, SCHEMA_UPDATE_BYTES_MAX, SCHEMA_VERSIONS_MAX
from millstream.schemas.registry import Change, plan_update, registry_document
from millstream.state.rules import Rules
from tests.unit.schemas.made import (
    INTEGER,
    STREAM,
    TEXT,
    add,
    lens_document,
    record,
    rename,
    update,
)

FIRST, SECOND = record(a=TEXT), record(b=TEXT)
RENAMED = lens_document(rename("/a", "/b"))


def installed(**fields: Any) -> Rules:
    rules = update(None, schema=FIRST, **fields).rules
    return msgspec.structs.replace(rules, revision=1, boundaries=((0, 1),))


def test_the_registry_of_an_untouched_stream() -> None:
    assert registry_document("my/stream", None) == {
        "apiVersion": "durable.streams/schema-registry/v1",
        "schema": "my/stream",
        "currentVersion": 0,
        "boundaries": [],
        "schemas": {},
        "lenses": {},
    }


def test_the_registry_after_two_versions() -> None:
    rules = installed(routingKey={"jsonPointer": "/a", "required": True})
    rules = update(rules, is_empty=False, schema=SECOND, lens=RENAMED).rules
    rules = msgspec.structs.replace(rules, boundaries=((0, 1), (7, 2)))
    assert registry_document(STREAM, rules) == {
        "apiVersion": "durable.streams/schema-registry/v1",
        "schema": STREAM,
        "currentVersion": 2,
        "routingKey": {"jsonPointer": "/a", "required": True},
        "boundaries": [{"offset": 0, "version": 1}, {"offset": 7, "version": 2}],
        "schemas": {"1": FIRST, "2": SECOND},
        "lenses": {"1": RENAMED},
    }


def test_the_first_schema_needs_an_empty_stream() -> None:
    change = update(None, schema=FIRST)
    assert change == Change(
        Rules(revision=0, schemas=(msgspec.json.encode(FIRST),), lenses=(b"",)),
        begins_version=True,
        needs_empty=True,
    )
    with pytest.raises(StreamNotEmpty, match=r"^first schema requires empty stream$"):
        update(None, is_empty=False, schema=FIRST)


def test_a_first_schema_may_bring_the_lens_from_nothing() -> None:
    lens = lens_document(rename("/x", "/y"), version=0)
    rules = update(None, schema=FIRST, lens=lens).rules
    assert registry_document(STREAM, rules)["lenses"] == {"0": lens}
    with pytest.raises(LensConflict, match="lens version mismatch"):
        update(None, schema=FIRST, lens=RENAMED)


def test_a_second_schema_begins_a_version_whatever_the_stream_holds() -> None:
    change = update(installed(), is_empty=False, schema=SECOND, lens=RENAMED)
    assert (change.begins_version, change.is_fresh, change.needs_empty) == (True, False, False)
    assert change.rules.version == 2
    assert msgspec.json.decode(change.rules.lenses[1]) == RENAMED


def test_a_second_schema_needs_a_lens_from_the_current_version() -> None:
    with pytest.raises(InvalidSchema, match=r"^lens required$"):
        update(installed(), schema=SECOND)
    with pytest.raises(InvalidSchema, match=r"^lens required$"):
        update(installed(), schema=SECOND, lens=None)
    for lens in (lens_document(rename("/a", "/b"), version=0), {**RENAMED, "to": 3}):
        with pytest.raises(LensConflict, match=r"^lens version mismatch$"):
            update(installed(), schema=SECOND, lens=lens)
    with pytest.raises(InvalidSchema, match=r"^lens schema mismatch$"):
        update(installed(), schema=SECOND, lens={**RENAMED, "schema": "other"})


def test_a_lens_that_does_not_lead_to_the_schema_is_refused() -> None:
    with pytest.raises(InvalidSchema, match="/c: the new schema requires it"):
        update(installed(), schema=record(b=TEXT, c=TEXT), lens=RENAMED)


def test_defaults_are_filled_into_the_stored_lens() -> None:
    new = record(a=TEXT, n={**INTEGER, "default": 5})
    rules = update(installed(), schema=new, lens=lens_document(add("/n"))).rules
    assert registry_document(STREAM, rules)["lenses"]["1"] == lens_document(add("/n", 5))


def test_a_schema_of_a_profile_that_has_no_lenses_can_be_followed() -> None:
    profile = Rules(revision=3, kind="evlog", schemas=(msgspec.json.encode(FIRST),))
    rules = update(profile, is_empty=False, schema=SECOND, lens=RENAMED).rules
    assert (rules.kind, len(rules.lenses), rules.lenses[0]) == ("evlog", 2, b"")


def test_a_routing_key_can_be_set_at_any_time() -> None:
    change = update(None, is_empty=False, routingKey={"jsonPointer": "/a/b", "required": True})
    assert change == Change(
        Rules(revision=0, routing_key=b'{"jsonPointer":"/a/b","required":true}')
    )
    assert update(change.rules, routingKey={"jsonPointer": ""}).rules.routing_key == (
        b'{"jsonPointer":"","required":false}'
    )
    assert update(change.rules, routingKey=None).rules.routing_key == b""


def test_a_new_version_keeps_the_routing_key_unless_it_brings_one() -> None:
    rules = installed(routingKey={"jsonPointer": "/a", "required": True})
    kept = update(rules, schema=SECOND, lens=RENAMED).rules
    assert kept.routing_key == rules.routing_key
    other = {"jsonPointer": "/b", "required": False}
    given = update(rules, schema=SECOND, lens=RENAMED, routingKey=other).rules
    assert msgspec.json.decode(given.routing_key) == other
    with pytest.raises(InvalidSchema, match="routingKey must not be null together with schema"):
        update(rules, schema=SECOND, lens=RENAMED, routingKey=None)


@pytest.mark.parametrize(
    ("routing_key", "place"),
    [
        ("/a", "routingKey must"),
        ([], "routingKey must"),
        ({}, "routingKey.jsonPointer"),
        ({"jsonPointer": 5, "required": True}, "routingKey.jsonPointer"),
        ({"jsonPointer": "a", "required": True}, "routingKey.jsonPointer"),
        ({"jsonPointer": "/a", "required": "yes"}, "routingKey.required"),
        ({"jsonPointer": "/a", "required": None}, "routingKey.required"),
        ({"jsonPointer": "/a", "more": 1}, "routingKey.more is not supported"),
    ],
)
def test_a_routing_key_that_is_none_is_refused(routing_key: Any, place: str) -> None:
    with pytest.raises(InvalidSchema, match=f"schemaUpdate.{place}"):
        update(None, routingKey=routing_key)


def test_a_search_config_needs_a_schema() -> None:
    configs: list[Any] = [None, {"fields": {}}]
    for search in configs:
        with pytest.raises(InvalidSchema, match="search config requires an installed schema versi"):
            update(None, search=search)


def test_a_search_config_is_cleared_with_null() -> None:
    rules = msgspec.structs.replace(installed(), search=b"{}")
    assert registry_document(STREAM, rules)["search"] == {}
    assert update(rules, routingKey=None).rules.search == b"{}"
    assert update(rules, search=None).rules.search == b""
    assert update(rules, search=None, schema=SECOND, lens=RENAMED).rules.search == b""


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "schema update is not JSON"),
        (b"[]", "schema update must be an object"),
        (b"{}", "^schema update must include schema, routingKey, or search$"),
        (b'{"apiVersion":"durable.streams/schema-registry/v1"}', "^schema update must include"),
        (b'{"apiVersion":"v2","routingKey":null}', "schemaUpdate.apiVersion must be"),
        (b'{"apiVersion":null,"routingKey":null}', "schemaUpdate.apiVersion must be"),
        (b'{"schemas":{}}', "^schemaUpdate.schemas is not supported$"),
        (b'{"schema":{},"indexes":[]}', "^schemaUpdate.indexes is not supported$"),
        (b'{"lens":{}}', "schemaUpdate.lens requires schema"),
        (b'{"lens":{},"routingKey":null}', "schemaUpdate.lens requires schema"),
        (b'{"schema":null}', "schema"),
        (b'{"schema":{"$ref":"#"}}', "^external \\$ref is not supported$"),
        (b'{"schema":"' + b"x" * SCHEMA_UPDATE_BYTES_MAX + b'"}', "at most"),
    ],
)
def test_an_update_that_is_none_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(InvalidSchema, match=text):
        plan_update(STREAM, None, body, True)


def test_a_stream_has_a_bounded_number_of_versions() -> None:
    rules = Rules(revision=1, schemas=(b"{}",) * SCHEMA_VERSIONS_MAX)
    lens = lens_document(rename("/a", "/b"), version=SCHEMA_VERSIONS_MAX)
    with pytest.raises(InvalidSchema, match="at most 1000 schema versions"):
        update(rules, schema={}, lens=lens)


def test_the_rules_of_a_stream_have_a_bounded_size() -> None:
    large = b'{"title":"' + b"x" * 200_000 + b'"}'
    schemas = (large, large, large, large, *installed().schemas)
    rules = msgspec.structs.replace(installed(), schemas=schemas)
    assert update(rules, search=None).rules.schemas == schemas
    lens = lens_document(rename("/a", "/b"), version=5)
    new = {**SECOND, "title": "x" * (RULES_BYTES_MAX - 4 * len(large) - 1000)}
    update(rules, schema=new, lens=lens)
    with pytest.raises(InvalidSchema, match="bytes together"):
        update(rules, schema={**new, "title": new["title"] + "x" * 1000}, lens=lens)


def test_what_is_kept_can_be_read_again() -> None:
    """Numbers grow when they are written out, and defaults when they are filled in."""
    body = b'{"schema":{"enum":[' + b"1e5," * 45_000 + b"1e5]}}"
    with pytest.raises(InvalidSchema, match="kept"):
        plan_update(STREAM, None, body, True)
    new = record(a=TEXT, m={"type": "string", "default": "x" * 10_000})
    with pytest.raises(InvalidSchema, match="kept"):
        update(installed(), schema=new, lens=lens_document(*[add("/m")] * 30))
    new = record(a=TEXT, m={"type": "array", "default": [1] * 3000})
    with pytest.raises(InvalidSchema, match="lens has more than"):
        update(installed(), schema=new, lens=lens_document(*[add("/m")] * 30))
