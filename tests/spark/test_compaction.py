"""Compaction on a real Spark session, over a folder and over an S3 server."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millstream.formats.jobs import JobOffer
from millstream.jobs.compaction import Policy
from millstream.limits import KIB, MIB
from millstream.pipeline.compaction import KIND, Rewrite
from millstream.pipeline.job_client import JobClient, JobRefused
from millstream.tier.segments import SegmentReader
from tests.spark.job_server import JobServer, World, fill
from tests.spark.shared_session import runner_for

POLICY = Policy(target_bytes=256 * KIB, task_bytes=512 * KIB, small_min=3, depth_min=3)


def check(world: World) -> None:
    assert world.read_all(SegmentReader(world.store, 64 * MIB)) == world.written()
    assert world.catalog.verify().problem is None


def test_every_stream_reads_back_the_same_from_few_segments(
    world: World, session: SparkSession
) -> None:
    fill(world, random.randrange(2**32), streams=300, flushes=12, message_bytes=200)
    check(world)
    runs_before = len(world.located_runs())
    with JobServer(world, POLICY).running() as url:
        runner = runner_for(url, world.cold, session)
        assert runner.run_one()
        check(world)
        jobs = 1
        while runner.run_one():
            jobs += 1
            assert jobs < 5
    check(world)
    assert len(world.segments()) <= 10
    assert len(world.located_runs()) < runs_before / 5
    assert sum(use.segment.rows for use in world.segments()) == sum(
        len(stream.messages) for stream in world.streams.values()
    )


def test_readers_and_writers_go_on_while_jobs_run(world: World, session: SparkSession) -> None:
    fill(world, random.randrange(2**32), streams=100, flushes=8, message_bytes=100)
    stopped = threading.Event()
    lock = threading.Lock()

    def write() -> int:
        for flush in range(1000):
            with lock:
                for stream_id in range(1, 100, 3):
                    message = b"%d" % flush if stream_id % 2 else b"later"
                    world.append(stream_id, message, 1_760_000_000_000 + flush)
                world.flush(1_760_000_000_000 + flush)
            if stopped.wait(0.3):
                break
        return flush

    def read() -> int:
        rounds = 0
        while not stopped.is_set():
            with lock:
                expected = {key: list(value) for key, value in world.written().items()}
                runs = world.located_runs()
            reader = SegmentReader(world.store, 0)
            found: dict[int, bytes] = {}
            for segment, run in runs:
                [block] = reader.load_runs(segment, [run])
                found[run.stream_id] = found.get(run.stream_id, b"") + block.data
            assert found == {key: b"".join(m for m, _ in value) for key, value in expected.items()}
            rounds += 1
        return rounds

    with ThreadPoolExecutor(2) as others, JobServer(world, POLICY).running() as url:
        writer, reader = others.submit(write), others.submit(read)
        try:
            runner = runner_for(url, world.cold, session)
            jobs = sum(runner.run_one() for _ in range(4))
        finally:
            stopped.set()
        assert jobs >= 2
        assert writer.result() > 0
        assert reader.result() > 0
    check(world)


def test_what_is_deleted_before_or_during_a_job_does_not_come_back(
    folder_world: World, session: SparkSession
) -> None:
    world = folder_world
    fill(world, random.randrange(2**32), streams=60, flushes=6, message_bytes=100)
    for stream_id in (1, 2, 30):
        world.delete(stream_id)
    rows = sum(len(stream.messages) for stream in world.streams.values())
    server = JobServer(world, POLICY)
    server.before_commit = lambda: world.delete(44)
    with server.running() as url:
        assert runner_for(url, world.cold, session).run_one()
    check(world)
    assert sum(use.segment.rows for use in world.segments()) == rows


def test_messages_larger_than_a_row_group_and_streams_larger_than_a_task(
    folder_world: World, session: SparkSession
) -> None:
    world = folder_world
    numbers = random.Random(11)
    for flush in range(4):
        world.append(2, numbers.randbytes(3 * MIB), 1000 + flush)
        for _ in range(40):
            world.append(4, numbers.randbytes(20 * KIB), 2000 + flush)
        world.append(6, b"", 3000)
        world.flush(1_750_000_000_000 + flush)
    policy = Policy(target_bytes=8 * MIB, task_bytes=16 * MIB, small_min=3)
    with JobServer(world, policy).running() as url:
        assert runner_for(url, world.cold, session).run_one()
    check(world)


def test_a_task_that_ran_twice_counts_once(folder_world: World) -> None:
    world = folder_world
    fill(world, random.randrange(2**32), streams=50, flushes=4, message_bytes=100)
    with JobServer(world, POLICY).running() as url:
        client = JobClient(url)
        offer = client.ask(KIND)
        assert offer is not None
        rewrite = Rewrite(url, offer, world.cold)
        for number in [*range(offer.tasks), *range(offer.tasks)]:
            result = rewrite.write_segments(client.load_task(offer.job, number), world.store)
            client.store_result(offer.job, number, result)
        client.commit(offer.job)
        client.commit(offer.job)
    check(world)
    assert len(world.swapped) == 1
    assert len(list(world.store.list("segments/"))) == 4 + 2 * len(world.segments())


def test_a_damaged_segment_fails_its_job_by_name_and_changes_nothing(
    folder_world: World, session: SparkSession
) -> None:
    world = folder_world
    fill(world, random.randrange(2**32), streams=50, flushes=4, message_bytes=100)
    before = world.segments()
    name = before[2].segment.name
    data = bytearray(world.store.get(name))
    data[len(data) // 3] ^= 1
    world.store.delete([name])
    world.store.put(name, bytes(data))
    server = JobServer(world, POLICY)
    with server.running() as url:
        with pytest.raises(PySparkException, match=f"{name} is damaged"):
            runner_for(url, world.cold, session).run_one()
        assert server.requests[-1][0] == "DELETE"
        assert server.table.busy_names() == set()
    assert world.segments() == before


def test_inputs_that_die_meanwhile_are_left_out_of_the_commit(folder_world: World) -> None:
    world = folder_world
    for stream_id in (2, 4, 6):  # a segment each, and one for all
        world.append(stream_id, b"alone", 1000)
        world.flush(1_750_000_000_000 + stream_id)
    for stream_id in (2, 4, 6):
        world.append(stream_id, b"together", 2000)
    world.flush(1_750_000_000_010)
    with JobServer(world, POLICY).running() as url:
        client, offer = rewrite_all(url, world)
        world.delete(4)
        client.commit(offer.job)
    check(world)
    assert set(world.read_all(SegmentReader(world.store, MIB))) == {2, 6}
    assert len(world.segments()) == 1
    assert world.catalog.verify().problem is None


def test_a_job_whose_inputs_all_die_meanwhile_leaves_only_garbage(folder_world: World) -> None:
    world = folder_world
    fill(world, random.randrange(2**32), streams=20, flushes=3, message_bytes=100)
    with JobServer(world, POLICY).running() as url:
        client, offer = rewrite_all(url, world)
        for stream_id in list(world.streams):
            world.delete(stream_id)
        client.commit(offer.job)
        assert client.ask(KIND) is None
    assert world.segments() == []
    stored = {info.name for info in world.store.list("segments/")}
    assert {each.name for each in world.catalog.garbage()} == stored


def rewrite_all(url: str, world: World) -> tuple[JobClient, JobOffer]:
    """A job that only has to be committed."""
    client = JobClient(url)
    offer = client.ask(KIND)
    assert offer is not None
    rewrite = Rewrite(url, offer, world.cold)
    for number in range(offer.tasks):
        result = rewrite.write_segments(client.load_task(offer.job, number), world.store)
        client.store_result(offer.job, number, result)
    return client, offer


def test_a_result_that_is_not_the_same_content_is_refused(folder_world: World) -> None:
    world = folder_world
    fill(world, random.randrange(2**32), streams=20, flushes=3, message_bytes=100)
    with JobServer(world, POLICY).running() as url:
        client = JobClient(url)
        offer = client.ask(KIND)
        assert offer is not None
        task = client.load_task(offer.job, 0)
        shorter = type(task)(task.segments, task.runs[1:])
        result = Rewrite(url, offer, world.cold).write_segments(shorter, world.store)
        with pytest.raises(JobRefused, match="expected stream 1, message 0, byte 0 next"):
            client.store_result(offer.job, 0, result)
        with pytest.raises(JobRefused, match="no result of task 0"):
            client.commit(offer.job)


def test_two_who_ask_get_different_segments(folder_world: World) -> None:
    world = folder_world
    fill(world, random.randrange(2**32), streams=20, flushes=6, message_bytes=100)
    policy = Policy(target_bytes=MIB, small_min=3, inputs_max=3)
    with JobServer(world, policy).running() as url:
        offers = [JobClient(url).ask(KIND) for _ in range(3)]
        assert offers[2] is None
        first, second = offers[:2]
        assert first is not None
        assert second is not None
        assert not {each.name for each in first.inputs} & {each.name for each in second.inputs}
        JobClient(url).give_up(first.job)
        assert JobClient(url).ask(KIND) is not None


def test_a_stream_of_many_small_appends_needs_a_tenth_of_the_requests(
    folder_world: World, session: SparkSession
) -> None:
    world = folder_world
    numbers = random.Random(5)
    for flush in range(100):
        for stream_id in range(1, 60):
            world.append(2 * stream_id, numbers.randbytes(50), 1000 + flush)
        world.flush(1_750_000_000_000 + flush)
    before = requests_to_read(world, 14)
    with JobServer(world, POLICY).running() as url:
        assert runner_for(url, world.cold, session).run_one()
    after = requests_to_read(world, 14)
    print(f"{before} requests before, {after} after")
    assert after <= before / 10


def requests_to_read(world: World, stream_id: int) -> int:
    """By somebody who has read nothing before."""
    runs = [(segment, run) for segment, run in world.located_runs() if run.stream_id == stream_id]
    counted = world.store.requests["get"]
    reader = SegmentReader(world.store, 64 * MIB)
    data = b"".join(reader.load_runs(segment, [run])[0].data for segment, run in runs)
    assert data == b"".join(message for message, _ in world.streams[stream_id].messages)
    return world.store.requests["get"] - counted
