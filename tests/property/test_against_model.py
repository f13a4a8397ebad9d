"""The server against a model that is obviously right, through HTTP, restarts included.

A failure prints its operations as a value and a blob for `@reproduce_failure`. Once understood it
stays here as an `@example` with a line of story.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings

from tests.property.driver import Driver, Server
from tests.property.operations import Append, Body, Chapter, Story, stories

# Hypothesis may shrink for five minutes before it prints what it found.
pytestmark = pytest.mark.timeout(600)
COMMON = settings(
    deadline=None,
    print_blob=True,
    # Not Phase.explain: it traces every line, and what it says about HTTP is not worth the wait.
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


# A body that is not JSON was judged before the producer's gap, and answered 400 instead of 409.
GAP_BEFORE_JSON = Story(
    ("application/json",),
    (
        Chapter(
            (
                Append(
                    stream=0,
                    body=Body(text=b"a", binary=b"\x00", values=(b"1",), repeat=1),
                    broken=False,
                    wrong_kind=True,
                    close=False,
                    producer="p",
                    epoch_step=0,
                    seq_step=2,
                    seq=None,
                ),
            ),
            ending="kill -9",
        ),
    ),
)


@settings(COMMON, max_examples=300)
@given(story=stories(1, 40, ("goes on",)))
@example(story=GAP_BEFORE_JSON)
def test_the_memory_journal_agrees_with_the_model(memory_server: Server, story: Story) -> None:
    Driver(memory_server).tell(story)


@settings(COMMON, max_examples=40)
@given(story=stories(3, 20, ("SIGTERM", "kill -9")))
@example(story=GAP_BEFORE_JSON)
def test_the_durable_journal_agrees_with_the_model_across_restarts(
    wal_server: Server, story: Story
) -> None:
    Driver(wal_server).tell(story)


@settings(COMMON, max_examples=8)
@given(story=stories(3, 20, ("SIGTERM", "kill -9")))
def test_a_server_with_nearly_everything_cold_agrees_with_the_model_across_restarts(
    cold_server: Server, story: Story
) -> None:
    Driver(cold_server).tell(story)


@settings(COMMON, max_examples=25)
@given(story=stories(2, 40, ("goes on", "goes on", "goes on", "kill -9")))
def test_a_server_with_nearly_everything_cold_agrees_with_the_model_as_it_goes(
    cold_server: Server, story: Story
) -> None:
    Driver(cold_server).tell(story)


@settings(COMMON, max_examples=6)
@given(story=stories(2, 20, ("goes on", "SIGTERM", "kill -9")))
def test_a_server_with_nearly_everything_on_s3_agrees_with_the_model(
    s3_server: Server, story: Story
) -> None:
    Driver(s3_server).tell(story)
