"""Objects that are not what was written: refused by name, never served; everything else is read."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest

from tests.cold.traffic import Refused, code, read_all
from tests.conformance.api import Events
from tests.crash.rounds import DrainedServer
from tests.support.http import Client, Reply
from tests.support.waiting import wait_until

STREAMS = ("a", "b", "c")
CHUNKS, CHUNK_BYTES = 16, 100_000
FLAGS = (
    *("--shards", "1", "--flush-bytes", str(len(STREAMS) * CHUNKS * CHUNK_BYTES)),
    *("--cold-cache-bytes", "1", "--long-poll-timeout", "1", "--hot-bytes", "64MiB"),
)


class Place(NamedTuple):
    """Where a row group's messages lie in the object."""

    row_group: int
    streams: frozenset[str]
    first_ordinal: int
    start: int
    end: int


class World:
    """Three streams of one and a half row groups each, in one object; a server that forgot them."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.contents = {name: self.content(name) for name in STREAMS}
        with self.serving() as client:
            for name in STREAMS:
                assert client.put(self.path(name), content_type="text/plain").status == 201
            for number in range(CHUNKS):
                for name, content in self.contents.items():
                    body = content[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
                    reply = client.post(self.path(name), body, content_type="text/plain")
                    assert reply.status == 204, reply
            wait_until(lambda: len(self.objects()) == 1)
            # Published, too: a server killed before that starts with everything in its log.
            wait_until(lambda: b"\nmillstream_hot_bytes 0" in client.get("/metrics").body)
        self.object = self.objects()[0]
        self.name = str(self.object.relative_to(data_dir / "cold"))
        self.original = self.object.read_bytes()
        self.places = self.find_places()

    def objects(self) -> list[Path]:
        return list((self.data_dir / "cold" / "segments").rglob("*.parquet"))

    @staticmethod
    def path(name: str) -> str:
        return f"/v1/stream/{name}"

    @staticmethod
    def content(name: str) -> bytes:
        """Nothing that could be compressed away: every byte of the object counts."""
        dice = random.Random(name)
        return bytes(dice.choices(range(32, 127), k=CHUNKS * CHUNK_BYTES))

    def find_places(self) -> list[Place]:
        file = pq.ParquetFile(self.object)
        found = list[Place]()
        for index in range(file.num_row_groups):
            table = file.read_row_group(index, columns=["stream", "ordinal"])
            paths = {str(path).rpartition("/")[2] for path in table["stream"].to_pylist()}
            group = file.metadata.row_group(index)
            columns = [group.column(c) for c in range(group.num_columns)]
            [data] = [column for column in columns if column.path_in_schema == "data"]
            start = data.dictionary_page_offset or data.data_page_offset
            end = start + data.total_compressed_size
            place = Place(index, frozenset(paths), table["ordinal"][0].as_py(), start, end)
            found.append(place)
        return found

    def place_of(self, name: str) -> Place:
        """A row group that this stream has for itself."""
        return next(place for place in self.places if place.streams == {name})

    @contextlib.contextmanager
    def serving(self) -> Iterator[Client]:
        server = DrainedServer(self.data_dir, *FLAGS)
        try:
            with contextlib.closing(server.client()) as client:
                self.server = server
                yield client
        finally:
            server.kill()
        assert b"Traceback" not in server.output, server.output[-3000:].decode()

    def flip(self, position: int) -> None:
        damaged = bytearray(self.original)
        damaged[position] ^= 1 << position % 8
        self.object.write_bytes(damaged)

    def check_refusal(self, reply: Reply) -> None:
        assert reply.status == 500, (reply.status, reply.body[:200])
        assert code(reply) == "damaged_segment"
        message = reply.json()["error"]["message"]
        assert self.name in message, message
        wait_until(lambda: self.name.encode() in self.server.output)  # the log is read beside us

    def check_refused(self, client: Client, name: str, offset: str = "-1") -> None:
        for live in ("", "&live=long-poll"):
            self.check_refusal(client.get(f"{self.path(name)}?offset={offset}{live}"))
        query = f"{self.path(name)}?offset={offset}&live=sse"
        with contextlib.closing(Events(client.host, client.port, query)) as events:
            assert not [event for event in events if event.kind == "data"]

    def check_whole(self, client: Client, *names: str) -> None:
        for name in names:
            assert read_all(client, self.path(name)) == self.contents[name], name


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("damage") / "data")


@pytest.fixture
def world(made: World) -> Iterator[World]:
    yield made
    made.object.parent.mkdir(parents=True, exist_ok=True)
    made.object.write_bytes(made.original)


def token(ordinal: int) -> str:
    return f"{ordinal:016d}_{ordinal * CHUNK_BYTES:016d}"


def test_a_flipped_bit_is_refused_by_name_and_others_are_read(world: World) -> None:
    place = world.place_of("b")
    world.flip((place.start + place.end) // 2)
    with world.serving() as client:
        world.check_whole(client, "a", "c")
        world.check_refused(client, "b", token(place.first_ordinal))
        assert client.head(world.path("b")).next_offset == token(CHUNKS)
        assert client.get(f"{world.path('b')}?offset=now").status == 200
        world.object.write_bytes(world.original)
        world.check_whole(client, *STREAMS)


def test_a_bit_flipped_under_a_running_server_is_noticed(world: World) -> None:
    place = world.place_of("b")
    with world.serving() as client:
        world.check_whole(client, *STREAMS)
        world.flip(place.end - 1000)
        world.check_refused(client, "b", token(place.first_ordinal))
        world.check_whole(client, "a", "c")
        world.object.write_bytes(world.original)
        world.check_whole(client, *STREAMS)


def test_what_lies_in_other_row_groups_of_a_damaged_stream_is_read(world: World) -> None:
    places = [place for place in world.places if "b" in place.streams]
    assert len(places) > 1
    world.flip((places[-1].start + places[-1].end) // 2)
    with world.serving() as client:
        reply = client.get(f"{world.path('b')}?offset=-1&max_bytes=1")
        assert (reply.status, reply.body) == (200, world.contents["b"][:CHUNK_BYTES])


@pytest.mark.parametrize("seed", [1, 2])
def test_wherever_a_bit_flips_the_answer_is_right_or_refused(world: World, seed: int) -> None:
    print(f"seed {seed}")
    dice = random.Random(f"damage {seed}")
    refused = 0
    with world.serving() as client:
        for _ in range(25):
            world.flip(dice.randrange(len(world.original)))
            for name in STREAMS:
                try:
                    found = read_all(client, world.path(name))
                except Refused as error:
                    world.check_refusal(error.reply)
                    refused += 1
                else:
                    assert found == world.contents[name]
    assert refused >= 10


@pytest.mark.parametrize("back", [4, 8, 100, 1000], ids=lambda back: f"{back} from the end")
def test_a_flip_in_the_footer_is_right_or_refused(world: World, back: int) -> None:
    """By a server that has not read the footer yet."""
    world.flip(len(world.original) - back)
    with world.serving() as client:
        for name in STREAMS:
            try:
                assert read_all(client, world.path(name)) == world.contents[name]
            except Refused as error:
                world.check_refusal(error.reply)


@pytest.mark.parametrize("how", ["missing", "cut short", "empty", "longer", "another"])
def test_an_object_that_is_not_there_or_not_whole_is_refused_by_name(
    world: World, how: str
) -> None:
    if how == "missing":
        world.object.unlink()
    elif how == "longer":
        world.object.write_bytes(world.original + b"\0" * 100)
    elif how == "another":
        world.object.write_bytes(bytes(reversed(world.original)))
    else:
        size = len(world.original) // 2 if how == "cut short" else 0
        world.object.write_bytes(world.original[:size])
    with world.serving() as client:
        for name in STREAMS:
            if how == "longer":  # all that was written is there
                world.check_whole(client, name)
            else:
                world.check_refused(client, name)
        assert client.put("/v1/stream/new", b"x", content_type="text/plain").status in (200, 201)
        assert client.get("/v1/stream/new").body == b"x"
        assert client.delete("/v1/stream/new").status == 204
        world.object.write_bytes(world.original)
        world.check_whole(client, *STREAMS)


def test_an_object_that_goes_missing_under_a_running_server_is_refused(world: World) -> None:
    with world.serving() as client:
        world.check_whole(client, *STREAMS)
        world.object.unlink()
        for name in STREAMS:
            world.check_refused(client, name)
