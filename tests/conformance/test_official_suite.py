"""The protocol's official conformance suite (npm), whole and unchanged.

Once per journal, and twice with nearly everything cold: in a folder, and on a real S3 server.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.seaweed import seaweed as seaweed
from tests.support.server import LOCAL_WEBHOOKS, MOSTLY_COLD, NO_OWN_STREAMS, running_server

SUITE_DIR = Path(__file__).parent / "official"
PASSED, SKIPPED = 338, 0  # with the opt-in group "Reserved subscription APIs"


@pytest.mark.official
@pytest.mark.parametrize("storage", ["memory", "wal", "cold", "cold-s3"])
def test_the_server_passes_the_whole_official_suite(
    storage: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    data_dir = None if storage == "memory" else tmp_path / "data"
    # Two tests of the suite wait for a real long-poll timeout inside vitest's limit of 5 s.
    flags = ["--long-poll-timeout", "0.5", *LOCAL_WEBHOOKS]
    if storage.startswith("cold"):
        flags += MOSTLY_COLD
    if storage == "cold-s3":
        # Each append is an upload of its own here, and a record of each creation would be another:
        # twice as many as vitest's limits allow for.
        flags += [*request.getfixturevalue("seaweed").flags("official"), *NO_OWN_STREAMS]
    with running_server(data_dir, *flags) as server:
        started = time.monotonic()
        report = run_suite(server.url, tmp_path / "report.json")
        seconds = time.monotonic() - started
    counts = {status: count(report, status) for status in ("passed", "failed", "pending")}
    print(f"\nofficial suite, {storage}: {counts} in {seconds:.1f} s")
    failures = describe_failures(report)
    assert counts == {"passed": PASSED, "failed": 0, "pending": SKIPPED}, failures


def run_suite(url: str, report_path: Path) -> dict[str, Any]:
    command = ["npx", "vitest", "run", "suite.test.ts", "--reporter=json"]
    run = subprocess.run(
        [*command, f"--outputFile={report_path}"],
        cwd=SUITE_DIR,
        env={**os.environ, "CONFORMANCE_TEST_URL": url, "CI": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert report_path.exists(), f"vitest wrote no report:\n{run.stdout}\n{run.stderr}"
    report: dict[str, Any] = json.loads(report_path.read_text())
    return report


def results(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [result for file in report["testResults"] for result in file["assertionResults"]]


def count(report: dict[str, Any], status: str) -> int:
    # vitest says "skipped" for a test in a group that is off; older reports say "pending".
    names = {"pending", "skipped", "todo"} if status == "pending" else {status}
    return sum(result["status"] in names for result in results(report))


def describe_failures(report: dict[str, Any]) -> str:
    return "\n\n".join(
        f"{result['fullName']}\n" + "\n".join(result["failureMessages"])
        for result in results(report)
        if result["status"] == "failed"
    )
