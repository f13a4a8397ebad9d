"""Bounds that are not settings, each with its reason. Settings with a bound live in config.py."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

STREAM_PATH_BYTES_MAX = 1024  # what every proxy and browser carries in a URL without complaint
PRODUCER_ID_BYTES_MAX = 1024  # kept for ever per producer, so it must stay small
STREAM_SEQ_BYTES_MAX = 4 * KIB  # the official suite sends long ones; still far below a header block
INTEGER_MAX = 2**53 - 1  # epochs and sequences must survive a JavaScript number
TTL_SECONDS_MAX = (
    100 * 365 * 86_400
)  # a century; beyond it arithmetic on dates stops meaning anything

BATCH_FRAMES_MAX = 512  # one answer entry each; what other servers of this route allow
BATCH_BYTES_MAX = 32 * MIB
BUCKETED_KEY_BYTES_MAX = 122  # bucket, slash and stream on the bucketed surface

LONG_POLL_SECONDS_MAX = 60.0  # a longer wait dies in proxies anyway
PIPELINE_REQUESTS_MAX = (
    32  # requests of one connection parsed ahead of their turn; reading pauses beyond
)
SSE_BUFFER_BYTES = (
    256 * KIB
)  # unsent bytes after which a subscriber is fed from the log again, not from memory
BOOTSTRAP_PIECE_BYTES = 64 * KIB  # of a bootstrap's body made at a time; one message may be larger
SMALL_BLOCK_BYTES = (
    64 * KIB
)  # small appends are merged to blocks of this size; big ones stay as they came
SMALL_BLOCK_OVERHEAD = 128  # bytes of objects and lists that a block costs beside its content
