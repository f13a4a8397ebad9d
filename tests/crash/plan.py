"""What the writers of one round will do, drawn from the seed alone.

A plan is an endless list of intentions; what an intention becomes ("delete my stream": there is
none yet, so create it) depends on the answers, but the dice never do. So one seed always means the
same intentions in the same order per writer, and only the moment of the kill is up to the clock.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from tests.crash.content import Kind
from tests.support.server import LOCAL_WEBHOOKS

WRITERS = 4
LOGS = {"log-binary": Kind.BINARY, "log-text": Kind.TEXT, "log-json": Kind.JSON}
FAMILY = ("life", "source", "fork-a", "fork-b", "fork-c", "sequenced", "kept")  # one set per writer
SIZE_BYTES_MAX = 200_000


class Intent(Enum):
    APPEND_LOG = auto()
    APPEND_LOG_NEW_EPOCH = auto()
    APPEND_LOG_PLAIN = auto()  # no producer: at most once
    LEAVE_MID_BODY_THEN_RETRY = auto()
    LEAVE_BEFORE_ANSWER_THEN_RETRY = auto()
    LEAVE_BEFORE_ANSWER = auto()
    LEAVE_MID_BODY = auto()
    APPEND_OWN = auto()
    APPEND_SEQUENCED = auto()
    APPEND_TO_ANOTHER = auto()  # races with its owner's close, delete and create
    APPEND_AND_CLOSE = auto()
    CLOSE = auto()
    CREATE = auto()
    DELETE = auto()
    FORK = auto()
    DELETE_FORK = auto()
    CREATE_BRIEF = auto()


WEIGHTS = {
    Intent.APPEND_LOG: 30,
    Intent.APPEND_LOG_NEW_EPOCH: 2,
    Intent.APPEND_LOG_PLAIN: 3,
    Intent.LEAVE_MID_BODY_THEN_RETRY: 2,
    Intent.LEAVE_BEFORE_ANSWER_THEN_RETRY: 3,
    Intent.LEAVE_BEFORE_ANSWER: 2,
    Intent.LEAVE_MID_BODY: 2,
    Intent.APPEND_OWN: 20,
    Intent.APPEND_SEQUENCED: 6,
    Intent.APPEND_TO_ANOTHER: 6,
    Intent.APPEND_AND_CLOSE: 2,
    Intent.CLOSE: 2,
    Intent.CREATE: 6,
    Intent.DELETE: 4,
    Intent.FORK: 8,
    Intent.DELETE_FORK: 4,
    Intent.CREATE_BRIEF: 0.3,
}


@dataclass(frozen=True)
class Operation:
    """One intention and the dice it may use; all dice are drawn whether used or not."""

    number: int
    intent: Intent
    size_bytes: int
    messages: int
    pick: float  # which stream
    place: float  # where: the fork offset, the cut of a body
    twist: float  # everything else


def plan_operations(seed: int, generation: int, writer: int) -> Iterator[Operation]:
    dice = random.Random(f"operations {seed} {generation} {writer}")
    intents, weights = list(WEIGHTS), list(WEIGHTS.values())
    number = 0
    while True:
        number += 1
        yield Operation(
            number,
            dice.choices(intents, weights)[0],
            _draw_size(dice),
            dice.choice([1, 1, 1, 2, 3, 8, 20]),
            dice.random(),
            dice.random(),
            dice.random(),
        )


def _draw_size(dice: random.Random) -> int:
    span = dice.choices(
        [(1, 16), (16, 1_000), (1_000, 20_000), (20_000, SIZE_BYTES_MAX)], [10, 60, 25, 3]
    )[0]
    return dice.randint(*span)


class Ending(Enum):
    KILL = auto()
    STOP = auto()  # SIGTERM, so that a clean stop in between is part of the story


@dataclass(frozen=True)
class Generation:
    """One life of the server: how it is started, how often start-up is cut short, how it ends."""

    number: int
    flags: tuple[str, ...]
    start_up_kills: tuple[float, ...]  # seconds after spawn; negative: at that many file changes
    active_seconds: float
    ending: Ending
    readers: tuple[int, ...]  # dice for each reader


def plan_generations(seed: int, count: int, flags: tuple[str, ...] = ()) -> list[Generation]:
    dice = random.Random(f"generations {seed}")
    return [_plan_generation(dice, number, flags) for number in range(count)]


def _plan_generation(dice: random.Random, number: int, flags: tuple[str, ...]) -> Generation:
    segment_bytes = dice.choice([4_096, 16_384, 32_768, 65_536])
    checkpoint_bytes = dice.choice([60_000, 200_000, 200_000, 1_000_000])
    kills = [_draw_start_up_kill(dice) for _ in range(dice.choice([0, 1, 1, 2]))]
    return Generation(
        number=number,
        flags=(
            "--wal-segment-bytes",
            str(segment_bytes),
            "--checkpoint-wal-bytes",
            str(checkpoint_bytes),
            "--long-poll-timeout",
            "0.5",
            *LOCAL_WEBHOOKS,
            *flags,
        ),
        start_up_kills=tuple(kills),
        active_seconds=dice.uniform(0.1, 0.9),
        ending=Ending.STOP if dice.random() < 0.1 else Ending.KILL,
        readers=tuple(dice.randrange(2**32) for _ in range(3)),
    )


def _draw_start_up_kill(dice: random.Random) -> float:
    early, late = dice.uniform(0.005, 0.1), dice.uniform(0.1, 0.6)
    return dice.choice([early, late, -float(dice.choice([1, 1, 2, 3]))])
