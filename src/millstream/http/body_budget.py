"""How many bytes of request bodies the server holds at once, and who gives way when it is too much.

Bytes are taken as they arrive, not as they are announced: a client that promises much and sends
nothing takes nothing away from the others. So many bodies may be half-way when the budget is used
up. None waits then, which could go on for ever: as many uploads as necessary are refused with a
503, and the others go on. The ones that brought least in the last seconds are the first, and of
several alike the newest; those who hold little, compared with an equal share for each client (by
address) and each upload, are the last. So a steady client is not stopped by others who do
not, a client with many uploads does not push out one with few, and the last one left can always
finish.

Bodies that arrived whole stay in the budget until they are answered; they cannot give way.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.http.connection import Connection

LITTLE_SHARE = 4  # a quarter of an equal share is little
ROOM_SHARE = 16  # of the budget is made free at once, so that the next read need not look again


class BodyBudget:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self.gave_way = 0  # uploads, since the start
        self._uploads: dict[Connection, int] = {}  # arriving bodies, the oldest first

    def take(self, bytes_more: int) -> bool:
        """For a body that is whole but has to wait. False: there is no room."""
        if self.held_bytes + bytes_more > self.bytes_max:
            return False
        self.held_bytes += bytes_more
        return True

    def take_arriving(self, connection: Connection, bytes_more: int) -> bool:
        """False: it is this upload that had to give way, and it is refused."""
        uploads = self._uploads
        uploads[connection] = uploads.get(connection, 0) + bytes_more
        self.held_bytes += bytes_more
        if self.held_bytes <= self.bytes_max:
            return True
        self._make_room(connection)
        return connection in uploads

    def leave(self, connection: Connection) -> None:
        """Nothing more arrives: the body is whole and will be answered, or it is not wanted."""
        self._uploads.pop(connection, None)

    def release(self, bytes_less: int) -> None:
        self.held_bytes -= bytes_less

    def _make_room(self, asking: Connection) -> None:
        goal_bytes = self.bytes_max - self.bytes_max // ROOM_SHARE
        for connection in self._in_order():
            if self.held_bytes <= goal_bytes:
                break
            self.gave_way += 1
            held_bytes = self._uploads.pop(connection)
            if connection is asking:
                goal_bytes += held_bytes  # it hears of it by the answer, and lets go itself
            else:
                connection.give_way()

    def _in_order(self) -> list[Connection]:
        """Who gives way first stands first."""
        uploads = self._uploads
        by_client = Counter[str]()
        for connection, held_bytes in uploads.items():
            by_client[connection.client] += held_bytes
        total_bytes = by_client.total()
        client_little = total_bytes / len(by_client) / LITTLE_SHARE
        little = total_bytes / len(uploads) / LITTLE_SHARE
        newest_first = reversed(uploads.items())

        def place(item: tuple[Connection, int]) -> tuple[bool, bool, int]:
            connection, held_bytes = item
            is_modest_client = by_client[connection.client] < client_little
            return is_modest_client, held_bytes < little, connection.recent_body_bytes

        return [connection for connection, _ in sorted(newest_first, key=place)]
