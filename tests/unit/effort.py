"""How hard Hypothesis tries in this folder: enough to find a real bug, a second or two each."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# No deadline and no complaint about slowness: the machine is shared, a failure must mean a bug.
brief = settings(
    max_examples=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
briefer = settings(brief, max_examples=20)
