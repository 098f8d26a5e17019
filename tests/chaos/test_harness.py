"""Short runs of the fault harness. ``make chaos`` is the long version."""

import pytest

from tests.chaos.harness.report import Result
from tests.chaos.harness.run import Plan, run

BUDGET = 180.0
"""Seconds of wall time for everything, the start of the servers and the judges included."""


@pytest.mark.faults
@pytest.mark.timeout(600)  # on a busy machine; the load itself is bounded
@pytest.mark.xdist_group("fault harness")
def test_every_answer_is_true_under_faults(seed: int) -> None:
    """Three minutes, of which the load gets what the start and the judges leave."""
    plan = Plan(
        seconds=110,
        budget=BUDGET,
        seed=seed,
        clients=8,
        client_pause=0.05,  # for the other tests of the machine
        disks=False,
        pause=0.5,
        kills=3,
        operations=600,
    )
    result = run(plan)

    _assert_correct(result)
    assert result.kills >= 3, result.summary()
    assert result.operations > 500, result.summary()
    assert result.commits > 100, result.summary()
    assert {"ok", "fail", "unknown"} == result.outcomes.keys(), result.summary()


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("fault harness")
def test_a_failover_keeps_every_acknowledged_commit(seed: int) -> None:
    """The primary dies under load, and its synchronous replica takes its place."""
    plan = Plan(
        seconds=15,
        seed=seed,
        clients=6,
        client_pause=0.05,
        disks=False,
        clock=False,
        replica=True,
        faults=("fail over",),
        pause=1.0,
        kills=2,
        operations=300,
        overtime=6,  # the second failover has to wait for the new replica
    )
    result = run(plan)

    _assert_correct(result)
    assert result.faults["fail over"] >= 2, result.summary()
    assert result.operations >= 300, result.summary()
    assert result.commits > 50, result.summary()


def _assert_correct(result: Result) -> None:
    print(result.summary())
    assert result.anomalies == [], result.summary()
    assert result.undecided == 0, result.summary()
