"""How much one new stream may cost: the weight of all the patterns that its path can meet.

A path meets the patterns whose literal beginning it shares: those at every place on its way. So
weights stand in a tree of literal beginnings, and what counts is the heaviest way through it.
"""

from __future__ import annotations

from collections import Counter

Prefix = tuple[bytes, ...]


class _Place:
    __slots__ = ("below", "weight")

    def __init__(self) -> None:
        self.weight = 0  # of the patterns whose literal beginning ends here
        self.below: Counter[int] = Counter()  # heights of the places behind it, few different ones

    @property
    def height(self) -> int:
        """The heaviest way from here on."""
        return self.weight + max(self.below, default=0)


class PatternLoad:
    def __init__(self) -> None:
        self._places: dict[Prefix, _Place] = {}

    def add(self, prefix: Prefix, weight: int) -> None:
        for length in range(len(prefix), -1, -1):
            self._places.setdefault(prefix[:length], _Place())
        self._change(prefix, weight)

    def remove(self, prefix: Prefix, weight: int) -> None:
        self._change(prefix, -weight)

    def _change(self, prefix: Prefix, weight: int) -> None:
        """Tells every place in front of this one how high it is now; leaves none that is empty."""
        place = self._places[prefix]
        before = place.height
        place.weight += weight
        while prefix:
            after = place.height
            parent = self._places[prefix[:-1]]
            parent_before = parent.height
            parent.below[before] -= 1
            parent.below[after] += 1
            for height in (before, after):
                if parent.below[height] <= 0 or not height:
                    del parent.below[height]
            if not after:
                del self._places[prefix]
            prefix, place, before = prefix[:-1], parent, parent_before

    def heaviest_through(self, prefix: Prefix) -> int:
        """Of all ways that lead through this place."""
        total = 0
        for length in range(len(prefix)):
            place = self._places.get(prefix[:length])
            if place is None:
                return total
            total += place.weight
        here = self._places.get(prefix)
        return total if here is None else total + here.height
