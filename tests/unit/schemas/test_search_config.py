from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvalidSchema
from millstream.schemas.documents import encode_document
from millstream.schemas.search_config import (
    SearchConfig,
    parse_search,
    search_document,
    search_of,
)
from millstream.schemas.search_fields import (
    Binding,
    CountMeasure,
    DefaultField,
    PartsMeasure,
    SummaryMeasure,
)
from millstream.state.rules import Rules
from tests.unit.effort import brief
from tests.unit.schemas.search_documents import field, search_with, search_with_field
from tests.unit.schemas.test_values import JSON


def rollup_with(**changes: Any) -> dict[str, Any]:
    rollup: dict[str, Any] = {"intervals": ["1m"], "measures": {"c": {"kind": "count"}}} | changes
    return search_with(rollups={"r": {k: v for k, v in rollup.items() if v is not None}})


def measure(settings: Any) -> dict[str, Any]:
    return rollup_with(measures={"m": settings})


def refusal(document: Any) -> str:
    with pytest.raises(InvalidSchema) as caught:
        parse_search(document)
    return caught.value.message


def test_fields_and_aliases_are_found_by_name() -> None:
    search = parse_search(search_with())
    assert search.primary_timestamp.name == "at"
    assert search.field("ts") is search.field("at")
    assert search.field("nothing") is None
    level = search.field("level")
    assert level is not None
    assert (level.kind, level.normalizer, level.exact, level.prefix) == (
        "keyword",
        "lowercase_v1",
        True,
        False,
    )


def test_bare_terms_are_looked_for_in_every_text_field_unless_the_config_says_where() -> None:
    search = parse_search(search_with())
    assert search.default_fields == (DefaultField(search.fields["message"], 1),)
    entries = [{"field": "msg", "boost": 2.5}, {"field": "id"}]
    search = parse_search(search_with(defaultFields=entries))
    assert search.default_fields == (
        DefaultField(search.fields["message"], 2.5),
        DefaultField(search.fields["id"], 1),
    )


def test_rollups_are_read_with_their_measures() -> None:
    parts = {f"{part}JsonPointer": f"/s/{part}" for part in ("count", "sum", "min", "max")}
    search = parse_search(
        rollup_with(
            include="level:error",
            dimensions=["level", "id"],
            intervals=["500ms", "10s", "1d"],
            measures={
                "all": {"kind": "count"},
                "some": {"kind": "count", "include": "n:>=500 OR hello"},
                "n": {"kind": "summary", "field": "n", "histogram": "log2_v1"},
                "s": {"kind": "summary_parts", **parts},
            },
        )
    )
    assert parse_search(search_document(search)) == search
    rollup = search.rollups["r"]
    assert rollup.timestamp_field is search.primary_timestamp
    assert [dimension.name for dimension in rollup.dimensions] == ["level", "id"]
    assert rollup.intervals_ms == {"500ms": 500, "10s": 10_000, "1d": 86_400_000}
    assert rollup.include == "level:error"
    assert rollup.measures == (
        CountMeasure("all", None),
        CountMeasure("some", "n:>=500 OR hello"),
        SummaryMeasure("n", search.fields["n"], True),
        PartsMeasure("s", ("s", "count"), ("s", "sum"), ("s", "min"), ("s", "max"), None),
    )


def test_the_normal_form_drops_what_is_off_and_trims_names() -> None:
    document = search_with(
        fields={
            " at ": field("date", "/a~1b", "column") | {"exact": "yes", "sortable": None},
            "text": field("text", "", analyzer="unicode_word_v1") | {"prefix": False},
        },
        aliases={" t": " at "},
        profile=None,
        rollups={"r ": {"intervals": [" 1m "], "measures": {"c ": {"kind": "count"}}}},
    )
    assert search_document(parse_search(document)) == {
        "primaryTimestampField": "at",
        "aliases": {"t": "at"},
        "fields": {
            "at": {
                "kind": "date",
                "bindings": [{"version": 1, "jsonPointer": "/a~1b"}],
                "column": True,
            },
            "text": {
                "kind": "text",
                "bindings": [{"version": 1, "jsonPointer": ""}],
                "analyzer": "unicode_word_v1",
            },
        },
        "rollups": {
            "r": {
                "timestampField": "at",
                "intervals": ["1m"],
                "measures": {"c": {"kind": "count"}},
            }
        },
    }


def test_bindings_are_kept_by_version() -> None:
    bindings = [{"version": 3, "jsonPointer": "/new"}, {"version": 1, "jsonPointer": "/old"}]
    search = parse_search(search_with_field("moved", {"kind": "keyword", "bindings": bindings}))
    assert search.fields["moved"].bindings == (Binding(1, ("old",)), Binding(3, ("new",)))


def test_the_config_of_a_stream_is_parsed_once() -> None:
    assert search_of(Rules(revision=1)) is None
    encoded = encode_document(search_with())
    first = search_of(Rules(revision=1, search=encoded))
    assert isinstance(first, SearchConfig)
    assert search_of(Rules(revision=2, search=bytes(bytearray(encoded)))) is first


def text_field(*flags: str, **settings: str) -> dict[str, Any]:
    return field("text", "/x", *flags, **({"analyzer": "unicode_word_v1"} | settings))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "search must be an object"),
        (search_with(indexes=[]), "search.indexes is not supported"),
        (search_with(fields={}), "search.fields must not be empty"),
        (search_with(fields=None), "search.fields must be an object"),
        (
            search_with(primaryTimestampField=None),
            "search.primaryTimestampField must be a non-empty string",
        ),
        (
            search_with(primaryTimestampField="n"),
            "search.primaryTimestampField must name a declared date field",
        ),
        (
            search_with(primaryTimestampField="ts"),
            "search.primaryTimestampField must name a declared date field",
        ),
        (search_with(profile=5), "search.profile must be a non-empty string"),
        (
            search_with_field("_x", field("keyword", "/x")),
            "search.fields._x must be a name of 1 to 64 letters, digits, dots, dashes and "
            "underscores, a letter or digit first",
        ),
        (search_with_field(" n", field("integer", "/n")), "search.fields.n is declared twice"),
        (search_with_field("x", 5), "search.fields.x must be an object"),
        (search_with_field("x", {"type": "keyword"}), "search.fields.x.type is not supported"),
        (
            search_with_field("x", field("string", "/x")),
            "search.fields.x.kind must be keyword|text|integer|float|date|bool",
        ),
        (
            search_with_field("x", {"kind": "bool", "bindings": []}),
            "search.fields.x.bindings must not be empty",
        ),
        (search_with_field("x", {"kind": "bool"}), "search.fields.x.bindings must be an array"),
        (
            search_with_field("x", {"kind": "bool", "bindings": [{"version": True}]}),
            "search.fields.x.bindings[0].version must be a positive integer",
        ),
        (
            search_with_field("x", {"kind": "bool", "bindings": [{"version": 0}]}),
            "search.fields.x.bindings[0].version must be a positive integer",
        ),
        (
            search_with_field("x", {"kind": "bool", "bindings": [{"version": 1}]}),
            "search.fields.x.bindings[0].jsonPointer must be a string",
        ),
        (
            search_with_field(
                "x", {"kind": "bool", "bindings": [{"version": 1, "jsonPointer": ""}] * 2}
            ),
            "search.fields.x.bindings[1].version is bound twice",
        ),
        (
            search_with_field("x", field("keyword", "/x", normalizer="upper")),
            "search.fields.x.normalizer must be identity_v1|lowercase_v1",
        ),
        (
            search_with_field("x", text_field(analyzer="standard")),
            "search.fields.x.analyzer must be unicode_word_v1",
        ),
        (
            search_with_field("x", field("text", "/x")),
            "search.fields.x.analyzer is required for text fields",
        ),
        (
            search_with_field("x", text_field("column")),
            "search.fields.x.column is not supported for text fields",
        ),
        (
            search_with_field("x", text_field("sortable")),
            "search.fields.x.sortable is not supported for text fields",
        ),
        (
            search_with_field("x", text_field("aggregatable")),
            "search.fields.x.aggregatable is not supported for text fields",
        ),
        (
            search_with_field("x", field("keyword", "/x", "positions")),
            "search.fields.x.positions is not supported for keyword fields",
        ),
        (
            search_with_field("x", field("keyword", "/x", analyzer="unicode_word_v1")),
            "search.fields.x.analyzer is not supported for keyword fields",
        ),
        (
            search_with_field("x", field("integer", "/x", "prefix")),
            "search.fields.x.prefix is not supported for integer fields",
        ),
        (
            search_with_field("x", field("date", "/x", "contains")),
            "search.fields.x.contains is not supported for date fields",
        ),
        (
            search_with_field("x", field("bool", "/x", normalizer="identity_v1")),
            "search.fields.x.normalizer is not supported for bool fields",
        ),
        (search_with(aliases=[]), "search.aliases must be an object"),
        (search_with(aliases={"a": "b"}), "search.aliases.a must name a declared field"),
        (
            search_with(aliases={"a": "at", "b": "a"}),
            "search.aliases.b must name a declared field",
        ),
        (search_with(defaultFields={}), "search.defaultFields must be an array"),
        (
            search_with(defaultFields=[{"field": "n"}]),
            "search.defaultFields[0].field must name a declared text or keyword field",
        ),
        (
            search_with(defaultFields=[{"field": "id"}, {"field": "other"}]),
            "search.defaultFields[1].field must name a declared text or keyword field",
        ),
        (
            search_with(defaultFields=[{"field": "id", "boost": 0}]),
            "search.defaultFields[0].boost must be a number greater than 0",
        ),
        (
            search_with(defaultFields=[{"field": "id", "boost": True}]),
            "search.defaultFields[0].boost must be a number greater than 0",
        ),
        (
            search_with(containsDefaultFields=[{"field": "n"}]),
            "search.containsDefaultFields[0].field must name a declared text or keyword field",
        ),
        (search_with(rollups=[]), "search.rollups must be an object"),
        (rollup_with(filter="n:1"), "search.rollups.r.filter is not supported"),
        (
            rollup_with(timestampField="n"),
            "search.rollups.r.timestampField must name a declared date field",
        ),
        (rollup_with(intervals=None), "search.rollups.r.intervals must be an array"),
        (rollup_with(intervals=[]), "search.rollups.r.intervals must not be empty"),
        (
            rollup_with(intervals=["1m", "60s"]),
            "search.rollups.r.intervals[1] is listed twice",
        ),
        (
            rollup_with(intervals=["10"]),
            "search.rollups.r.intervals[0] must be a duration such as 10s, 1m or 1h",
        ),
        (
            rollup_with(intervals=["0s"]),
            "search.rollups.r.intervals[0] must be a duration such as 10s, 1m or 1h",
        ),
        (
            rollup_with(dimensions=["ratio"]),
            "search.rollups.r.dimensions[0] must name a declared field with exact",
        ),
        (
            rollup_with(dimensions=["id", "id"]),
            "search.rollups.r.dimensions[1] is listed twice",
        ),
        (rollup_with(measures={}), "search.rollups.r.measures must not be empty"),
        (
            measure({"kind": "sum"}),
            "search.rollups.r.measures.m.kind must be count|summary|summary_parts",
        ),
        (
            measure({"kind": "count", "field": "n"}),
            "search.rollups.r.measures.m.field is not supported",
        ),
        (
            measure({"kind": "summary", "field": "exact_n"}),
            "search.rollups.r.measures.m.field must name a declared integer or float field "
            "with aggregatable",
        ),
        (
            measure({"kind": "summary", "field": "n", "histogram": True}),
            "search.rollups.r.measures.m.histogram must be log2_v1",
        ),
        (
            measure({"kind": "summary_parts", "countJsonPointer": "/c"}),
            "search.rollups.r.measures.m must have pointers to count, sum, min and max",
        ),
        (
            rollup_with(include=""),
            "search.rollups.r.include must be a query of 1 to 4096 characters",
        ),
        (
            rollup_with(include="nothing:1"),
            "search.rollups.r.include: unknown search field nothing",
        ),
        (
            measure({"kind": "count", "include": "(n:1"}),
            "search.rollups.r.measures.m.include: missing ')' in search query",
        ),
    ],
)
def test_what_cannot_be_installed(document: Any, message: str) -> None:
    assert refusal(document) == message


@pytest.mark.parametrize(
    ("include", "message"),
    [
        ("has:nothing", "unknown search field nothing"),
        ("has:note", "search field note does not support has:"),
        ("note:x", "search field note does not support exact queries"),
        ("level:er*", "search field level does not support prefix queries"),
        ("id:>a", "search field id does not support comparisons"),
        ("msg:>a", "search field msg does not support comparisons"),
        ("exact_n:>1", "search field exact_n does not support comparisons"),
        ("n:x", "invalid value for search field n"),
        ('msg:" "', "search text clause must not be empty"),
        ("msg:!?", "search text clause did not produce any searchable tokens"),
        ("!!", "search text clause did not produce any searchable tokens"),
        ("contains:x", "contains: is not supported on _search yet"),
    ],
)
def test_queries_of_rollups_that_could_never_be_answered(include: str, message: str) -> None:
    assert refusal(rollup_with(include=include)) == f"search.rollups.r.include: {message}"


@pytest.mark.parametrize(
    "include",
    ["id:a*", "id:*", "has:message", 'msg:"was declined*"', "card -n:>=5", "NOT (ok:true OR a)"],
)
def test_queries_that_rollups_may_have(include: str) -> None:
    assert parse_search(rollup_with(include=include)).rollups["r"].include == include


def test_a_bare_term_needs_a_default_field() -> None:
    document = rollup_with(include="hello")
    del document["fields"]["message"]
    document["aliases"] = {}
    assert refusal(document) == (
        "search.rollups.r.include: "
        "search.defaultFields must include at least one text or keyword field"
    )


CONFIGS = st.fixed_dictionaries(
    {
        "primaryTimestampField": st.just("at") | JSON,
        "fields": st.just(search_with()["fields"]) | st.dictionaries(st.text(max_size=3), JSON),
    },
    optional={
        "profile": JSON,
        "aliases": st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["at", "id"])),
        "defaultFields": st.lists(
            st.fixed_dictionaries(
                {"field": st.sampled_from(["id", "message"])},
                optional={"boost": st.floats(min_value=0.5, max_value=9) | JSON},
            ),
            max_size=3,
        ),
        "rollups": st.dictionaries(
            st.sampled_from(["r", "s"]),
            st.just(
                {
                    "intervals": ["1m"],
                    "dimensions": ["id"],
                    "measures": {"c": {"kind": "count", "include": "n:1"}},
                }
            )
            | JSON,
        ),
    },
)


@brief
@given(CONFIGS | JSON)
def test_any_document_is_a_config_or_refused_and_its_normal_form_is_stable(document: Any) -> None:
    with suppress(InvalidSchema):
        search = parse_search(document)
        normal = search_document(search)
        assert parse_search(msgspec.json.decode(encode_document(normal))) == search
        assert encode_document(search_document(parse_search(normal))) == encode_document(normal)
