"""Which shard a stream belongs to.

Shards are a layout of what is stored: every segment holds streams of one shard, and every shard has
its own file of the catalog. They are nothing else: a process has one log, one state machine and one
position in the journal, whatever the number of shards. That number is fixed when a store is made.
"""

from __future__ import annotations

from typing import NamedTuple, NewType

from millstream.formats.wal import crc32c

StreamId = NewType("StreamId", int)
"""Names one stream for ever: a stream that is created again under the same path gets another."""


class ShardLayout(NamedTuple):
    shards: int

    def shard_of_id(self, stream_id: StreamId) -> int:
        return stream_id % self.shards

    def shard_of_path(self, path: bytes) -> int:
        return crc32c(path) % self.shards

    def next_id(self, births: int, path: bytes) -> StreamId:
        """For the stream that is created after so many others: never given twice, and in the shard
        of its path."""
        return StreamId((births + 1) * self.shards + self.shard_of_path(path))
