"""Jobs on the one Spark session of all tests: what a pipeline does, without another start."""

from __future__ import annotations

from pyspark.sql import SparkSession

from millstream.pipeline.runner import Runner, RunSettings
from millstream.tier.objects import ColdSettings


def runner_for(url: str, cold: ColdSettings, session: SparkSession) -> Runner:
    """The keys of an S3 store are flags here: the environment belongs to all tests."""
    flags: dict[str, str | None] = {}
    if cold.access_key_id:
        flags["cold_access_key_id"] = cold.access_key_id
        flags["cold_secret_access_key"] = cold.secret_access_key
    return Runner(RunSettings(url, once=True, cold_flags=flags), session)
