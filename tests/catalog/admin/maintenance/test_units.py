"""Durations, sizes and percentages as text."""

import pytest

from catalog.admin import units
from catalog.errors import InvalidInput
from catalog.policies import rules, rules_by_name


@pytest.mark.parametrize(
    ("name", "text", "value", "formatted"),
    [
        ("keep_for", "7 days", 604_800, "7 days"),
        ("keep_for", "1 Day 1 hour", 90_000, "1 day 1 hour"),
        ("keep_for", "36h", 129_600, "1 day 12 hours"),
        ("keep_for", "90 min", 5_400, "1 hour 30 minutes"),
        ("keep_for", "3601 seconds", 3_601, "1 hour 1 second"),
        ("keep_for", "1.5 d", 129_600, "1 day 12 hours"),
        ("keep_for", "1500 days", 129_600_000, "1500 days"),
        ("target_bytes", "512 MB", 512 * 1024**2, "512 MB"),
        ("target_bytes", "512MiB", 512 * 1024**2, "512 MB"),
        ("target_bytes", "1.5 gb", 1536 * 1024**2, "1.5 GB"),
        ("target_bytes", "1,048,577", 1_048_577, "1,048,577 bytes"),
        ("target_bytes", "1048577 bytes", 1_048_577, "1,048,577 bytes"),
        ("spark_above", "0", 0, "0 bytes"),
        ("target_rows", "1,048,576", 1_048_576, "1,048,576"),
        ("target_rows", "1 048 576", 1_048_576, "1,048,576"),
        ("small_ratio", "50 %", 0.5, "50 %"),
        ("small_ratio", "0.123", 0.123, "12.3 %"),
        ("deleted_ratio", "0", 0.0, "0 %"),
        ("deleted_ratio", "100%", 1.0, "100 %"),
        ("window_from", "22:30", "22:30", "22:30"),
        ("window_from", "7:05", "07:05", "07:05"),
        ("window_from", "any time", "", "any time"),
        ("compaction", "dry_run", "dry_run", "Dry run"),
    ],
)
def test_texts_are_parsed_and_formatted(name, text, value, formatted):
    rule = rules_by_name()[name]
    assert units.parse(rule, text) == value
    assert type(units.parse(rule, text)) is type(value)
    assert units.show(rule, value) == formatted


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.name)
def test_formatted_values_are_parsed_to_the_same_value(rule):
    text = units.show(rule, rule.default)
    if rule.name not in {"compaction", "cleanup"} and text not in units.MODE_TEXTS.values():
        assert units.parse(rule, text) == rule.default


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("keep_for", "7", "Enter a value such as 7 days."),
        ("keep_for", "soon", "Enter a value such as 7 days."),
        ("keep_for", "-1 day", "Enter a value such as 7 days."),
        ("keep_for", "7 fortnights", "Enter a value such as 7 days."),
        ("keep_for", "10 minutes", "The value must be at least 1 hour."),
        ("keep_for", "9999999999999999 days", "The value is too large."),
        ("orphan_age", "23 hours", "The value must be at least 1 day."),
        ("target_bytes", "0.5 MB", "The value must be at least 1 MB."),
        ("target_bytes", "12 PB", "Enter a value such as 512 MB."),
        ("target_bytes", "1.5", "Enter a value such as 512 MB."),
        ("keep_versions", "0", "The value must be at least 1."),
        ("keep_versions", "1.5", "Enter a value such as 10,000."),
        ("keep_versions", "٣", "Enter a value such as 10,000."),
        ("keep_versions", "9" * 17, "Enter a value such as 10,000."),
        ("max_jobs", "1001", "The value must be from 1 to 1,000."),
        ("small_ratio", "100 %", "The value must be from 1 % to 99 %."),
        ("small_ratio", "nan", "Enter a value such as 50 %."),
        ("small_ratio", "1e3", "Enter a value such as 50 %."),
        ("window_from", "25:00", "Enter a value such as 22:30 (UTC), or any time."),
        ("window_from", "22:30+02:00", "Enter a value such as 22:30 (UTC), or any time."),
    ],
)
def test_invalid_texts_are_refused(name, text, message):
    with pytest.raises(InvalidInput) as refused:
        units.parse(rules_by_name()[name], text)
    assert refused.value.message == message


def test_an_invalid_mode_is_refused():
    with pytest.raises(InvalidInput, match="must be one of off, dry_run, on"):
        units.parse(rules_by_name()["compaction"], "maybe")


@pytest.mark.parametrize("value", ["x", None, [], -1])
def test_values_of_older_releases_are_shown_unchanged(value):
    assert units.show(rules_by_name()["keep_versions"], value) == str(value)
