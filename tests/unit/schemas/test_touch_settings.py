from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import InvalidSchema
from millstream.schemas.documents import encode_document
from millstream.schemas.touch_settings import (
    TouchSettings,
    parse_touch,
    touch_document,
    touch_settings_of,
)
from millstream.state.rules import Rules

DEFAULTS = (
    b'{"enabled":true,"coarseIntervalMs":100,"touchCoalesceWindowMs":100,'
    b'"onMissingBefore":"coarse","lagDegradeFineTouchesAtSourceOffsets":5000,'
    b'"lagRecoverFineTouchesAtSourceOffsets":1000,"fineTouchBudgetPerBatch":2000,'
    b'"fineTokensPerSecond":200000,"fineBurstTokens":400000,'
    b'"lagReservedFineTouchBudgetPerBatch":200,'
    b'"memory":{"bucketMs":100,"filterPow2":22,"k":4,"pendingMaxKeys":100000,'
    b'"keyIndexMaxKeys":32,"hotKeyTtlMs":10000,"hotTemplateTtlMs":10000,"hotMaxKeys":1000000,'
    b'"hotMaxTemplates":4096},'
    b'"templates":{"defaultInactivityTtlMs":3600000,"lastSeenPersistIntervalMs":300000,'
    b'"gcIntervalMs":60000,"maxActiveTemplatesPerEntity":256,"maxActiveTemplatesPerStream":2048,'
    b'"activationRateLimitPerMinute":100}}'
)


def test_every_default_is_shown_in_order() -> None:
    assert encode_document(touch_document(parse_touch({"enabled": True}, "t"))) == DEFAULTS


def test_what_is_given_is_kept() -> None:
    given = {
        "enabled": True,
        "coarseIntervalMs": 0.5,
        "onMissingBefore": "skipBefore",
        "memory": {"k": 8},
        "templates": {"defaultInactivityTtlMs": 0},
    }
    settings = parse_touch(given, "t")
    assert settings is not None
    assert settings.coarse_interval_ms == 0.5
    assert settings.on_missing_before == "skipBefore"
    assert (settings.memory.k, settings.memory.bucket_ms) == (8, 100)
    assert settings.templates.default_inactivity_ttl_ms == 0


def test_what_is_switched_off_keeps_nothing_else() -> None:
    assert touch_document(parse_touch({"enabled": False, "coarseIntervalMs": 5}, "t")) == {
        "enabled": False
    }
    assert touch_document(parse_touch({}, "t")) == {"enabled": False}


def test_settings_of_a_stream() -> None:
    profile = encode_document({"kind": "state-protocol", "touch": {"enabled": True}})
    rules = Rules(revision=1, kind="state-protocol", profile=profile, touch=True)
    assert touch_settings_of(rules) == TouchSettings()
    assert touch_settings_of(Rules(revision=1)) is None


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "profile.touch must be an object"),
        ({"enabled": "yes"}, "profile.touch.enabled must be boolean"),
        ({"enabled": 1}, "profile.touch.enabled must be boolean"),
        ({"enabled": None}, "profile.touch.enabled must be boolean"),
        ({"storage": "memory"}, "profile.touch.storage is not supported"),
        ({"memory": {"size": 1}}, "profile.touch.memory.size is not supported"),
        ({"templates": {"x": 1}}, "profile.touch.templates.x is not supported"),
        ({"memory": 5}, "profile.touch.memory must be an object"),
        ({"coarseIntervalMs": 0}, "profile.touch.coarseIntervalMs must be > 0"),
        ({"touchCoalesceWindowMs": "5"}, "profile.touch.touchCoalesceWindowMs must be > 0"),
        (
            {"onMissingBefore": "skip"},
            "profile.touch.onMissingBefore must be coarse|skipBefore|error",
        ),
        ({"fineBurstTokens": -1}, "profile.touch.fineBurstTokens must be an integer >= 0"),
        ({"fineBurstTokens": 1.5}, "profile.touch.fineBurstTokens must be an integer >= 0"),
        ({"fineBurstTokens": True}, "profile.touch.fineBurstTokens must be an integer >= 0"),
        ({"fineBurstTokens": 2**60}, "profile.touch.fineBurstTokens must be an integer >= 0"),
        ({"memory": {"k": 9}}, "profile.touch.memory.k must be an integer in [1,8]"),
        ({"memory": {"k": 0}}, "profile.touch.memory.k must be an integer in [1,8]"),
        (
            {"memory": {"filterPow2": 31}},
            "profile.touch.memory.filterPow2 must be an integer in [10,30]",
        ),
        (
            {"memory": {"keyIndexMaxKeys": 1025}},
            "profile.touch.memory.keyIndexMaxKeys must be an integer in [1,1024]",
        ),
        ({"memory": {"bucketMs": 0}}, "profile.touch.memory.bucketMs must be an integer > 0"),
        ({"templates": {"gcIntervalMs": 0}}, "profile.touch.templates.gcIntervalMs must be > 0"),
        (
            {"templates": {"defaultInactivityTtlMs": -1}},
            "profile.touch.templates.defaultInactivityTtlMs must be >= 0",
        ),
    ],
)
def test_what_cannot_be_set(document: Any, message: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        parse_touch(document, "profile.touch")
    assert caught.value.message == message
