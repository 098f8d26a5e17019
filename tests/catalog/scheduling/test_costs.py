"""Costs of jobs that are learned from past jobs."""

import pytest

from catalog.scheduling.costs import MIB, CostModel, Kind, Line, Sums, fit

COMPACT = Kind("compact", "iceberg", "spark")


def sums(*jobs: tuple[int, float]) -> Sums:
    total = Sums()
    for size, seconds in jobs:
        total = total.plus(size, seconds)
    return total


def test_the_default_applies_before_any_job_has_ended() -> None:
    costs = CostModel()
    assert costs.seconds(COMPACT, 0) == pytest.approx(5.0)
    assert costs.seconds(COMPACT, 100 * MIB) == pytest.approx(10.0)


def test_the_costs_converge_to_those_of_past_jobs() -> None:
    jobs = [(size * MIB, 20 + 0.2 * size) for size in range(1000)]
    costs = CostModel({COMPACT: sums(*jobs)})
    assert costs.seconds(COMPACT, 0) == pytest.approx(20, rel=0.1)
    assert costs.seconds(COMPACT, 1000 * MIB) == pytest.approx(220, rel=0.1)
    few = CostModel({COMPACT: sums(*jobs[:1])})
    assert 5 < few.seconds(COMPACT, 0) < 20


def test_jobs_of_another_kind_do_not_count() -> None:
    costs = CostModel({Kind("compact", "lance", "worker"): sums(*[(0, 500.0)] * 99)})
    assert costs.seconds(COMPACT, 0) == pytest.approx(5.0)
    assert costs.seconds(Kind("compact", "lance", "spark"), 0) > 400
    assert costs.seconds(Kind("compact", "lance"), 0) > 400


def test_neither_coefficient_is_negative() -> None:
    shrinking = fit(sums(*[(size * MIB, 1000.0 - size) for size in range(0, 900, 3)]))
    assert shrinking.per_scale == 0
    assert shrinking.fixed > 0
    steep = fit(sums(*[(size * MIB, max(size - 300, 0) * 9.0) for size in range(0, 900, 3)]))
    assert steep.fixed == 0
    assert steep.per_scale > 0
    assert Line(0, 0).seconds(0) == pytest.approx(0.1)
