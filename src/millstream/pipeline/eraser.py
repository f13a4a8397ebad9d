"""Rewrites segments that hold dead content for too long: without Spark, one task after the other.

The server starts it when no pipeline has done so in time. Killed anywhere it can be started again.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Mapping
from types import FrameType

import structlog

from millstream.config import build_config
from millstream.formats.jobs import JobOffer
from millstream.pipeline.job_client import JobClient, JobRefused, ServerAway
from millstream.pipeline.rewrite import Target, rewrite
from millstream.tier.objects import ColdSettings, ObjectStore, cold_settings

KIND = "erase"
FAILED, DONE = 1, 0  # exit codes

logger = structlog.get_logger("millstream.pipeline")


def run_eraser(
    server: str,
    cold_flags: Mapping[str, str | None],
    *,
    until_input_ends: bool,
    key: str | None = None,
) -> int:
    """Until the server has no such job, or SIGTERM or SIGINT. The exit code."""
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if until_input_ends:
        threading.Thread(target=_stop_at_end_of_input, args=(stopped,), daemon=True).start()
    client = JobClient(server, stopped, key)
    try:
        while not stopped.is_set() and run_one(client, cold_flags, stopped):
            pass
    except (JobRefused, ServerAway, OSError) as error:
        logger.error("dead content stays for now; it will be tried again", error=str(error))
        return FAILED
    return DONE


def _stop_at_end_of_input(stopped: threading.Event) -> None:
    while sys.stdin.buffer.read(4096):
        pass
    stopped.set()


def run_one(
    client: JobClient, cold_flags: Mapping[str, str | None], stopped: threading.Event
) -> bool:
    """Whether there was a job, which is committed then; one that was stopped is given up."""
    offer = client.ask(KIND)
    if offer is None:
        return False
    is_committed = False
    try:
        store = ObjectStore(_cold(offer, cold_flags))
        for number in range(offer.tasks):
            if stopped.is_set():
                return False
            task = client.load_task(offer.job, number)
            client.store_result(offer.job, number, rewrite(task, store, Target.of(offer)))
        client.commit(offer.job)
        is_committed = True
    finally:
        if not is_committed:
            _give_up(client, offer)
    logger.info(
        "dead content is gone", job=offer.job, shard=offer.shard, segments=len(offer.inputs)
    )
    return True


def _cold(offer: JobOffer, cold_flags: Mapping[str, str | None]) -> ColdSettings:
    """Where the server says, unless our own settings differ; reached with our own keys."""
    place = offer.cold
    fallbacks = {
        "cold": place.url,
        "cold_endpoint": place.endpoint,
        "cold_region": place.region,
    }
    known = {name: value for name, value in fallbacks.items() if value}
    return cold_settings(build_config(cold_flags, fallbacks=known))


def _give_up(client: JobClient, offer: JobOffer) -> None:
    try:
        client.give_up(offer.job)
    except (ServerAway, JobRefused) as error:
        logger.info("the job ends by its lease", job=offer.job, reason=str(error))
