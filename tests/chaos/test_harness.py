"""Three minutes of the fault harness. ``make chaos`` is the long version."""

import pytest

from tests.chaos.harness.run import Plan, run

BUDGET = 180.0
"""Seconds of wall time for everything, the start of the servers and the judges included."""


@pytest.mark.faults
@pytest.mark.timeout(600)  # on a busy machine; the load itself is bounded
@pytest.mark.xdist_group("fault harness")
def test_every_answer_is_true_under_faults(seed: int) -> None:
    plan = Plan(
        seconds=20,
        budget=BUDGET,
        seed=seed,
        clients=8,
        client_pause=0.05,  # for the other tests of the machine
        disks=False,
        pause=0.5,
        kills=3,
        operations=600,
        overtime=3,  # on a busy machine
    )
    result = run(plan)

    assert result.anomalies == [], result.summary()
    assert result.undecided == 0, result.summary()
    assert result.kills >= 3, result.summary()
    assert result.operations > 500, result.summary()
    assert result.commits > 100, result.summary()
    assert {"ok", "fail", "unknown"} == result.outcomes.keys(), result.summary()
    print(result.summary())
