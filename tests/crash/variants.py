"""How the server of a round is set up: where its content goes, and how soon.

The plan of a round draws log sizes for every generation; a variant's own flags come after them and
win. With flags as small as these each append is followed by a flush, a checkpoint or an eviction,
and a kill at a random moment hits one of them more often than not.
"""

from __future__ import annotations

_TINY_CACHE = ("--cold-cache-bytes", "64KiB")
_EVICTING = ("--resident-streams", "4", *_TINY_CACHE)

VARIANTS: dict[str, tuple[str, ...]] = {
    "as planned": (),
    "flush": ("--flush-bytes", "1", *_TINY_CACHE),
    "checkpoint": ("--checkpoint-wal-bytes", "4KiB", *_EVICTING),
    "flush and checkpoint": (
        *("--flush-bytes", "1", "--checkpoint-wal-bytes", "8KiB"),
        *("--wal-segment-bytes", "4KiB", *_EVICTING),
    ),
    "budget": (
        *("--hot-bytes", "64KiB", "--flush-bytes", "16KiB", "--checkpoint-wal-bytes", "32KiB"),
        *("--shards", "3", *_EVICTING),
    ),
}
# With injected faults: everything happens all the time, so that everything is hit.
TROUBLED: tuple[str, ...] = (
    *("--flush-bytes", "2KiB", "--checkpoint-wal-bytes", "16KiB", "--shards", "2"),
    *("--wal-segment-bytes", "16KiB", "--catalog-upload-interval", "0.05", *_EVICTING),
)
COLD = tuple(name for name in VARIANTS if name != "as planned")
