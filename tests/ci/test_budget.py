"""Frequent requests stay within their budgets (`make budget`)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import budget
from benchmarks.budget import Samples
from benchmarks.budget_counts import Counts


@pytest.mark.parametrize("figure", ["operations", "calls", "statements"])
def test_every_operation_has_a_budget(figure: str):
    budgets = budget.budget_of(figure)
    assert list(budgets) == list(budget.OPERATIONS)
    assert all(limit > 0 for limit in budgets.values())


def test_rounds_that_were_disturbed_do_not_count():
    assert Samples(multiples=[1.0, 1.0, 1.0, 1.0, 9.0, 9.0, 9.0]).multiple == 1.0


@pytest.mark.parametrize(
    ("calls", "statements", "is_exceeded"),
    [(115, 3, False), (116, 3, True), (50, 4, True), (100, 2, False)],
)
def test_counts_above_the_budget(calls: int, statements: int, is_exceeded: bool):
    assert budget.exceeds(Counts(statements, calls), 100, 3) is is_exceeded


def test_no_request_executes_more_than_its_budget(tmp_path: Path):
    command = [sys.executable, "-m", "benchmarks", "counts", "--directory", str(tmp_path)]
    names = {"HOME", "LANG", "PATH", "PYTHONPATH", "TMPDIR"}  # not the settings of the tests
    run = subprocess.run(
        command,
        env={name: value for name, value in os.environ.items() if name in names},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert all(name in run.stdout for name in budget.OPERATIONS)
