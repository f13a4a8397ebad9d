"""Whether everything that keeps to one schema keeps to another, as far as both are explicit.

Yes is said only when it is sure, with two exceptions that make schemas usable at all. Properties
that an open schema does not declare are taken to be absent. And what is said with `anyOf`,
`oneOf`, `not`, `if`, `contains`, `dependencies` or a list of `items` is taken to go on holding when
both schemas say it in the same words, which mention nothing that the lens changed.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from millstream.errors import InvalidSchema
from millstream.limits import PROOF_STEPS_MAX
from millstream.schemas.dialect import TYPES, Schema
from millstream.schemas.documents import Pointer, encode_document, pointer_text
from millstream.schemas.transforms import is_of_type
from millstream.schemas.validation import Validator, validator_of

_NUMBERS = frozenset({"integer", "number"})
_STRINGS = frozenset({"string"})
_ARRAYS = frozenset({"array"})
_OBJECTS = frozenset({"object"})

CHANGED = "$changed"  # in an old schema: names of properties that the lens touched so far

# Which types a keyword says something about; those not named here speak of all.
_ABOUT: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), _NUMBERS
    ),
    **dict.fromkeys(("minLength", "maxLength", "pattern", "format"), _STRINGS),
    **dict.fromkeys(
        ("minItems", "maxItems", "uniqueItems", "items", "additionalItems", "contains"), _ARRAYS
    ),
    **dict.fromkeys(
        (
            "minProperties",
            "maxProperties",
            "required",
            "properties",
            "patternProperties",
            "additionalProperties",
            "propertyNames",
            "dependencies",
        ),
        _OBJECTS,
    ),
}


def types_of(schema: Schema) -> frozenset[str]:
    """Which types a value may have; `number` stands for whole ones, too."""
    if isinstance(schema, bool):
        return TYPES if schema else frozenset()
    if "type" in schema:
        types = schema["type"]
        return frozenset([types] if isinstance(types, str) else types)
    values = values_of(schema)
    if values is None:
        return TYPES
    return frozenset(next(name for name in _ORDER if is_of_type(v, name)) for v in values)


_ORDER = ("null", "boolean", "object", "array", "string", "integer", "number")


def are_within(types: frozenset[str], others: frozenset[str]) -> bool:
    return types <= (others | {"integer"} if "number" in others else others)


def values_of(schema: Schema) -> list[Any] | None:
    """All that a value can be, where there are only so many; None: it can be anything."""
    if isinstance(schema, bool):
        return None
    if "const" in schema:
        return [schema["const"]]
    if "enum" in schema:
        return list(schema["enum"])
    if schema.get("type") == "boolean":
        return [False, True]
    return [None] if schema.get("type") == "null" else None


class Fitting:
    """One comparison of two simplified schemas, with a bound on what it may take."""

    def __init__(self) -> None:
        self._steps_left = PROOF_STEPS_MAX
        self._validators: dict[int, tuple[Schema, Validator]] = {}

    def misfit(self, old: Schema, new: Schema, path: Pointer = ()) -> str | None:
        """Why a value that keeps to `old` may not keep to `new`; None: it always does."""
        self.spend(1)
        if old is False or new == {}:
            return None
        if isinstance(new, bool) or isinstance(old, bool):
            return _said(path, "the new schema allows no value here")
        values = values_of(old)
        if values is not None:
            return self._misfit_of_values(values, new, path)
        reason = self._misfit_of_keywords(old, new, path)
        if reason is None or self._fits_by_parts(old, new, path):
            return None
        return reason

    def spend(self, steps: int) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            raise InvalidSchema("the old and the new schema are too complex to be compared")

    def _validator(self, schema: Schema) -> Validator:
        known = self._validators.get(id(schema))
        if known is None:
            self.spend(len(encode_document(schema)) // 100)
            known = self._validators[id(schema)] = schema, Validator(schema)
        return known[1]

    def _misfit_of_values(self, values: list[Any], new: Schema, path: Pointer) -> str | None:
        validator = self._validator(new)
        self.spend(len(values) * validator.checks // 100)
        for value in values:
            problem = validator.problem(value)
            if problem is not None:
                text = encode_document(value)[:100].decode(errors="replace")
                return _said(path, f"{text} does not keep to the new schema: {problem[:200]}")
        return None

    def _fits_by_parts(self, old: dict[str, Any], new: Schema, path: Pointer) -> bool:
        """A value keeps to all of `allOf`, and to some one of `anyOf` and of `oneOf`."""
        if CHANGED in old:
            return False  # they speak of what was
        if any(self.misfit(part, new, path) is None for part in old.get("allOf", ())):
            return True
        for keyword in ("anyOf", "oneOf"):
            parts = old.get(keyword)
            if parts and all(self.misfit(part, new, path) is None for part in parts):
                return True
        return False

    def _misfit_of_keywords(
        self, old: dict[str, Any], new: dict[str, Any], path: Pointer
    ) -> str | None:
        types = types_of(old)
        for keyword, wanted in new.items():
            about = _ABOUT.get(keyword)
            if about is not None and not types & about:
                continue
            check: _Check = _CHECKS.get(keyword, _same)
            reason = check(self, keyword, old, new, path)
            if reason is not None:
                return reason if reason else _said(path, _unproved(keyword, wanted))
        return None


def _said(path: Pointer, text: str) -> str:
    return f"{pointer_text(path)[:200] or 'the root'}: {text}"


def _unproved(keyword: str, wanted: Any) -> str:
    text = encode_document(wanted)[:100].decode(errors="replace")
    return f"old entries may not keep to {keyword} {text}"


# A check returns None where the keyword holds, a reason, or "" for the usual reason.
_Check = Callable[[Fitting, str, dict[str, Any], dict[str, Any], Pointer], str | None]


def _same(_: Fitting, keyword: str, old: Any, new: Any, path: Pointer) -> str | None:
    if keyword not in old or old[keyword] != new[keyword]:
        return ""
    return "" if _mentions(old[keyword], set(old.get(CHANGED, ()))) else None


def _mentions(value: Any, names: set[str]) -> bool:
    if isinstance(value, dict):
        return not names.isdisjoint(value) or any(_mentions(v, names) for v in value.values())
    if isinstance(value, list):
        return any(_mentions(each, names) for each in value)
    return isinstance(value, str) and value in names


def _type(_: Fitting, keyword: str, old: Any, new: Any, path: Pointer) -> str | None:
    before, after = types_of(old), types_of({"type": new["type"]})
    if are_within(before, after):
        return None
    has = "any type" if before == TYPES else " or ".join(sorted(before))
    return _said(path, f"old entries may have {has}, the new schema wants {_listed(after)}")


def _listed(types: frozenset[str]) -> str:
    return " or ".join(sorted(types))


def _at_least(_: Fitting, keyword: str, old: Any, new: Any, path: Pointer) -> str | None:
    if keyword in old and old[keyword] >= new[keyword]:
        return None
    if keyword == "minimum" and old.get("exclusiveMinimum", -inf) >= new[keyword]:
        return None
    is_trivial = keyword != "minimum" and new[keyword] == 0
    return None if is_trivial else ""


def _at_most(_: Fitting, keyword: str, old: Any, new: Any, path: Pointer) -> str | None:
    if keyword in old and old[keyword] <= new[keyword]:
        return None
    if keyword == "maximum" and old.get("exclusiveMaximum", inf) <= new[keyword]:
        return None
    return ""


def _above(_: Fitting, keyword: str, old: Any, new: Any, path: Pointer) -> str | None:
    if keyword in old and old[keyword] >= new[keyword]:
        return None
    return None if "minimum" in old and old["minimum"] > new[keyword] else ""


def _below(_: Fitting, keyword: str, old: Any, new: Any, path: Pointer) -> str | None:
    if keyword in old and old[keyword] <= new[keyword]:
        return None
    return None if "maximum" in old and old["maximum"] < new[keyword] else ""


def _unique_items(_: Fitting, keyword: str, old: Any, new: Any, path: Pointer) -> str | None:
    if not new[keyword] or old.get(keyword) or old.get("maxItems", 2) <= 1:
        return None
    return ""


def _items(fitting: Fitting, keyword: str, old: Any, new: Any, path: Pointer) -> str | None:
    before, after = old.get("items", {}), new["items"]
    if isinstance(before, list) or isinstance(after, list):
        is_same = old.get("additionalItems") == new.get("additionalItems")
        return _same(fitting, keyword, old, new, path) if is_same else ""
    if old.get("maxItems") == 0:
        return None
    return fitting.misfit(before, after, (*path, "*"))


def _nothing(_: Fitting, keyword: str, old: Any, new: Any, path: Pointer) -> str | None:
    """Goes with another keyword, and was looked at with that."""
    return None


def _required(_: Fitting, keyword: str, old: Any, new: Any, path: Pointer) -> str | None:
    sure = set(old.get("required", ()))
    for name in new["required"]:
        if name not in sure:
            place = pointer_text((*path, name))[:200]
            return f"{place}: the new schema requires it, and the lens does not create it"
    return None


def _properties(fitting: Fitting, keyword: str, old: Any, new: Any, path: Pointer) -> str | None:
    declared = old.get("properties", {})
    fitting.spend(len(old.get("patternProperties", ())) * len(new[keyword]))
    for name, after in new[keyword].items():
        before = declared[name] if name in declared else undeclared(old, name)
        if before == {} and name not in declared:
            continue  # not there
        reason = fitting.misfit(before, after, (*path, name))
        if reason is not None:
            return reason
    return None


def undeclared(schema: dict[str, Any], name: str) -> Schema:
    """What an object schema says of a property that it does not name."""
    patterns = schema.get("patternProperties", {})
    matching = [each for pattern, each in patterns.items() if _matches(pattern, name)]
    if len(matching) > 1:
        return {"allOf": matching}
    others: Schema = schema.get("additionalProperties", {})
    return matching[0] if matching else others


def _pattern_properties(
    fitting: Fitting, keyword: str, old: Any, new: Any, path: Pointer
) -> str | None:
    declared, patterns = old.get("properties", {}), old.get("patternProperties", {})
    others = old.get("additionalProperties", {})
    for pattern, after in new[keyword].items():
        fitting.spend(len(declared) + len(patterns))
        pairs = [(name, each) for name, each in declared.items() if _matches(pattern, name)]
        if pattern in patterns:
            pairs.append((pattern, patterns[pattern]))
        else:
            pairs.extend(patterns.items())
        if others != {}:
            pairs.append(("*", others))
        for name, before in pairs:
            reason = fitting.misfit(before, after, (*path, name))
            if reason is not None:
                return reason
    return None


def _additional_properties(
    fitting: Fitting, keyword: str, old: Any, new: Any, path: Pointer
) -> str | None:
    after = new[keyword]
    for name, before in _left_over(fitting, old, new).items():
        if before is not False and after is False:
            place = pointer_text((*path, name))[:200]
            return f"{place}: the new schema does not allow it, and the lens does not remove it"
        reason = fitting.misfit(before, after, (*path, name))
        if reason is not None:
            return reason
    return None


def _left_over(fitting: Fitting, old: Any, new: Any) -> dict[str, Schema]:
    """What the old schema speaks of and the new one has no words for."""
    declared, known = old.get("properties", {}), new.get("properties", {})
    patterns = new.get("patternProperties", {})
    fitting.spend(len(declared) * (1 + len(patterns)))
    left: dict[str, Schema] = {
        name: each
        for name, each in declared.items()
        if name not in known and not any(_matches(pattern, name) for pattern in patterns)
    }
    before = old.get("patternProperties", {})
    left.update({pattern: each for pattern, each in before.items() if pattern not in patterns})
    others = old.get("additionalProperties", {})
    return left if others == {} else {**left, "*": others}


def _matches(pattern: str, name: str) -> bool:
    return validator_of(encode_document({"pattern": pattern})).is_valid(name)


def _values(_: Fitting, keyword: str, old: Any, new: Any, path: Pointer) -> str | None:
    return ""  # `old` has no values of its own, or they would have been tried


def _multiple_of(fitting: Fitting, keyword: str, old: Any, new: Any, path: Pointer) -> str | None:
    if new[keyword] == 1 and types_of(old) & _NUMBERS == {"integer"}:
        return None
    return _same(fitting, keyword, old, new, path)


def _all_of(fitting: Fitting, keyword: str, old: Any, new: Any, path: Pointer) -> str | None:
    reasons = (fitting.misfit(old, part, path) for part in new[keyword])
    return next((reason for reason in reasons if reason is not None), None)


def _any_of(fitting: Fitting, keyword: str, old: Any, new: Any, path: Pointer) -> str | None:
    if _same(fitting, keyword, old, new, path) is None:
        return None
    return None if any(fitting.misfit(old, part, path) is None for part in new[keyword]) else ""


def _if(fitting: Fitting, keyword: str, old: Any, new: Any, path: Pointer) -> str | None:
    words = [word for word in ("if", "then", "else") if word in new or word in old]
    is_same = all(_same(fitting, word, old, {**old, **new}, path) is None for word in words)
    return None if is_same and all(word in new for word in words) else ""


def _property_names(
    fitting: Fitting, keyword: str, old: Any, new: Any, path: Pointer
) -> str | None:
    names, wanted = old.get("properties", {}), new[keyword]
    reason = fitting.misfit({"enum": list(names)}, wanted, path)
    is_closed = old.get("additionalProperties") is False and not old.get("patternProperties")
    return reason if reason or is_closed else _same(fitting, keyword, old, new, path)


_CHECKS: dict[str, _Check] = {
    "type": _type,
    "enum": _values,
    "const": _values,
    "minimum": _at_least,
    "maximum": _at_most,
    "exclusiveMinimum": _above,
    "exclusiveMaximum": _below,
    **dict.fromkeys(("minLength", "minItems", "minProperties"), _at_least),
    **dict.fromkeys(("maxLength", "maxItems", "maxProperties"), _at_most),
    "multipleOf": _multiple_of,
    "uniqueItems": _unique_items,
    "items": _items,
    "additionalItems": _nothing,
    "required": _required,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "propertyNames": _property_names,
    "allOf": _all_of,
    "anyOf": _any_of,
    "if": _if,
    "then": _nothing,
    "else": _nothing,
}
