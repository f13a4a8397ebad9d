"""What the journal says decides; where checkpoints, evictions and restarts fall changes nothing."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from millstream.formats.runs import Run, Segment
from millstream.formats.wal import crc32c
from millstream.state.commands import (
    AnyCommand,
    Append,
    CreateStream,
    NoOp,
    PublishRuns,
    ReplaceSegments,
    TrimStream,
)
from tests.property.swap_histories import SHARDS, Director, Store

SEEDS = range(16)
STEPS = 200


@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_ends_the_same_wherever_checkpoints_fall(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    plain, random = Store(tmp_path / "plain"), Random(seed)
    commands = Director(tmp_path / "first", random).play(STEPS)
    interrupted, careful = Store(tmp_path / "interrupted"), Store(tmp_path / "careful")
    chance = random.choice([0.0, 0.1, 0.3])
    for number, command in enumerate(commands):
        is_swap = isinstance(command, ReplaceSegments)
        if is_swap:
            careful.checkpoint()
        answers = {store.apply(command) for store in (plain, interrupted, careful)}
        assert len(answers) == 1, f"{number}: {command}"
        if is_swap:  # now: what a swap did is soon dead as well
            assert interrupted.all() == careful.all(), f"{number}: {command}"
        if random.random() < chance:
            interrupted.checkpoint()
        if random.random() < 0.2:
            interrupted.evict()
        if random.random() < 0.1:
            interrupted.restart()
    expected = plain.all()
    assert interrupted.all() == expected
    interrupted.restart()
    interrupted.evict()
    assert interrupted.all() == expected


@pytest.mark.parametrize("checkpoint_after", [None, "flushes", "trim", "swap"])
def test_what_died_meanwhile_does_not_stop_a_swap(
    tmp_path: Path, checkpoint_after: str | None
) -> None:
    """Trim, checkpoint, swap and trim, swap, checkpoint are the same."""
    store, shard = Store(tmp_path), crc32c(b"b/a") % SHARDS
    store.apply(CreateStream(1, b"b/a", b"text/plain"))
    [stream_id] = store.machine.by_id
    names = [f"segments/{shard:04d}/{number:013d}-00.parquet" for number in range(3)]
    one, two, new = (Segment(name, shard, 100, 10, 1, 1) for name in names)
    for number, segment in enumerate((one, two)):
        store.apply(Append(1, stream_id, b"x", b"", 1))
        store.apply(PublishRuns(1, segment, [Run(stream_id, number, number, 1, 1, 0, 0, 7)]))
    steps: dict[str, AnyCommand] = {
        "flushes": NoOp(1),
        "trim": TrimStream(1, stream_id, 1, 1),
        "swap": ReplaceSegments(
            1, shard, names[:2], [new], [[Run(stream_id, 0, 0, 2, 2, 0, 0, 7)]], 0
        ),
    }
    for step, command in steps.items():
        answer = store.apply(command)
        if step == checkpoint_after:
            store.checkpoint()
    assert "ACCEPTED" in answer
    store.checkpoint()
    assert [use.segment.name for use in store.catalog.segments()] == [new.name]
    assert sorted(garbage.name for garbage in store.catalog.garbage()) == names[:2]


def test_the_histories_are_worth_it(tmp_path: Path) -> None:
    """Swaps happen, are refused, and lose some of what they carry."""
    accepted = refused = 0
    for seed in list(SEEDS)[:8]:
        director = Director(tmp_path / f"{seed}", Random(seed))
        commands = director.play(STEPS)
        for command, answer in zip(commands, director.answers, strict=True):
            if isinstance(command, ReplaceSegments):
                accepted += "ACCEPTED" in answer
                refused += "JobConflict" in answer
    print(f"{accepted} swaps, {refused} refused")
    assert accepted > 50
    assert refused > 10
