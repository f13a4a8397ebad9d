"""That a lens leads from one schema to the next: shown before it is taken, not found by readers.

Each operation is carried out on the old schema instead of an entry. Where it would need what old
entries need not have, the lens is refused. What is left at the end describes every entry after
the lens, and has to fit the new schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatchmethod
from typing import Any

from millstream.errors import InvalidSchema
from millstream.limits import DOCUMENT_NODES_MAX
from millstream.schemas import lenses
from millstream.schemas.dialect import Schema, compiled, simplified
from millstream.schemas.documents import (
    MISSING,
    Pointer,
    check_shape,
    clone,
    encode_document,
    pointer_text,
)
from millstream.schemas.fitting import (
    CHANGED,
    Fitting,
    are_within,
    types_of,
    undeclared,
    values_of,
)
from millstream.schemas.lenses import Lens, Op

_STALE_IN_OBJECTS = ("minProperties", "maxProperties")
_ABOUT_CONTENT = ("type", "properties", "patternProperties", "additionalProperties")
_ABOUT_LENGTH = ("type", "minItems", "maxItems")


def prove(lens: Lens, old_schema: Any, new_schema: Any) -> dict[str, Any]:
    """The lens as it is to be stored, with the defaults that it left to the new schema.

    Raises `InvalidSchema` with the reason why an entry of the old schema may not come out as one
    of the new. What that leaves to trust is said in `fitting.py`.
    """
    old, new = simplified(old_schema, "old schema"), simplified(new_schema)
    compiled(old)
    compiled(new)
    document: dict[str, Any] = clone(lens.document)
    try:
        after = schema_after(lens.ops, document["ops"], old, new_schema)
        check_shape(after, "what the lens makes")
        reason = Fitting().misfit(after, new)
    except RecursionError:
        raise InvalidSchema("the lens nests entries too deeply") from None
    if reason is not None:
        raise InvalidSchema(f"the lens does not lead to the new schema: {reason}")
    check_shape(document, "lens")  # defaults made it larger
    return document


def schema_after(
    ops: Sequence[Op], documents: list[dict[str, Any]], old: Schema, new_schema: Any
) -> Schema:
    """What entries of the simplified schema `old`, which is used up, are after these operations.

    Fills missing defaults into `documents`, which say the same as `ops`.
    """
    return _Proof().after(ops, documents, old, new_schema, "lens.ops")


class _Proof:
    def __init__(self) -> None:
        self._bytes_left = DOCUMENT_NODES_MAX * 10  # of schemas that operations copy

    def after(
        self,
        ops: Sequence[Op],
        documents: list[dict[str, Any]],
        schema: Schema,
        new: Any,
        where: str,
    ) -> Schema:
        for index, (op, document) in enumerate(zip(ops, documents, strict=True)):
            place = f"{where}[{index}]"
            try:
                schema = self._after(op, document, schema, new, place)
            except _Refused as refusal:
                raise InvalidSchema(f"{place}: {refusal}") from None
        return schema

    def _copied(self, schema: Schema) -> Schema:
        data = encode_document(schema)
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise _Refused("the lens copies too much")
        copied: Schema = clone(schema)
        return copied

    @singledispatchmethod
    def _after(self, op: Op, document: dict[str, Any], schema: Schema, new: Any, where: str) -> Any:
        raise AssertionError(f"no proof for {op}")

    @_after.register
    def _rename(self, op: lenses.Rename, _: Any, schema: Schema, new: Any, where: str) -> Schema:
        return _put(schema, op.target, _take(schema, op.source))

    @_after.register
    def _copy(self, op: lenses.Copy, _: Any, schema: Schema, new: Any, where: str) -> Schema:
        return _put(schema, op.target, self._copied(_demanded(schema, op.source)))

    @_after.register
    def _add(self, op: lenses.Add, document: Any, schema: Schema, new: Any, where: str) -> Schema:
        wanted = _declared(new, op.path)
        default = op.default
        if default is MISSING:
            default = document["default"] = _default_of(wanted, op.path)
        return _put(schema, op.path, {"const": clone(default)})

    @_after.register
    def _remove(self, op: lenses.Remove, _: Any, schema: Schema, new: Any, where: str) -> Schema:
        _take(schema, op.path)
        return schema

    @_after.register
    def _hoist(self, op: lenses.Hoist, _: Any, schema: Schema, new: Any, where: str) -> Schema:
        source = (*op.host, op.name)
        _declared(new, op.target)
        if op.is_moved:
            return _put(schema, op.target, _take(schema, source))
        return _put(schema, op.target, self._copied(_demanded(schema, source)))

    @_after.register
    def _plunge(self, op: lenses.Plunge, _: Any, schema: Schema, new: Any, where: str) -> Schema:
        _declared(new, (*op.host, op.name))
        if op.is_moved:
            moved = _take(schema, op.source)
        else:
            moved = self._copied(_demanded(schema, op.source))
        if op.makes_host:
            _make_host(schema, op.host)
        return _put(schema, (*op.host, op.name), moved)

    @_after.register
    def _wrap(self, op: lenses.Wrap, _: Any, schema: Schema, new: Any, where: str) -> Schema:
        item = _demanded(schema, op.path)
        array: Schema = {"type": "array", "items": item, "minItems": 1, "maxItems": 1}
        return _put(schema, op.path, array)

    @_after.register
    def _head(self, op: lenses.Head, _: Any, schema: Schema, new: Any, where: str) -> Schema:
        return _put(schema, op.path, _first_item(_demanded(schema, op.path), op.path))

    @_after.register
    def _convert(self, op: lenses.Convert, _: Any, schema: Schema, new: Any, where: str) -> Schema:
        return _put(schema, op.path, _converted(op, _demanded(schema, op.path)))

    @_after.register
    def _in(self, op: lenses.In, document: Any, schema: Schema, new: Any, where: str) -> Schema:
        inner = _object_at(schema, op.path)
        wanted = _declared(new, op.path)
        changed = self.after(op.ops, document["ops"], inner, wanted, f"{where}.ops")
        return _put(schema, op.path, changed)

    @_after.register
    def _map(self, op: lenses.Map, document: Any, schema: Schema, new: Any, where: str) -> Schema:
        array = _demanded(schema, op.path)
        wanted = _declared(new, op.path)
        items, wanted_items = _items_of(array, op.path, "old"), _items_of(wanted, op.path, "new")
        assert isinstance(array, dict)
        kept = {keyword: array[keyword] for keyword in _ABOUT_LENGTH if keyword in array}
        changed = self.after(op.ops, document["ops"], items, wanted_items, f"{where}.ops")
        return _put(schema, op.path, {**kept, "type": "array", "items": changed})


class _Refused(Exception):
    """Why an operation may fail on an old entry."""


def _name(pointer: Pointer) -> str:
    return pointer_text(pointer)[:200] or "the root"


def _demanded(schema: Schema, pointer: Pointer) -> Schema:
    """The schema of what is there in every entry."""
    for depth, name in enumerate(pointer):
        parent = _as_object(schema, pointer[:depth])
        if name not in parent.get("properties", {}):
            raise _Refused(f"the old schema does not declare {_name(pointer[: depth + 1])}")
        if name not in parent.get("required", ()):
            raise _Refused(f"the old schema does not require {_name(pointer[: depth + 1])}")
        schema = parent["properties"][name]
    return schema


def _as_object(schema: Schema, pointer: Pointer) -> dict[str, Any]:
    if not isinstance(schema, dict) or types_of(schema) != {"object"}:
        raise _Refused(f"{_name(pointer)} must be of type object in the old schema")
    values = values_of(schema)
    if values is not None:
        _spell_out(schema, values, pointer)
    return schema


def _spell_out(schema: dict[str, Any], values: list[Any], pointer: Pointer) -> None:
    """Says of a constant object what its properties are, so that they can change."""
    if len(values) != 1 or not isinstance(values[0], dict):
        raise _Refused(f"the old schema must describe {_name(pointer)} without enum")
    schema.clear()
    schema["type"] = "object"
    schema["properties"] = {name: {"const": value} for name, value in values[0].items()}
    schema["required"] = list(values[0])
    schema["additionalProperties"] = False


def _object_at(schema: Schema, pointer: Pointer) -> dict[str, Any]:
    return _as_object(_demanded(schema, pointer), pointer)


def _mark_changed(schema: Schema, pointer: Pointer) -> None:
    """What objects on the way to a change say of their content as a whole holds no longer."""
    for name in pointer:
        if not isinstance(schema, dict):
            return
        for keyword in _STALE_IN_OBJECTS:
            schema.pop(keyword, None)
        schema.setdefault(CHANGED, []).append(name)
        schema = schema.get("properties", {}).get(name, False)


def _put(schema: Schema, pointer: Pointer, value: Schema) -> Schema:
    if not pointer:
        return value
    parent = _object_at(schema, pointer[:-1])
    parent.setdefault("properties", {})[pointer[-1]] = value
    required = parent.setdefault("required", [])
    if pointer[-1] not in required:
        required.append(pointer[-1])
    _mark_changed(schema, pointer)
    return schema


def _take(schema: Schema, pointer: Pointer) -> Schema:
    value = _demanded(schema, pointer)
    parent = _object_at(schema, pointer[:-1])
    del parent["properties"][pointer[-1]]
    parent["required"].remove(pointer[-1])
    _mark_changed(schema, pointer)
    return value


def _make_host(schema: Schema, host: Pointer) -> None:
    """An object that may be missing is there afterwards; of its content nothing is sure."""
    for depth, name in enumerate(host):
        parent = _object_at(schema, host[:depth])
        known = parent.get("properties", {}).get(name, MISSING)
        if known is MISSING:
            known = undeclared(parent, name)
        if known is False or known == {}:  # refused, or not declared: not there
            _put(schema, host[: depth + 1], {"type": "object"})
        elif name not in parent.get("required", ()):
            optional = _as_object(known, host[: depth + 1])
            kept = {keyword: optional[keyword] for keyword in _ABOUT_CONTENT if keyword in optional}
            _put(schema, host[: depth + 1], kept)


def _declared(new: Any, pointer: Pointer) -> Any:
    """The new schema of the place, where it names every step to it."""
    for depth, name in enumerate(pointer):
        properties = new.get("properties") if isinstance(new, dict) else None
        if not isinstance(properties, dict) or name not in properties:
            raise _Refused(f"the new schema does not declare {_name(pointer[: depth + 1])}")
        new = properties[name]
    return new


def _default_of(wanted: Any, path: Pointer) -> Any:
    if isinstance(wanted, dict):
        if "default" in wanted:
            return clone(wanted["default"])
        if wanted.get("type") == "object":
            return {}
        if wanted.get("type") == "array":
            return []
    raise _Refused(f"a default is missing, and the new schema has none for {_name(path)}")


def _first_item(schema: Schema, path: Pointer) -> Schema:
    values = values_of(schema)
    if values is not None and all(isinstance(value, list) and value for value in values):
        return {"enum": [value[0] for value in values]}
    is_array = isinstance(schema, dict) and types_of(schema) == {"array"}
    if not isinstance(schema, dict) or not is_array or schema.get("minItems", 0) < 1:
        raise _Refused(f"the old schema must want an array with minItems >= 1 at {_name(path)}")
    items = schema.get("items", {})
    if isinstance(items, list):
        items = items[0] if items else schema.get("additionalItems", {})
    first: Schema = items
    return first


def _items_of(schema: Any, path: Pointer, which: str) -> Any:
    if isinstance(schema, dict) and types_of(schema) == {"array"}:
        items = schema.get("items", {})
        if not isinstance(items, list):
            return items
    raise _Refused(f"the {which} schema must want an array with one kind of items at {_name(path)}")


def _converted(op: lenses.Convert, schema: Schema) -> Schema:
    values = values_of(schema)
    if values is not None:
        try:
            return {"enum": [op.change(value) for value in values]}
        except InvalidSchema as error:
            raise _Refused(str(error)) from None
    types = types_of(schema)
    if not are_within(types, frozenset({op.from_type})) or types - op.forward.input_types:
        raise _Refused(f"the old schema must want {op.from_type} at {_name(op.path)}")
    if not op.forward.takes_any:
        raise _Refused(f"the old schema must list the values of {_name(op.path)} with enum")
    if not are_within(types_of(op.forward.result), frozenset({op.to_type})):
        raise _Refused(f"forward may give {_name(op.path)} a value that is not {op.to_type}")
    result: Schema = clone(op.forward.result)
    return result
