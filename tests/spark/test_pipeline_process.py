"""`millstream pipeline run` as a process: once, killed anywhere, stopped, two at a time."""

from __future__ import annotations

import json
import os
import random
import signal
import time

import pytest

from millstream.jobs.compaction import Policy
from millstream.limits import KIB, MIB
from millstream.tier.segments import SegmentReader
from tests.spark.job_server import JobServer, World, fill
from tests.spark.pipeline_process import Pipeline

POLICY = Policy(target_bytes=256 * KIB, task_bytes=512 * KIB, small_min=3, depth_min=3)
POINTS = {
    "asked": ("POST", "/compact"),
    "task": ("GET", "/tasks/"),
    "result": ("PUT", "/tasks/"),
    "commit": ("POST", "/commit"),
}


def check(world: World) -> None:
    assert world.read_all(SegmentReader(world.store, 64 * MIB)) == world.written()
    assert world.catalog.verify().problem is None


def test_once_does_all_there_is_and_ends(world: World) -> None:
    """The keys of the store come from the environment: the server does not tell them."""
    fill(world, random.randrange(2**32), streams=100, flushes=8, message_bytes=100)
    keys = {
        "MILLSTREAM_COLD_ACCESS_KEY_ID": world.cold.access_key_id,
        "MILLSTREAM_COLD_SECRET_ACCESS_KEY": world.cold.secret_access_key,
    }
    with JobServer(world, POLICY).running() as url:
        environment = keys if world.cold.access_key_id else {}
        flags = ("--once", "--log-format", "json")
        pipeline = Pipeline(url, *flags, environment=environment)
        code, output = pipeline.wait()
    assert code == 0, output
    lines = [json.loads(line) for line in output.splitlines()]  # Spark's own too
    assert "job committed" in [line["event"] for line in lines]
    assert "nothing to do" not in output
    if world.cold.secret_access_key:
        assert world.cold.secret_access_key not in output
    assert len(world.segments()) < 8
    check(world)
    pipeline.wait_all_gone()


def test_killed_anywhere_it_can_be_run_again(folder_world: World) -> None:
    world = folder_world
    seed = random.randrange(2**32)
    fill(world, seed, streams=200, flushes=12, message_bytes=300)
    numbers = random.Random(seed)
    server = JobServer(world, POLICY)
    points = numbers.sample(sorted(POINTS), 3)
    print(f"killed at {points}")
    with server.running() as url:
        for point in points:
            seen = len(server.requests)
            pipeline = Pipeline(url, "--interval", "0.2")
            try:
                wait_for(server, seen, point)
                time.sleep(numbers.random() * 0.2)
                pipeline.kill()
                pipeline.wait_all_gone()
            finally:
                pipeline.end()
            server.end_leases()
            check(world)
            fill(world, numbers.randrange(2**32), streams=200, flushes=6, message_bytes=300)
        pipeline = Pipeline(url, "--once")
        try:
            code, output = pipeline.wait()
        finally:
            pipeline.end()
    assert code == 0, output
    check(world)
    assert len(world.segments()) < 15
    assert world.swapped


def wait_for(server: JobServer, seen: int, point: str) -> None:
    method, part = POINTS[point]
    deadline = time.monotonic() + 120
    while not any(how == method and part in path for how, path in server.requests[seen:]):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_sigterm_gives_the_job_up_and_leaves_nobody_behind(folder_world: World) -> None:
    world = folder_world
    fill(world, random.randrange(2**32), streams=100, flushes=8, message_bytes=100)
    server = JobServer(world, POLICY)
    with server.running() as url:
        pipeline = Pipeline(url)
        try:
            wait_for(server, 0, "task")
            pipeline.process.send_signal(signal.SIGTERM)
            code, output = pipeline.wait()
            pipeline.wait_all_gone()
        finally:
            pipeline.end()
        assert code == 0, output
        assert server.table.busy_names() == set()
    check(world)


@pytest.mark.parametrize("wait_seconds", [0.0, 1.0, 2.5])
def test_sigterm_while_spark_starts_is_obeyed_at_once(
    folder_world: World, wait_seconds: float
) -> None:
    world = folder_world
    fill(world, random.randrange(2**32), streams=100, flushes=8, message_bytes=100)
    server = JobServer(world, POLICY)
    with server.running() as url:
        pipeline = Pipeline(url)
        try:
            wait_for(server, 0, "asked")
            time.sleep(wait_seconds)
            before = time.monotonic()
            pipeline.process.send_signal(signal.SIGTERM)
            code, output = pipeline.wait()
            seconds = time.monotonic() - before
            pipeline.wait_all_gone()
        finally:
            pipeline.end()
        assert code == 0, output
        assert "Traceback" not in output
        print(f"ended after {seconds:.2f} s")
        assert seconds < 10, output  # well under a second on a machine that is not busy otherwise
        assert not any("/tasks/" in path for _, path in server.requests)  # nor did Spark come up
        assert server.table.busy_names() == set()
    check(world)


def test_once_with_nothing_to_do_says_so(folder_world: World) -> None:
    with JobServer(folder_world, POLICY).running() as url:
        code, output = Pipeline(url, "--once").wait()
    assert code == 0
    assert "nothing to do: the server has no job now" in output


def test_a_killed_jvm_ends_the_pipeline_with_exit_code_1(folder_world: World) -> None:
    world = folder_world
    fill(world, random.randrange(2**32), streams=100, flushes=8, message_bytes=100)
    server = JobServer(world, POLICY)
    with server.running() as url:
        pipeline = Pipeline(url, "--interval", "0.2")
        try:
            wait_for(server, 0, "task")
            os.kill(pipeline.java_pid(), signal.SIGKILL)
            code, output = pipeline.wait()
            pipeline.wait_all_gone()
        finally:
            pipeline.end()
    assert code == 1, output
    assert "start the pipeline again" in output
    check(world)


def test_two_at_once_do_no_harm(folder_world: World) -> None:
    world = folder_world
    fill(world, random.randrange(2**32), streams=100, flushes=12, message_bytes=100)
    policy = Policy(target_bytes=256 * KIB, task_bytes=512 * KIB, small_min=3, inputs_max=4)
    with JobServer(world, policy).running() as url:
        pipelines = [Pipeline(url, "--once") for _ in range(2)]
        try:
            ends = [pipeline.wait() for pipeline in pipelines]
        finally:
            for pipeline in pipelines:
                pipeline.end()
    assert [code for code, _ in ends] == [0, 0], ends
    check(world)


def test_a_server_that_is_away_is_told_and_once_fails() -> None:
    pipeline = Pipeline("http://127.0.0.1:9", "--once")
    code, output = pipeline.wait()
    assert code == 1
    assert "http://127.0.0.1:9: POST /__millstream/jobs/compact failed" in output


@pytest.mark.parametrize("server", ["localhost:4437", "ftp://x", ""])
def test_a_server_that_is_no_url_is_told_with_exit_code_2(server: str) -> None:
    code, output = Pipeline(server, "--once").wait()
    assert code == 2
    assert "is not a server such as http://127.0.0.1:4437" in output
