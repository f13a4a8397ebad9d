"""`serve --pipeline auto|off|external`: which processes the server starts, and that they end."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

import pytest

from millstream.jobs.pipeline_requirements import JAVA_COMMAND
from millstream.tier.objects import ObjectStore
from tests.spark.hasty_server import LOOK_SECONDS
from tests.spark.pipeline_process import members
from tests.spark.server_world import BYTES_MAX, ROUNDS, STREAMS, World, seeded
from tests.spark.written_streams import WrittenStreams
from tests.support.seaweed import SECRET_ACCESS_KEY
from tests.support.waiting import wait_until


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def written(world: World, *flags: str) -> WrittenStreams:
    streams = WrittenStreams(world.start(*flags), STREAMS)
    streams.append_rounds(seeded(), ROUNDS, BYTES_MAX)
    return streams


def session_of_pipeline(world: World) -> int:
    """Of the one process that the server started, once there is one and it is no copy of it."""

    def started() -> list[int]:
        return [pid for pid in children(world.server.process.pid) if b"\0pipeline\0" in called(pid)]

    wait_until(started, "a pipeline was started")
    [found] = started()
    return found


def called(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_auto_makes_the_segments_few_and_ends_when_there_is_no_more_work(s3_world: World) -> None:
    """The pipeline gets the keys of the store from its server, not where others see them."""
    world = s3_world
    streams = written(world)  # at first nobody compacts
    streams.server = world.restart("--pipeline", "auto", "--cold-timeout", "20s")
    cold = ObjectStore(world.cold)
    session = session_of_pipeline(world)
    assert SECRET_ACCESS_KEY.encode() not in Path(f"/proc/{session}/cmdline").read_bytes()
    wait_until(lambda: len(list(cold.list("segments/"))) < 8, "the segments became few")
    streams.check(seeded(), sample=20)
    wait_until(lambda: not children(world.server.process.pid), "it ended by itself")
    wait_until(lambda: not members(session), "nobody is left behind")
    assert world.server.stop() == 0


@pytest.mark.parametrize("point", ["asked", "task"])
def test_a_stop_in_the_middle_of_a_job_leaves_nobody_behind(fs_world: World, point: str) -> None:
    world = fs_world
    streams = written(world, "--pipeline", "auto")
    session = session_of_pipeline(world)
    world.wait_for(point, 0)
    assert world.server.stop(seconds=40) == 0
    wait_until(lambda: not members(session), "nobody is left behind")
    streams.server = world.start()
    streams.check(seeded())


def test_a_killed_server_takes_its_pipeline_with_it(fs_world: World) -> None:
    world = fs_world
    streams = written(world, "--pipeline", "auto")
    session = session_of_pipeline(world)
    world.wait_for("asked", 0)
    world.server.process.kill()
    wait_until(lambda: not members(session), "nobody is left behind")
    world.server.kill()
    streams.server = world.start()
    streams.check(seeded())


def test_without_java_the_server_runs_on_and_starts_the_pipeline_once_it_is_there(
    fs_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = shutil.which("java")
    assert java is not None
    programs = {"programs": Path("/usr/bin"), "java": Path(java).parent}  # none of them yet
    monkeypatch.setenv("PATH", os.pathsep.join(str(tmp_path / name) for name in programs))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    world = fs_world
    streams = written(world, "--pipeline", "auto")
    assert world.server.process.stdout is not None
    for line in world.server.process.stdout:
        if b"the pipeline needs" in line:
            break
    assert f"Java 17 or newer; install it: {JAVA_COMMAND}." in line.decode()
    streams.append_rounds(seeded(), 2, BYTES_MAX)
    streams.check(seeded())
    time.sleep(4 * LOOK_SECONDS)
    assert children(world.server.process.pid) == []
    for name, folder in programs.items():
        (tmp_path / name).symlink_to(folder)
    session = session_of_pipeline(world)
    world.wait_for("asked", 0)
    assert world.server.stop(seconds=40) == 0
    wait_until(lambda: not members(session), "nobody is left behind")
    assert JAVA_COMMAND not in world.server.finish_output()  # it was said once


@pytest.mark.parametrize("mode", ["off", "external"])
def test_off_and_external_start_nothing(fs_world: World, mode: str) -> None:
    world = fs_world
    streams = written(world, "--pipeline", mode)
    for _ in range(6):
        assert children(world.server.process.pid) == []
        time.sleep(LOOK_SECONDS / 2)
    assert world.requests() == []
    with contextlib.closing(world.server.client()) as client:  # although there is work
        assert client.post("/__millstream/jobs/compact").status == 200
    streams.check(seeded(), sample=20)
    assert world.server.stop() == 0
