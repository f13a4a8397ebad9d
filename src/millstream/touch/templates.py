"""Templates: an entity and up to three of its fields, by which clients tell rows apart.

Only changes that come after a template was activated touch its keys. It stays active while clients
name it; the least recently named go when there are too many. What a retired template leaves open
(changes that nothing was noted of) is made good by the caller, see `StreamTouches`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from millstream.limits import TOUCH_RETIRED_KEPT
from millstream.schemas.touch_settings import TouchTemplates
from millstream.touch.changes import Encoding, Shape
from millstream.touch.keys import KeyMaker, template_id

MINUTE_MS = 60_000


class Declared(NamedTuple):
    """A template as a client asks for it; its fields are sorted by name."""

    entity: str
    fields: tuple[tuple[str, Encoding], ...]

    @property
    def template_id(self) -> int:
        return template_id(self.entity, (name for name, _ in self.fields))


class Template:
    __slots__ = (
        "active_from",
        "entity",
        "keys",
        "recovered_generation",
        "seen_ms",
        "shape",
        "template_id",
        "ttl_ms",
    )

    def __init__(self, declared: Declared, active_from: int, now_ms: int, ttl_ms: float) -> None:
        self.template_id = declared.template_id
        self.entity = declared.entity
        self.shape = Shape(declared.fields)
        self.keys = KeyMaker(self.template_id)
        self.active_from = active_from  # the first record whose change it hears of
        self.seen_ms = now_ms
        self.ttl_ms = ttl_ms
        self.recovered_generation = 0  # older cursors may have missed something; 0: none


class Activation(NamedTuple):
    """What became of one declaration."""

    template_id: int
    denied: Literal["invalid", "rate_limited"] | None = None
    is_recovered: bool = False  # it was retired once


class RateLimit:
    """So many new templates a minute, all of them at once if need be. 0: any number."""

    def __init__(self, per_minute: float, now_ms: int) -> None:
        self._left = float(per_minute)
        self._as_of_ms = now_ms

    def take(self, per_minute: float, now_ms: int) -> bool:
        if per_minute <= 0:
            return True
        gained = max(now_ms - self._as_of_ms, 0) * per_minute / MINUTE_MS
        self._left, self._as_of_ms = min(self._left + gained, float(per_minute)), now_ms
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Templates:
    """Of one stream."""

    def __init__(self, limits: TouchTemplates, now_ms: int) -> None:
        self.limits = limits
        self._active: OrderedDict[int, Template] = OrderedDict()  # least recently seen first
        self._by_entity: dict[str, OrderedDict[int, Template]] = {}
        self._rate = RateLimit(limits.activation_rate_limit_per_minute, now_ms)
        self._retired: set[int] = set()
        self._forgot_retired = False

    def __len__(self) -> int:
        return len(self._active)

    def get(self, id_of_template: int) -> Template | None:
        return self._active.get(id_of_template)

    def of_entity(self, entity: str) -> Iterable[Template]:
        found = self._by_entity.get(entity)
        return () if found is None else found.values()

    def activate(
        self, declared: Declared, active_from: int, now_ms: int, ttl_ms: float
    ) -> tuple[Activation, Sequence[Template]]:
        """What became of it, and the templates that had to go for it."""
        known = self._active.get(declared.template_id)
        if known is not None:
            if known.shape.encodings != tuple(encoding for _, encoding in declared.fields):
                return Activation(known.template_id, "invalid"), ()
            known.ttl_ms = ttl_ms
            self.see(known.template_id, now_ms)
            return Activation(known.template_id), ()
        if not self._rate.take(self.limits.activation_rate_limit_per_minute, now_ms):
            return Activation(declared.template_id, "rate_limited"), ()
        template = Template(declared, active_from, now_ms, ttl_ms)
        is_recovered = self._forgot_retired or template.template_id in self._retired
        self._retired.discard(template.template_id)
        self._active[template.template_id] = template
        siblings = self._by_entity.setdefault(template.entity, OrderedDict())
        siblings[template.template_id] = template
        activation = Activation(template.template_id, None, is_recovered)
        return activation, self._make_room(siblings)

    def _make_room(self, siblings: OrderedDict[int, Template]) -> Sequence[Template]:
        gone: list[Template] = []
        limits = self.limits
        for templates, most in (
            (siblings, limits.max_active_templates_per_entity),
            (self._active, limits.max_active_templates_per_stream),
        ):
            while len(templates) > max(most, 1):
                oldest = next(iter(templates.values()))
                self.retire(oldest)
                gone.append(oldest)
        return gone

    def see(self, id_of_template: int, now_ms: int) -> None:
        """A client named it."""
        template = self._active.get(id_of_template)
        if template is not None:
            template.seen_ms = now_ms
            self._active.move_to_end(id_of_template)
            self._by_entity[template.entity].move_to_end(id_of_template)

    def unseen(self, now_ms: int) -> list[Template]:
        """Those that no client has named for as long as was asked for."""
        return [
            template
            for template in self._active.values()
            if template.seen_ms + template.ttl_ms < now_ms
        ]

    def retire(self, template: Template) -> None:
        del self._active[template.template_id]
        siblings = self._by_entity[template.entity]
        del siblings[template.template_id]
        if not siblings:
            del self._by_entity[template.entity]
        if len(self._retired) >= TOUCH_RETIRED_KEPT:
            self._retired.clear()
            self._forgot_retired = True
        self._retired.add(template.template_id)
