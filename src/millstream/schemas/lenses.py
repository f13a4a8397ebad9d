"""Lenses: documents that say how an entry of one version becomes one of the next, step by step.

An operation changes the document it is given and returns it, or what takes its place. It reaches
into objects alone; `map` is the way into arrays. What it cannot do it answers with
`InvalidSchema`; `proofs.py` makes sure beforehand that entries of the old version give no cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from millstream.errors import InvalidSchema
from millstream.limits import LENS_OPS_MAX, PROMOTION_BYTES_MAX, PROMOTION_STEP_BYTES
from millstream.schemas.dialect import simplified
from millstream.schemas.documents import (
    MISSING,
    Pointer,
    check_shape,
    encode_document,
    parse_pointer,
    pointer_text,
)
from millstream.schemas.transforms import SCALARS, Transform, is_of_type, parse_transform

LENS_API_VERSION = "durable.lens/v1"


class Budget:
    """What lenses may still add to one entry: copies of copies would fill any memory."""

    def __init__(self) -> None:
        self._left = PROMOTION_BYTES_MAX

    def spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise InvalidSchema("the lenses of the stream make too much of this entry")

    def copy(self, value: Any) -> Any:
        """Shares nothing with the value, so that a change of one is no change of the other."""
        data = encode_document(value)
        self.spend(len(data))
        return msgspec.json.decode(data) if isinstance(value, dict | list) else value


class Op(Protocol):
    def apply(self, document: Any, budget: Budget) -> Any: ...


def _at(document: Any, pointer: Pointer) -> Any:
    for name in pointer:
        document = document.get(name, MISSING) if isinstance(document, dict) else MISSING
        if document is MISSING:
            raise InvalidSchema(f"a lens looks for {pointer_text(pointer)}, which is not there")
    return document


def _object_at(document: Any, pointer: Pointer) -> dict[str, Any]:
    found = _at(document, pointer)
    if not isinstance(found, dict):
        raise InvalidSchema(f"a lens wants an object at {pointer_text(pointer) or 'the root'}")
    return found


def _put(document: Any, pointer: Pointer, value: Any) -> Any:
    if not pointer:
        return value
    _object_at(document, pointer[:-1])[pointer[-1]] = value
    return document


def _take(document: Any, pointer: Pointer) -> Any:
    value = _at(document, pointer)
    del _object_at(document, pointer[:-1])[pointer[-1]]
    return value


@dataclass(frozen=True, slots=True)
class Rename:
    source: Pointer
    target: Pointer

    def apply(self, document: Any, budget: Budget) -> Any:
        return _put(document, self.target, _take(document, self.source))


@dataclass(frozen=True, slots=True)
class Copy:
    source: Pointer
    target: Pointer

    def apply(self, document: Any, budget: Budget) -> Any:
        return _put(document, self.target, budget.copy(_at(document, self.source)))


@dataclass(frozen=True, slots=True)
class Add:
    path: Pointer
    default: Any  # MISSING: the proof finds one, which is then in the stored lens

    def apply(self, document: Any, budget: Budget) -> Any:
        if self.default is MISSING:
            raise InvalidSchema(f"a lens adds {pointer_text(self.path)} without a default")
        return _put(document, self.path, budget.copy(self.default))


@dataclass(frozen=True, slots=True)
class Remove:
    path: Pointer

    def apply(self, document: Any, budget: Budget) -> Any:
        _take(document, self.path)
        return document


@dataclass(frozen=True, slots=True)
class Hoist:
    host: Pointer
    name: str
    target: Pointer
    is_moved: bool

    def apply(self, document: Any, budget: Budget) -> Any:
        source = (*self.host, self.name)
        if self.is_moved:
            return _put(document, self.target, _take(document, source))
        return _put(document, self.target, budget.copy(_at(document, source)))


@dataclass(frozen=True, slots=True)
class Plunge:
    source: Pointer
    host: Pointer
    name: str
    makes_host: bool
    is_moved: bool

    def apply(self, document: Any, budget: Budget) -> Any:
        if self.is_moved:
            value = _take(document, self.source)
        else:
            value = budget.copy(_at(document, self.source))
        if not self.makes_host:
            _object_at(document, self.host)[self.name] = value
            return document
        host = _object_at(document, ())
        for segment in self.host:
            if not isinstance(host.get(segment), dict):
                host[segment] = {}  # what the old schema does not know makes room
            host = host[segment]
        host[self.name] = value
        return document


@dataclass(frozen=True, slots=True)
class Wrap:
    path: Pointer

    def apply(self, document: Any, budget: Budget) -> Any:
        return _put(document, self.path, [_at(document, self.path)])


@dataclass(frozen=True, slots=True)
class Head:
    path: Pointer

    def apply(self, document: Any, budget: Budget) -> Any:
        found = _at(document, self.path)
        if not isinstance(found, list) or not found:
            raise InvalidSchema(f"a lens wants an item in {pointer_text(self.path) or 'the root'}")
        return _put(document, self.path, found[0])


@dataclass(frozen=True, slots=True)
class Convert:
    path: Pointer
    from_type: str
    to_type: str
    forward: Transform

    def apply(self, document: Any, budget: Budget) -> Any:
        changed = self.change(_at(document, self.path))
        if isinstance(changed, str):
            budget.spend(len(changed))
        return _put(document, self.path, changed)

    def change(self, value: Any) -> Any:
        if not is_of_type(value, self.from_type):
            raise InvalidSchema(f"a lens wants {self.from_type} at {pointer_text(self.path)}")
        changed = self.forward.apply(value)
        if not is_of_type(changed, self.to_type):
            raise InvalidSchema(f"a lens makes no {self.to_type} of {pointer_text(self.path)}")
        return changed


@dataclass(frozen=True, slots=True)
class In:
    path: Pointer
    ops: tuple[Op, ...]

    def apply(self, document: Any, budget: Budget) -> Any:
        inner = _object_at(document, self.path)
        return _put(document, self.path, _apply_all(self.ops, inner, budget))


@dataclass(frozen=True, slots=True)
class Map:
    path: Pointer
    ops: tuple[Op, ...]

    def apply(self, document: Any, budget: Budget) -> Any:
        items = _at(document, self.path)
        if not isinstance(items, list):
            raise InvalidSchema(f"a lens wants an array at {pointer_text(self.path) or 'the root'}")
        for index, item in enumerate(items):
            items[index] = _apply_all(self.ops, item, budget)
        return document


def _apply_all(ops: Iterable[Op], document: Any, budget: Budget) -> Any:
    for op in ops:
        budget.spend(PROMOTION_STEP_BYTES)
        document = op.apply(document, budget)
    return document


@dataclass(frozen=True, slots=True)
class Lens:
    """Leads from one version to the next. `document` is what it was parsed from; hands off."""

    schema: str
    from_version: int
    to_version: int
    ops: tuple[Op, ...]
    document: dict[str, Any] = field(repr=False)

    def promote(self, document: Any, budget: Budget | None = None) -> Any:
        """The entry as one of `to_version`; may change its argument and shares nothing with the
        lens. Raises `InvalidSchema` for an entry that is not of `from_version`."""
        try:
            return _apply_all(self.ops, document, Budget() if budget is None else budget)
        except RecursionError:
            raise InvalidSchema("the lenses of the stream nest this entry too deeply") from None


def parse_lens(document: Any) -> Lens:
    """Raises `InvalidSchema` that names the place."""
    check_shape(document, "lens")
    required = {"apiVersion", "schema", "from", "to", "ops"}
    lens = _fields(document, "lens", required, {"description"})
    if lens["apiVersion"] != LENS_API_VERSION:
        raise InvalidSchema(f"lens.apiVersion must be {LENS_API_VERSION}")
    for key in ("schema", "description"):
        if not isinstance(lens.get(key, ""), str):
            raise InvalidSchema(f"lens.{key} must be a string")
    for key in ("from", "to"):
        if not isinstance(lens[key], int) or isinstance(lens[key], bool) or lens[key] < 0:
            raise InvalidSchema(f"lens.{key} must be a whole number")
    if _count_ops(lens["ops"]) > LENS_OPS_MAX:
        raise InvalidSchema(f"lens.ops has more than {LENS_OPS_MAX} operations")
    ops = _parse_ops(lens["ops"], "lens.ops")
    return Lens(lens["schema"], lens["from"], lens["to"], ops, document)


def _count_ops(ops: Any) -> int:
    if not isinstance(ops, list):
        return 0
    return len(ops) + sum(_count_ops(op.get("ops")) for op in ops if isinstance(op, dict))


def _parse_ops(ops: Any, where: str) -> tuple[Op, ...]:
    if not isinstance(ops, list) or not ops:
        raise InvalidSchema(f"{where} must be an array of at least one operation")
    return tuple(_parse_op(op, f"{where}[{index}]") for index, op in enumerate(ops))


def _parse_op(op: Any, where: str) -> Op:
    name = op.get("op") if isinstance(op, dict) else None
    if not isinstance(name, str) or name not in _OPS:
        raise InvalidSchema(f"{where}.op must be one of {', '.join(_OPS)}")
    required, optional, parse = _OPS[name]
    fields = _fields(op, where, {"op", *required.split()}, set(optional.split()))
    for key, value in fields.items():
        check = _CHECKS.get(key)
        if check is not None and not check(value):
            raise InvalidSchema(f"{where}.{key} {_WANTED[key]}")
    if "schema" in fields:
        simplified(fields["schema"], f"{where}.schema")  # a description; nothing is checked by it
    return parse(fields, where)


def _fields(document: Any, where: str, required: set[str], optional: set[str]) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise InvalidSchema(f"{where} must be an object")
    for key in document:
        if key not in required and key not in optional:
            raise InvalidSchema(f"{where}.{key[:100]} is not supported")
    for key in required:
        if key not in document:
            raise InvalidSchema(f"{where}.{key} is missing")
    return document


def _is_name(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_scalar_type(value: Any) -> bool:
    return isinstance(value, str) and value in SCALARS


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "name": _is_name,
    "reverseMode": _is_name,
    "mode": lambda value: value == "singleton",
    "removeFromHost": _is_flag,
    "createHost": _is_flag,
    "removeFromSource": _is_flag,
    "fromType": _is_scalar_type,
    "toType": _is_scalar_type,
}
_WANTED = {
    "name": "must be a string",
    "reverseMode": "must be a string",
    "mode": "must be singleton",
    "removeFromHost": "must be a boolean",
    "createHost": "must be a boolean",
    "removeFromSource": "must be a boolean",
    "fromType": f"must be one of {', '.join(SCALARS)}",
    "toType": f"must be one of {', '.join(SCALARS)}",
}


def _pointer(fields: dict[str, Any], key: str, where: str) -> Pointer:
    return parse_pointer(fields[key], f"{where}.{key}")


def _below_root(fields: dict[str, Any], key: str, where: str) -> Pointer:
    """Of what is taken out or added: the whole document is neither."""
    pointer = _pointer(fields, key, where)
    if not pointer:
        raise InvalidSchema(f"{where}.{key} must not be the root")
    return pointer


def _rename(fields: dict[str, Any], where: str) -> Op:
    return Rename(_below_root(fields, "from", where), _pointer(fields, "to", where))


def _copy(fields: dict[str, Any], where: str) -> Op:
    return Copy(_pointer(fields, "from", where), _pointer(fields, "to", where))


def _add(fields: dict[str, Any], where: str) -> Op:
    return Add(_below_root(fields, "path", where), fields.get("default", MISSING))


def _remove(fields: dict[str, Any], where: str) -> Op:
    return Remove(_below_root(fields, "path", where))


def _hoist(fields: dict[str, Any], where: str) -> Op:
    host, target = _pointer(fields, "host", where), _pointer(fields, "to", where)
    return Hoist(host, fields["name"], target, fields.get("removeFromHost", True))


def _plunge(fields: dict[str, Any], where: str) -> Op:
    is_moved = fields.get("removeFromSource", True)
    source = (_below_root if is_moved else _pointer)(fields, "from", where)
    host, makes_host = _pointer(fields, "host", where), fields.get("createHost", True)
    return Plunge(source, host, fields["name"], makes_host, is_moved)


def _wrap(fields: dict[str, Any], where: str) -> Op:
    return Wrap(_pointer(fields, "path", where))


def _head(fields: dict[str, Any], where: str) -> Op:
    return Head(_pointer(fields, "path", where))


def _convert(fields: dict[str, Any], where: str) -> Op:
    forward = parse_transform(fields["forward"], f"{where}.forward")
    parse_transform(fields["backward"], f"{where}.backward")
    taken = forward.input_types | ({"number"} if "integer" in forward.input_types else set())
    if fields["fromType"] not in taken:
        raise InvalidSchema(f"{where}.forward does not take {fields['fromType']}")
    path = _pointer(fields, "path", where)
    return Convert(path, fields["fromType"], fields["toType"], forward)


def _in(fields: dict[str, Any], where: str) -> Op:
    return In(_pointer(fields, "path", where), _parse_ops(fields["ops"], f"{where}.ops"))


def _map(fields: dict[str, Any], where: str) -> Op:
    return Map(_pointer(fields, "path", where), _parse_ops(fields["ops"], f"{where}.ops"))


# Name, fields it must have, fields it may have.
_OPS: dict[str, tuple[str, str, Callable[[dict[str, Any], str], Op]]] = {
    "rename": ("from to", "", _rename),
    "copy": ("from to", "", _copy),
    "add": ("path schema", "default", _add),
    "remove": ("path schema", "default", _remove),
    "hoist": ("host name to", "removeFromHost", _hoist),
    "plunge": ("from host name", "createHost removeFromSource", _plunge),
    "wrap": ("path mode", "reverseMode", _wrap),
    "head": ("path", "reverseMode", _head),
    "convert": ("path fromType toType forward backward", "", _convert),
    "in": ("path ops", "", _in),
    "map": ("path ops", "", _map),
}
