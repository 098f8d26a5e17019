"""The simulation of the maintenance scheduler (`make simulate`) with few tables.

Each planted bug shows that an invariant can fail.
"""

from pathlib import Path

import pytest

from benchmarks.simulation import report, world
from benchmarks.simulation.__main__ import PAGE
from benchmarks.simulation.fleet import START
from benchmarks.simulation.records import Size
from benchmarks.simulation.world import World
from catalog.scheduling import turns
from catalog.scheduling.fairness import FairQueue
from catalog.scheduling.limits import Amount
from catalog.scheduling.queue import Places
from catalog.scheduling.rounds import Round
from catalog.scheduling.turns import Turn

SMALL = Size(tables=500, tenants=8, workers=2, days=3, seed=5, measurements=60, slowness=40.0)
"""So few slow workers that tables wait for more than a day."""


def run(size: Size = SMALL, *, until_violation: bool = False) -> World:
    simulated = World(size)
    simulated.run(until_violation=until_violation)
    return simulated


def test_no_invariant_is_violated():
    simulated = run()
    invariants, records = simulated.invariants, simulated.records
    assert invariants.violations == []
    assert sum(records.jobs.values()) > 500
    assert invariants.checks > 1000
    assert records.scores[-1] > records.scores[0]
    # The tables that nobody reads wait behind others, but get jobs.
    waits = {use: sorted(hours) for use, hours in records.waits.items()}
    assert waits["unread"][len(waits["unread"]) // 2] > waits["read"][len(waits["read"]) // 2]
    assert {key for key, _ in invariants.budgets} == {
        "max_jobs of tenant003",
        "max_jobs of tenant004",
    }
    facts = {row.name: row.value for row in report.rows(simulated, 0.0)}
    assert facts["violations"] == "0"


def test_the_figures_are_written_into_the_page(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    report.write(page, 30_000, [report.Row("jobs", "12,345")])
    before, _, remainder = page.read_text().partition("<!-- 30000 tables: begin -->")
    figures, _, after = remainder.partition("<!-- 30000 tables: end -->")
    assert figures == "\n\n| figure | result |\n|---|---|\n| jobs | 12,345 |\n\n"
    assert PAGE.read_text().startswith(before)
    assert PAGE.read_text().endswith(after)
    with pytest.raises(ValueError, match="7 tables: begin"):
        report.write(page, 7, [])


def test_a_seed_repeats_a_simulation():
    size = Size(tables=200, tenants=8, workers=2, days=1, seed=3, measurements=60, slowness=40.0)
    first, second = run(size), run(size)
    assert first.records.scores == second.records.scores
    assert first.records.jobs == second.records.jobs


class UnfairQueue(FairQueue):
    """Tables of all namespaces by turn."""

    def __init__(self, sources, used):
        super().__init__(sources, {})

    def charge(self, name, amount):
        pass


TRUE_TURN = turns.turn


def turn_without_waiting(*, worth, **facts):
    """The most valuable table comes first, however long others wait."""
    turn = TRUE_TURN(worth=worth, **facts)
    return Turn(turn.due_since, START - turns.head_start(worth))


@pytest.mark.parametrize(
    ("module", "name", "planted", "violation"),
    [
        (world, "FairQueue", UnfairQueue, "a tenant that used"),
        (turns, "turn", turn_without_waiting, "comes before table"),
        (Places, "take", lambda *_: True, "jobs under max_jobs of"),
        (Round, "_spent_under", lambda *_: Amount(), "of 14400 seconds"),
    ],
    ids=["fairness", "waiting", "limit", "budget"],
)
def test_a_planted_bug_violates_an_invariant(monkeypatch, module, name, planted, violation):
    monkeypatch.setattr(module, name, planted)
    simulated = run(until_violation=True)
    assert violation in "; ".join(simulated.invariants.violations)
