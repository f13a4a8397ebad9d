"""The one Spark session of the process: quiet, without a user interface, on loopback if local."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[2]"  # compaction is never urgent: it leaves the other cores to the server

_QUIET_LOGS = Path(__file__).with_name("log4j2.properties")
_ALWAYS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_QUIET_LOGS.as_uri()}",
}
_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",  # the JVM only schedules; rows never enter it
}


def end_children() -> None:
    """The JVM of a session that was not waited for. It has nothing to lose yet."""
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def start_session(master: str, settings: Mapping[str, str]) -> SparkSession:
    """`settings` are Spark's own and win over ours. Takes seconds: a JVM starts."""
    wanted = {**_ALWAYS, **(_LOCAL if master.startswith("local") else {}), **settings}
    builder = SparkSession.builder.master(master).appName("millstream pipeline")
    for name, value in wanted.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    if master.startswith("local"):
        session.sparkContext.pythonExec = sys.executable  # not whatever python3 is on the path
    return session
