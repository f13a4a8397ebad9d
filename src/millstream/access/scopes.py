"""What a key may be good for. Every route of the table in api/ names one of these, or none."""

from __future__ import annotations

from enum import Enum


class Scope(Enum):
    """`admin` is over the whole server; the others are over streams that a pattern names."""

    READ = "read"  # content, tails, snapshots, listings of what it covers
    APPEND = "append"  # content, and closing
    MANAGE = "manage"  # create, delete, fork, snapshots, buckets, retention
    SUBSCRIBE = "subscribe"  # subscriptions and their wakes
    ADMIN = "admin"  # operators' routes, keys
