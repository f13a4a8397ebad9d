"""Which subscriptions' patterns match a stream: a tree of segments, walked along the path.

A path only meets the patterns that begin like it, so subscriptions to other streams cost nothing.
Those it meets cost as many steps as it has segments, times the weight of all of them together;
pattern_load.py keeps count of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from millstream.protocol.patterns import (
    DEFAULT_BUCKET,
    Pattern,
    Segment,
    Wildcard,
    literal_prefix,
    segments_of,
    weight_of,
)
from millstream.state.pattern_load import PatternLoad


class _Node:
    """A place in a pattern. Behind a `**` it also holds for any number of further segments."""

    __slots__ = ("children", "holds_on", "ids")

    def __init__(self, segment: Segment) -> None:
        self.children: dict[Segment, _Node] = {}
        self.holds_on = segment is Wildcard.ANY
        self.ids: set[str] = set()


class PatternIndex:
    def __init__(self) -> None:
        self._root = _Node(b"")
        self._load = PatternLoad()

    def add(self, pattern: Pattern, subscription_id: str) -> None:
        self._load.add(literal_prefix(pattern), weight_of(pattern))
        node = self._root
        for segment in pattern:
            child = node.children.get(segment)
            if child is None:
                child = node.children[segment] = _Node(segment)
            node = child
        node.ids.add(subscription_id)

    def remove(self, pattern: Pattern, subscription_id: str) -> None:
        """Leaves no empty branch behind."""
        self._load.remove(literal_prefix(pattern), weight_of(pattern))
        branch = [self._root]
        for segment in pattern:
            branch.append(branch[-1].children[segment])
        branch[-1].ids.remove(subscription_id)
        for parent, segment in zip(reversed(branch[:-1]), reversed(pattern), strict=True):
            child = parent.children[segment]
            if child.ids or child.children:
                return
            del parent.children[segment]

    def load_with(self, pattern: Pattern) -> int:
        """The weight of all patterns that one path might meet, were this one added."""
        return self._load.heaviest_through(literal_prefix(pattern)) + weight_of(pattern)

    def match(self, key: bytes) -> set[str]:
        if not self._root.children:
            return set()
        found = _walk(self._root, segments_of(key))
        bucket = self._root.children.get(DEFAULT_BUCKET)
        if bucket is not None and key.startswith(DEFAULT_BUCKET + b"/"):
            found |= _walk(bucket, key.split(b"/")[1:])  # a pattern that spells the bucket out
        return found


def _walk(start: _Node, segments: list[bytes]) -> set[str]:
    """All places at once, one segment after the other: no pattern makes this run away."""
    places = _with_empty_wildcards([start])
    for segment in segments:
        places = _with_empty_wildcards(_after(places, segment))
        if not places:
            return set()
    return {subscription_id for place in places for subscription_id in place.ids}


def _after(places: list[_Node], segment: bytes) -> list[_Node]:
    following: list[_Node] = []
    for place in places:
        if place.holds_on:
            following.append(place)
        for wanted in (segment, Wildcard.ONE):
            child = place.children.get(wanted)
            if child is not None:
                following.append(child)
    return following


def _with_empty_wildcards(places: list[_Node]) -> list[_Node]:
    """Adds what is reached when a `**` stands for nothing; each place once.

    One step is enough: a pattern never has two `**` in a row.
    """
    reached = dict.fromkeys(places)
    for place in places:
        child = place.children.get(Wildcard.ANY)
        if child is not None:
            reached[child] = None
    return list(reached)


class OrderedKeys(Protocol):
    def keys_from(self, first: bytes) -> Iterator[bytes]: ...


def examined_keys(names: OrderedKeys, pattern: Pattern) -> Iterator[tuple[bytes, bool]]:
    """Keys of existing streams that begin like the pattern, and whether they match it."""
    single = PatternIndex()
    single.add(pattern, "")
    literal = literal_prefix(pattern)
    prefix = b"/".join(literal)
    if len(literal) == 1:
        yield from _exactly(names, DEFAULT_BUCKET + b"/" + prefix, single)
    else:  # a `**` behind it may stand for nothing
        yield from _exactly(names, prefix, single)
    if len(literal) == len(pattern):
        return
    first = prefix + b"/" if prefix else b""
    for key in names.keys_from(first):
        if not key.startswith(first):
            break
        yield key, bool(single.match(key))


def _exactly(names: OrderedKeys, key: bytes, single: PatternIndex) -> Iterator[tuple[bytes, bool]]:
    if next(iter(names.keys_from(key)), None) == key:
        yield key, bool(single.match(key))
