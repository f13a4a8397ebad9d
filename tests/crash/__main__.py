"""The long hunt: `python -m tests.crash --seeds 100`, or `--seed 42` to replay one round."""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.crash.injection import Injection
from tests.crash.rounds import RoundFailed, run_round
from tests.crash.variants import TROUBLED, VARIANTS
from tests.support.seaweed import SeaweedFS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--seeds", type=int, default=None, help="how many rounds (default 1)")
    parser.add_argument("--seed", type=int, help="the first seed; alone, replays that one round")
    parser.add_argument("--generations", type=int, default=6, help="lives of the server per round")
    parser.add_argument("--folder", type=Path, help="keep data here (default: a temporary folder)")
    parser.add_argument(
        "--variant", choices=[*VARIANTS, "all"], default="all", help="see tests/crash/variants.py"
    )
    parser.add_argument("--s3", action="store_true", help="cold content goes to a SeaweedFS")
    parser.add_argument(
        "--inject", action="store_true", help="errors everywhere besides kills, see injection.py"
    )
    parser.add_argument("--kills", type=int, help="rounds until there were so many")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        seaweed: SeaweedFS | None = None
        if arguments.s3:
            seaweed = stack.enter_context(contextlib.closing(SeaweedFS()))
            seaweed.start()
        return hunt(arguments, seaweed)


def hunt(arguments: argparse.Namespace, seaweed: SeaweedFS | None) -> int:
    first = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(10**9)
    count = arguments.seeds or (10**6 if arguments.kills else 1)
    variants = list(VARIANTS) if arguments.variant == "all" else [arguments.variant]
    failed = list[tuple[int, str]]()
    kills = acknowledged = 0
    stops = progress = swaps = wakes = injected = 0
    began = time.monotonic()
    for number, seed in enumerate(range(first, first + count), 1):
        if arguments.kills is not None and kills >= arguments.kills:
            count = number - 1
            break
        variant = "troubled" if arguments.inject else variants[seed % len(variants)]
        flags = TROUBLED if arguments.inject else VARIANTS[variant]
        if seaweed is not None:
            flags += tuple(seaweed.flags(f"crash-{seed}-{number}"))
        print(f"seed {seed} ({variant}): round {number} of {count}", flush=True)
        if arguments.folder is None:
            folder = Path(tempfile.mkdtemp(prefix=f"millstream-crash-{seed}-"))
        else:
            folder = arguments.folder / f"seed-{seed}"
            folder.mkdir(parents=True)
        injection = Injection(seed, folder) if arguments.inject else None
        try:
            report = run_round(
                seed, folder, arguments.generations, flags=flags, injection=injection
            )
        except RoundFailed as failure:
            failed.append((seed, variant))
            print(f"seed {seed} FAILED: {failure}", flush=True)
            continue
        kills += report.kills
        acknowledged += report.acknowledged
        shutil.rmtree(folder)
        if injection is not None:
            stops, progress = stops + injection.fail_stops, progress + injection.progress_checks
            swaps, wakes = swaps + injection.swaps, wakes + injection.wakes
            injected += injection.injected
            print(
                f"  {injected} injected errors logged, {stops} stops after an error in apply,"
                f" {progress} times progress was asked for, {swaps} swaps, {wakes} wakes"
            )
        minutes = (time.monotonic() - began) / 60
        print(
            f"  {kills} kills, {acknowledged} acknowledged requests, {len(failed)} failed rounds,"
            f" {minutes:.1f} minutes",
            flush=True,
        )
    for seed, variant in failed:
        how = "--inject" if arguments.inject else f'--variant "{variant}"'
        again = f"--seed {seed} {how} --generations {arguments.generations}"
        again += " --s3" if arguments.s3 else ""
        print(f"replay with: python -m tests.crash {again}")
    print(f"{count - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
