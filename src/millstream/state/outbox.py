"""What applied commands brought about that others have to hear of, in one value per batch.

`apply` only writes here; the engine hands it on when the whole batch is applied (engine.py says in
which order), so that no listener sees half of a batch and none of them can spoil an apply.
"""

from __future__ import annotations

from millstream.formats.layout import StreamId


class Outbox:
    __slots__ = (
        "altered",
        "changed_rules",
        "ended",
        "grown",
        "stirred",
        "touched",
        "unused_blobs",
    )

    def __init__(self) -> None:
        self.ended: list[StreamId] = []  # streams
        self.grown: set[StreamId] = set()  # streams that got a wake event; appends are not told
        self.stirred: dict[str, None] = {}  # subscriptions that changed, in this order
        self.unused_blobs: list[str] = []  # that no snapshot refers to any more
        self.changed_rules: list[StreamId] = []  # streams whose profile or schemas changed
        self.touched: dict[StreamId, tuple[int, int]] = {}  # ordinals of new state changes
        self.altered: set[StreamId] = set()  # streams flushed, trimmed, or with a new snapshot

    def __bool__(self) -> bool:
        return bool(
            self.ended
            or self.stirred
            or self.unused_blobs
            or self.grown
            or self.touched
            or self.changed_rules
            or self.altered
        )
