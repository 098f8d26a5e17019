"""Benchmarks print no ratios if other programs disturbed them."""

import pytest

from benchmarks import report
from benchmarks.compare import Outcome, Plan
from benchmarks.sides import Sample


@pytest.fixture
def outcome() -> Outcome:
    plan = Plan(("describe",), (8,), rounds=1, seconds=1)
    samples = {
        ("describe", side, 8): [Sample(rate, p50_ms=1.0, p99_ms=2.0, cpu_us=100.0)]
        for side, rate in (("monodon", 4000.0), ("reference", 1000.0))
    }
    return Outcome(plan, samples, [250.0], "small")


def test_ratios_on_an_idle_machine(outcome, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "of benchmarks" / "results")
    (tmp_path / "of benchmarks").mkdir()
    outcome.foreign_share = 0.15
    assert report.show(outcome, "compare", {"describe": "describe"}, report.goals(outcome))
    assert "reached  describe / RestAdapter: 4.00" in capsys.readouterr().out
    assert len(list(report.RESULTS.iterdir())) == 2


def test_no_ratios_on_a_busy_machine(outcome, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    outcome.foreign_share = 0.16
    assert outcome.ratio("describe", 8, "reference") is None
    assert not report.show(outcome, "compare", {"describe": "describe"}, report.goals(outcome))
    text = capsys.readouterr().out
    assert "Other programs took 16% of the processors' time" in text
    assert "RestAdapter" in text  # the rates remain
    assert "reached" not in text
    assert "4.00" not in text
    assert not (tmp_path / "results").exists()
