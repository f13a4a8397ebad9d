from __future__ import annotations

from typing import Any

import pytest

from millstream.schemas.touch_settings import TouchTemplates
from millstream.touch.templates import Declared, Templates

TTL_MS = 1000


def a_template(entity: str = "e", name: str = "a", encoding: Any = "string") -> Declared:
    return Declared(entity, ((name, encoding),))


def activate(templates: Templates, declared: Declared, now_ms: int = 0) -> Any:
    return templates.activate(declared, 5, now_ms, TTL_MS)


def test_to_activate_again_refreshes_and_hears_of_no_more() -> None:
    templates = Templates(TouchTemplates(), 0)
    declared = a_template()
    activate(templates, declared)
    again, gone = templates.activate(declared, 9, 800, 2000)
    template = templates.get(declared.template_id)
    assert template is not None
    assert (again.denied, again.is_recovered, list(gone)) == (None, False, [])
    assert (template.active_from, template.seen_ms, template.ttl_ms) == (5, 800, 2000)
    assert len(templates) == 1


def test_the_same_fields_in_another_encoding_are_refused() -> None:
    templates = Templates(TouchTemplates(), 0)
    activate(templates, a_template())
    assert activate(templates, a_template(encoding="int64"))[0].denied == "invalid"


def test_only_so_many_new_ones_a_minute() -> None:
    templates = Templates(TouchTemplates(activation_rate_limit_per_minute=60), 0)
    outcomes = [activate(templates, a_template(str(n)))[0].denied for n in range(62)]
    assert outcomes == [None] * 60 + ["rate_limited"] * 2
    assert activate(templates, a_template("0"))[0].denied is None  # is known already
    assert activate(templates, a_template("60"), 1000)[0].denied is None
    assert activate(templates, a_template("61"), 1000)[0].denied == "rate_limited"


def test_no_limit_is_any_number() -> None:
    templates = Templates(TouchTemplates(activation_rate_limit_per_minute=0), 0)
    assert all(activate(templates, a_template(str(n)))[0].denied is None for n in range(500))


@pytest.mark.parametrize("per", ["entity", "stream"])
def test_the_least_recently_seen_make_room(per: str) -> None:
    limit = {f"max_active_templates_per_{per}": 2}
    templates = Templates(TouchTemplates(**limit), 0)
    first, second, third = (a_template(name=name) for name in "abc")
    activate(templates, first)
    activate(templates, second)
    templates.see(first.template_id, 10)
    _, gone = activate(templates, third)
    assert [template.template_id for template in gone] == [second.template_id]
    assert {each.template_id for each in templates.of_entity("e")} == {
        first.template_id,
        third.template_id,
    }
    back, _ = activate(templates, second)
    assert back.is_recovered


def test_what_was_not_seen_for_its_time_is_told() -> None:
    templates = Templates(TouchTemplates(), 0)
    declared, other = a_template(), a_template("f")
    activate(templates, declared)
    activate(templates, other, 500)
    assert templates.unseen(TTL_MS) == []
    [unseen] = templates.unseen(TTL_MS + 1)
    assert unseen.template_id == declared.template_id
    templates.retire(unseen)
    assert templates.get(declared.template_id) is None
    assert list(templates.of_entity("e")) == []
    templates.see(declared.template_id, 0)  # is none any more


def test_after_very_many_any_may_have_been_retired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.touch.templates.TOUCH_RETIRED_KEPT", 2)
    limits = TouchTemplates(max_active_templates_per_stream=1)
    templates = Templates(limits, 0)
    recovered = [activate(templates, a_template(str(n)))[0].is_recovered for n in range(6)]
    assert recovered == [False, False, False, False, True, True]
