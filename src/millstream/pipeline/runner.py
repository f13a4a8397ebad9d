"""Asks for jobs, runs them on Spark, commits; the process behind `millstream pipeline run`.

Killed anywhere it can be started again: what it did not commit never happened, and the server
forgets a job that shows no life. Two at once get different jobs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from types import FrameType

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from millstream.config import build_config
from millstream.formats.jobs import JobOffer
from millstream.limits import MIB
from millstream.pipeline.compaction import KIND, compaction_frame
from millstream.pipeline.job_client import JobClient, JobRefused, ServerAway
from millstream.pipeline.progress import job_progress
from millstream.pipeline.session import DEFAULT_MASTER, end_children, start_session
from millstream.tier.objects import ColdSettings, cold_settings

LOOK_SECONDS = 0.2  # between two looks at how far Spark is
FAILED, STOPPED = 1, 0  # exit codes

logger = structlog.get_logger("millstream.pipeline")


@dataclass(frozen=True)
class RunSettings:
    server: str
    master: str = DEFAULT_MASTER
    once: bool = False
    until_input_ends: bool = False
    interval_seconds: float = 60.0
    cold_flags: Mapping[str, str | None] = field(default_factory=dict)
    spark: Mapping[str, str] = field(default_factory=dict)
    key: str | None = field(default=None, repr=False)  # the access key, where the server wants one


def run_pipeline(settings: RunSettings) -> int:
    """Until SIGTERM or SIGINT; with `once` until nothing is worth doing. The exit code."""
    runner = Runner(settings)

    def stop(number: int, frame: FrameType | None) -> None:
        runner.stop()
        if runner.is_starting:
            raise Stopped

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if settings.until_input_ends:
        threading.Thread(target=_stop_at_end_of_input, args=(runner,), daemon=True).start()
    try:
        return runner.run()
    except Stopped:
        return STOPPED
    finally:
        runner.close()


def _stop_at_end_of_input(runner: Runner) -> None:
    while sys.stdin.buffer.read(4096):
        pass
    runner.stop()
    os.kill(os.getpid(), signal.SIGTERM)  # which interrupts a start, too


class Stopped(BaseException):
    """Told to end while Spark was starting, which takes seconds and cannot be asked to stop."""


class Runner:
    """One long-lived session, made when the first job is there, unless one is given."""

    def __init__(self, settings: RunSettings, session: SparkSession | None = None) -> None:
        self._settings = settings
        self._stopped = threading.Event()
        self._client = JobClient(settings.server, self._stopped, settings.key)
        self._session = session
        self.is_starting = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="spark")

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        if self._session is not None:
            with contextlib.suppress(Py4JError, OSError):  # its JVM may have been killed
                self._session.stop()

    def run(self) -> int:
        jobs = 0
        while not self._stopped.is_set():
            try:
                worked = self.run_one()
                jobs += worked
                if not jobs and self._settings.once and not self._stopped.is_set():
                    logger.info("nothing to do: the server has no job now")
            except JobRefused as refused:
                logger.warning("job not committed; it can be run again", reason=str(refused))
                worked = False
            except (ServerAway, PySparkException) as error:
                if self._stopped.is_set():
                    break
                logger.error("job failed; it can be run again", error=str(error))
                if self._settings.once:
                    return FAILED
                worked = False
            except (Py4JError, OSError) as error:
                logger.error("Spark is gone; start the pipeline again", error=str(error))
                return FAILED
            if not worked:
                if self._settings.once:
                    break
                self._stopped.wait(self._settings.interval_seconds)
        return STOPPED

    def run_one(self) -> bool:
        """Whether there was a job, which is committed then."""
        offer = self._client.ask(KIND)
        if offer is None:
            return False
        try:
            cold = self._cold(offer)
            session = self._session or self._start_session()
            started = time.monotonic()
            counts = self._rewrite(session, offer, cold)
            if counts is None:
                self._give_up(offer)
                return False
            self._client.commit(offer.job)
        except BaseException:
            self._give_up(offer)
            raise
        _tell(offer, counts, time.monotonic() - started)
        return True

    def _start_session(self) -> SparkSession:
        logger.info("starting Spark", master=self._settings.master)
        self.is_starting = True
        try:
            if self._stopped.is_set():  # a moment before it could interrupt us
                raise Stopped
            self._session = start_session(self._settings.master, self._settings.spark)
        except Stopped:
            end_children()
            raise
        finally:
            self.is_starting = False
        return self._session

    def _cold(self, offer: JobOffer) -> ColdSettings:
        """Where the server says, unless our own settings differ; reached with our own keys."""
        fallbacks = {
            "cold": offer.cold.url,
            "cold_endpoint": offer.cold.endpoint,
            "cold_region": offer.cold.region,
        }
        known = {name: value for name, value in fallbacks.items() if value}
        return cold_settings(build_config(self._settings.cold_flags, fallbacks=known))

    def _rewrite(
        self, session: SparkSession, offer: JobOffer, cold: ColdSettings
    ) -> list[Row] | None:
        """The counts of each task; None when we were told to stop."""
        context = session.sparkContext

        def collect() -> list[Row]:
            context.setJobGroup(offer.job, f"compact shard {offer.shard}", interruptOnCancel=True)
            return compaction_frame(session, self._client, offer, cold).collect()

        collected = self._thread.submit(collect)
        tracker = context.statusTracker()
        with job_progress(offer) as progress:
            while wait([collected], LOOK_SECONDS).not_done:
                if self._stopped.is_set():
                    context.cancelJobGroup(offer.job)
                    while wait([collected], LOOK_SECONDS).not_done:
                        context.cancelJobGroup(offer.job)  # it may not have begun before
                    return None
                stages = [
                    tracker.getStageInfo(stage)
                    for job in tracker.getJobIdsForGroup(offer.job)
                    for stage in getattr(tracker.getJobInfo(job), "stageIds", ())
                ]
                progress.show(sum(info.numCompletedTasks for info in stages if info is not None))
        return collected.result()

    def _give_up(self, offer: JobOffer) -> None:
        try:
            self._client.give_up(offer.job)
        except (ServerAway, JobRefused) as error:
            logger.info("the job ends by its lease", job=offer.job, reason=str(error))


def _tell(offer: JobOffer, counts: list[Row], seconds: float) -> None:
    wire_bytes = sum(row.wire_bytes for row in counts)
    logger.info(
        "job committed",
        job=offer.job,
        shard=offer.shard,
        reason=offer.reason,
        segments_before=len(offer.inputs),
        segments_after=sum(row.segments for row in counts),
        rows=sum(row.rows for row in counts),
        mib=round(wire_bytes / MIB, 1),
        seconds=round(seconds, 2),
        mib_per_second=round(wire_bytes / MIB / seconds, 1),
        task_seconds=round(sum(row.seconds for row in counts), 2),
        cpu_seconds=round(sum(row.cpu_seconds for row in counts), 2),
    )
