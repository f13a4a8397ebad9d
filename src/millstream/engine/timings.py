"""How long slow work waits: between two looks, and after something went wrong.

One value, made once and handed down by assemble.py, so that tests are in a hurry without patching.
What users may set is in config.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.limits import (
    CATALOG_NUDGE_SECONDS,
    CATALOG_UPLOAD_SHARE,
    CHECKPOINT_SECONDS_MAX,
    FULL_DISK_LOOK_SECONDS,
    GARBAGE_GRACE_SECONDS,
    GARBAGE_RETRY_SECONDS,
    ORPHAN_AGE_SECONDS,
)

DOUBLINGS_MAX = 10


@dataclass(frozen=True)
class Backoff:
    """Seconds until the next try: twice as many after every failure, up to a bound."""

    seconds_min: float
    seconds_max: float

    def seconds(self, failures: int) -> float:
        """After so many failures in a row, one at least."""
        doublings = min(max(failures - 1, 0), DOUBLINGS_MAX)
        return min(self.seconds_max, self.seconds_min * float(1 << doublings))


@dataclass(frozen=True)
class Timings:
    """In seconds, all of them."""

    flush_retry: Backoff = Backoff(0.5, 15.0)
    flush_look: float = 1.0  # whether content has become old enough
    checkpoint_retry: Backoff = Backoff(1.0, 15.0)
    checkpoint_interval: float = CHECKPOINT_SECONDS_MAX
    upload_retry: Backoff = Backoff(5.0, 300.0)
    upload_nudge: float = CATALOG_NUDGE_SECONDS
    upload_share: float = CATALOG_UPLOAD_SHARE
    garbage_retry: Backoff = Backoff(5.0, GARBAGE_RETRY_SECONDS)
    garbage_grace: float = GARBAGE_GRACE_SECONDS
    orphan_age: float = ORPHAN_AGE_SECONDS
    orphan_first_look: float = 300.0  # after the start: by then what recovery left to do is done
    orphan_look: float = 3600.0  # between two listings of the whole store
    eviction_retry: Backoff = Backoff(1.0, 30.0)
    retention_retry: Backoff = Backoff(1.0, 300.0)
    lifetimes_retry: Backoff = Backoff(1.0, 30.0)
    memory_look: float = 0.25
    memory_rest: Backoff = Backoff(2.0, 60.0)
    full_disk_look: float = FULL_DISK_LOOK_SECONDS
    subscription_retry: Backoff = Backoff(1.0, 30.0)
    subscription_refused: float = 1.0  # when the journal has no room: until the next try
    touch_retry: Backoff = Backoff(0.1, 5.0)
    system_retry: Backoff = Backoff(5.0, 300.0)
    pipeline_look: float = 20.0
    pipeline_retry: Backoff = Backoff(30.0, 900.0)
    pipeline_stop: float = 10.0
    eraser_look_min: float = 0.5  # whether dead content is late: a share of --erase-within
    eraser_look_max: float = 60.0
