"""Values of policies, and the effective policy of a table."""

from datetime import time

import pytest

from catalog import policies
from catalog.errors import InvalidInput
from catalog.policies import Mode, Unit, rules, rules_by_name


def test_every_default_is_allowed_by_its_own_rule():
    for rule in rules():
        assert rule.check(rule.default) == rule.default
    assert len(rules_by_name()) == len(rules())


def test_by_default_no_action_changes_a_table():
    assert {rule.default for rule in rules() if rule.unit is Unit.MODE} <= {Mode.DRY_RUN, Mode.OFF}


@pytest.mark.parametrize(
    "values",
    [
        {"compaction": "on", "target_rows": 4096, "small_ratio": 0.3, "window_from": "22:30"},
        {"keep_for": 3600, "keep_versions": 1, "orphan_age": 86_400},
        {"window_from": "", "deleted_ratio": 1},
        {},
    ],
)
def test_valid_values_are_accepted(values):
    assert policies.check(values) == values


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            {"compactoin": "on"},
            "Policy setting 'compactoin' does not exist; the settings are compaction,",
        ),
        ({"compaction": "yes"}, "must be one of off, dry_run, on, not 'yes'"),
        ({"compaction": True}, "must be one of"),
        ({"compaction": None}, "must be one of"),
        ({"target_rows": 1000}, "whole number from 1024"),
        ({"target_rows": 4096.0}, "whole number"),
        ({"target_rows": "4096"}, "whole number"),
        ({"target_rows": True}, "whole number"),
        ({"target_rows": 2**60}, "whole number"),
        ({"orphan_age": 86_399}, "whole number from 86400"),
        ({"keep_for": 0}, "whole number from 3600"),
        ({"small_ratio": 1}, "number from 0.01 to 0.99"),
        ({"small_ratio": float("nan")}, "number from 0.01"),
        ({"small_ratio": "0.5"}, "number from 0.01"),
        ({"window_from": "25:00"}, "time such as 22:30"),
        ({"window_to": 7}, "time such as 22:30"),
        ({"max_jobs": 0}, "whole number from 1"),
    ],
)
def test_invalid_values_are_refused(values, text):
    with pytest.raises(InvalidInput, match=text):
        policies.check(values)


def test_the_nearest_policy_applies_and_is_the_source():
    policy = policies.effective(
        [
            ("(root)", {"compaction": "on", "keep_versions": 3, "no_such_rule": 1}),
            ("prod", {"keep_versions": 5}),
            ("prod.t", {"target_rows": 2048}),
        ]
    )
    assert (policy["compaction"], policy.values["compaction"].source) == ("on", "(root)")
    assert (policy["keep_versions"], policy.values["keep_versions"].source) == (5, "prod")
    assert (policy["target_rows"], policy.values["target_rows"].source) == (2048, "prod.t")
    assert (policy["cleanup"], policy.values["cleanup"].source) == ("dry_run", "")
    assert policy.mode("compaction") is Mode.ON
    assert set(policy.values) == set(rules_by_name())


@pytest.mark.parametrize(
    ("begin", "end", "allowed", "refused"),
    [
        ("", "", ["00:00", "12:00"], []),
        ("22:00", "", ["12:00"], []),
        ("09:00", "17:00", ["09:00", "12:00", "17:00"], ["08:59", "17:01"]),
        ("22:00", "04:00", ["22:00", "23:59", "00:00", "04:00"], ["04:01", "21:59"]),
    ],
)
def test_windows_limit_the_times_of_maintenance(begin, end, allowed, refused):
    policy = policies.effective([("p", {"window_from": begin, "window_to": end})])
    assert all(policy.allows(time.fromisoformat(moment)) for moment in allowed)
    assert not any(policy.allows(time.fromisoformat(moment)) for moment in refused)
