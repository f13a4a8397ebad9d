from __future__ import annotations

import pytest

from millstream.clock import ManualClock
from millstream.errors import JobConflict, JobNotFound
from millstream.formats.jobs import JobInput
from millstream.jobs.kinds import Plan
from millstream.jobs.table import Job, JobTable


def plan(*names: str, tasks: int = 1) -> Plan:
    inputs = [JobInput(name, 1, 1, 1, 1) for name in names]
    return Plan(shard=0, inputs=inputs, tasks=[b"task"] * tasks, reason="")


def table_with_job(tasks: int = 2) -> tuple[ManualClock, JobTable, Job]:
    clock = ManualClock()
    table = JobTable(clock, lease_ms=1000)
    return clock, table, table.start("compact", plan("a", "b", tasks=tasks))


def test_a_job_without_a_sign_of_life_ends_and_frees_its_segments() -> None:
    clock, table, job = table_with_job()
    assert table.busy_names() == {"a", "b"}
    clock.advance(1001)
    assert table.busy_names() == set()
    with pytest.raises(JobNotFound, match="it ended, or the server was restarted"):
        table.find(job.job_id)


def test_every_look_at_a_job_renews_its_lease() -> None:
    clock, table, job = table_with_job()
    for _ in range(5):
        clock.advance(900)
        assert table.find(job.job_id) is job


def test_a_job_that_is_being_committed_does_not_expire() -> None:
    clock, table, job = table_with_job(tasks=1)
    table.put_result(job, 0, "result")
    table.begin_commit(job)
    clock.advance(5000)
    assert table.busy_names() == {"a", "b"}
    with pytest.raises(JobConflict, match="is being committed"):
        table.begin_commit(job)
    with pytest.raises(JobConflict, match="is being committed"):
        table.give_up(job)
    with pytest.raises(JobConflict, match="is being committed"):
        table.put_result(job, 0, "result")


def test_a_commit_needs_the_result_of_every_task() -> None:
    _, table, job = table_with_job()
    table.put_result(job, 0, "result")
    with pytest.raises(JobConflict, match="no result of task 1"):
        table.begin_commit(job)


def test_the_last_result_of_a_task_wins() -> None:
    _, table, job = table_with_job(tasks=1)
    table.put_result(job, 0, "first")
    table.put_result(job, 0, "last")
    assert table.begin_commit(job) == ["last"]
    assert job.results_but(1) == {0: "last"}
    assert job.results_but(0) == {}


def test_what_jobs_hold_is_known_by_their_kind() -> None:
    clock, table, _ = table_with_job()
    clock.advance(600)
    index = table.start("index", plan("b", "c"))
    table.start("index", plan("d"))
    assert table.held() == {"compact": {"a", "b"}, "index": {"b", "c", "d"}}
    assert table.busy_names() == {"a", "b", "c", "d"}
    table.give_up(index)
    clock.advance(600)  # the lease of the first is over
    assert table.held() == {"index": {"d"}}


def test_a_committed_job_is_remembered_for_who_did_not_hear_the_answer() -> None:
    _, table, job = table_with_job(tasks=1)
    table.end(job, committed=True)
    assert table.is_committed(job.job_id)
    assert table.busy_names() == set()


def test_the_oldest_job_bounds_what_may_be_cleared_away() -> None:
    clock, table, job = table_with_job()
    clock.advance(500)
    table.start("compact", plan("c"))
    assert table.oldest_start_ms() == job.started_ms
    table.end(job, committed=False)
    assert table.oldest_start_ms() == job.started_ms + 500
    clock.advance(1001)
    assert table.oldest_start_ms() is None


def test_a_task_that_the_job_does_not_have_is_not_found() -> None:
    _, _, job = table_with_job()
    assert job.task(1) == b"task"
    with pytest.raises(JobNotFound, match="tasks 0 to 1"):
        job.task(2)
