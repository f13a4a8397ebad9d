"""`python -m bench`: choose, run, report. See the package docstring for the map.

Standard output carries one JSON line per case and server, then the Markdown report; both also go to
bench/results/latest.json and latest.md (smoke.json, smoke.md). Progress goes to standard error.
"""

import argparse
import json
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from bench.errors import BenchError
from bench.load import WRK_MISSING, wrk_installed
from bench.measure import require_real_disk
from bench.plan import Plan
from bench.report import render
from bench.results import Results, describe_machine
from bench.runner import run_cases
from bench.servers import KINDS, ServerKind, base_kind, why_not_available
from bench.targets import check_targets
from bench.workloads import WORKLOADS

RESULTS_DIR = Path(__file__).with_name("results")
SMOKE_SERVERS = ["millstream", "reference-file"]
WRK_WORKLOADS = {
    *("append", "append_varied", "append_flushing", "append_batch", "json_batch", "listing"),
}


def main() -> int:
    options = _parse_options()
    signal.signal(signal.SIGTERM, _interrupt)
    # A shell starts background jobs with SIGINT ignored; a benchmark must end when asked to.
    signal.signal(signal.SIGINT, _interrupt)
    _raise_open_files_limit()
    RESULTS_DIR.mkdir(exist_ok=True)
    work_root = Path(tempfile.mkdtemp(prefix="work-", dir=options.work_dir or RESULTS_DIR))
    try:
        return _run(options, work_root)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(work_root, ignore_errors=True)


def _run(options: argparse.Namespace, work_root: Path) -> int:
    require_real_disk(work_root)
    plan = _plan(options)
    workloads = options.only or list(WORKLOADS)
    if not plan.smoke and not wrk_installed() and WRK_WORKLOADS & set(workloads):
        raise BenchError(WRK_MISSING)
    kinds = _available(_kinds(options), plan)
    cases = [case for name in workloads for case in WORKLOADS[name](plan)]
    machine = describe_machine(work_root)
    results = Results()
    for result in run_cases(cases, kinds, plan, work_root):
        results.add(result)
        print(result.to_json(), flush=True)
    _report(results, machine, plan)
    return _exit_code(results, plan)


def _report(results: Results, machine: dict[str, str], plan: Plan) -> None:
    markdown = render(results, machine, plan.repeat)
    print(f"\n{markdown}", end="", flush=True)
    # A smoke run must not replace the table that somebody waited for.
    name = "smoke" if plan.smoke else "latest"
    (RESULTS_DIR / f"{name}.md").write_text(markdown)
    document = {
        "machine": machine,
        "plan": asdict(plan),
        "results": [asdict(result) for result in results.all],
        "targets": [asdict(check) | {"verdict": check.verdict} for check in check_targets(results)],
    }
    (RESULTS_DIR / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n")


def _exit_code(results: Results, plan: Plan) -> int:
    """A measurement that failed is an error; in a smoke run so is a single refused request."""
    failed = any(result.errors for result in results.all)
    faulty = plan.smoke and any(result.faults() for result in results.all)
    return 1 if failed or faulty else 0


def _kinds(options: argparse.Namespace) -> list[ServerKind]:
    """With a base to compare with, just the two: whoever changes something wants to know soon."""
    default = SMOKE_SERVERS if options.smoke else list(KINDS)
    base = [] if options.base is None else [base_kind(options.base.resolve())]
    return base + [KINDS[name] for name in options.servers or (["millstream"] if base else default)]


def _available(kinds: list[ServerKind], plan: Plan) -> list[ServerKind]:
    """The servers that can run here; only a smoke run may do without one."""
    available = []
    for kind in kinds:
        reason = why_not_available(kind)
        if reason is None:
            available.append(kind)
        elif plan.smoke:
            print(f"bench: leaving out {kind.name}: {reason}", file=sys.stderr)
        else:
            raise BenchError(f"{kind.name}: {reason}")
    return available


def _plan(options: argparse.Namespace) -> Plan:
    seconds, repeat = (1, 1) if options.smoke else (5, 3)
    return Plan(options.seconds or seconds, options.repeat or repeat, options.smoke)


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure Millstream beside the Node reference server."
    )
    parser.add_argument(
        "--smoke", action="store_true", help="a second of everything at tiny size; must just work"
    )
    parser.add_argument(
        "--only", type=_names_of(WORKLOADS), metavar="W,...", help=f"of {', '.join(WORKLOADS)}"
    )
    parser.add_argument(
        "--servers", type=_names_of(KINDS), metavar="S,...", help=f"of {', '.join(KINDS)}"
    )
    parser.add_argument(
        "--base", type=Path, metavar="DIR", help="another checkout (git worktree) to compare with"
    )
    parser.add_argument(
        "--seconds",
        type=_positive,
        help="length of one timed measurement (5); fan_out takes twice that, json_batch at most 3, "
        "the reference servers three fifths",
    )
    parser.add_argument("--repeat", type=_positive, help="how often each figure is taken (3)")
    parser.add_argument(
        "--work-dir", type=Path, help="where data directories go; a real disk (bench/results)"
    )
    return parser.parse_args()


def _names_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}")
        return names

    return parse


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _raise_open_files_limit() -> None:
    """Thousands of connections; the servers inherit the limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _interrupt(number: int, _frame: FrameType | None) -> None:
    # As an exception, so that servers are ended and directories removed on the way out.
    raise KeyboardInterrupt


if __name__ == "__main__":
    raise SystemExit(main())
