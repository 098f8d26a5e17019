"""Promises of plans, and the running figure of the plans that were kept."""

import pytest

from catalog import maintenance_actions
from catalog.services.maintenance.job_control import Tally
from catalog.services.maintenance.plans import promises


@pytest.mark.parametrize(
    ("planned", "actual", "is_kept"),
    [
        (0, 0, True),
        (100, 90, True),
        (100, 89, False),
        (90, 100, True),
        (89, 100, False),
        (0, 1, False),
    ],
)
def test_a_tenth_of_the_larger_number_is_tolerated(planned, actual, is_kept):
    assert promises.is_kept(planned=planned, actual=actual) is is_kept


def implementation(kind, table_format):
    return maintenance_actions.require(kind).implementations[table_format]


def test_the_figures_of_a_broken_promise_are_named():
    result = {
        "plan": {"files": 100, "new_files": 50, "bytes": 1000},
        "done": {"files_removed": 100, "files_added": 25, "bytes_read": 1000},
    }
    promise = promises.judge(implementation("compact", "lance"), result)
    assert promise == {
        "kept": False,
        "figures": {
            "files_read": {"planned": 100, "actual": 100},
            "files_written": {"planned": 50, "actual": 25},
            "bytes_read": {"planned": 1000, "actual": 1000},
        },
    }
    assert promises.describe(promise) == "files written: 50 planned, 25 actual"


@pytest.mark.parametrize("written", [4, 6, 60])
def test_an_estimate_promises_nothing(written):
    figures = ("rewritten_data_files_count", "added_data_files_count", "rewritten_bytes_count")
    result = {
        "planned": dict(zip(figures, (12, 5, 1000), strict=True)),
        "done": dict(zip(figures, (12, written, 1000), strict=True)),
    }
    iceberg = implementation("compact", "iceberg")
    promise = promises.judge(iceberg, result)
    assert (promise["kept"], promises.describe(promise)) == (
        False,
        f"files written: 5 planned, {written} actual",
    )
    result["planned"]["estimates"] = ["added_data_files_count"]
    promise = promises.judge(iceberg, result)
    assert (promise["kept"], promises.describe(promise)) == (True, "")
    assert promise["figures"]["files_written"] == {
        "planned": 5,
        "actual": written,
        "is_estimate": True,
    }
    assert promise["figures"]["files_read"] == {"planned": 12, "actual": 12}
    result["done"]["rewritten_data_files_count"] = 6
    assert promises.judge(iceberg, result)["kept"] is False


def test_a_result_without_figures_has_no_promise():
    assert promises.judge(implementation("compact", "lance"), {"plan": {"files": 3}}) is None


def test_every_action_promises_figures():
    """Measuring recall changes nothing. Statistics are computed without a plan: the job adds a file."""
    silent = {
        (action.key, name)
        for action in maintenance_actions.registered()
        for name, work in action.implementations.items()
        if not work.promises
    }
    assert silent == {("compute_statistics", "iceberg"), ("measure_recall", "lance")}


@pytest.mark.parametrize(
    ("counts", "percent"), [((0, 0), None), ((98, 2), 98), ((999, 1), 99), ((5, 0), 100)]
)
def test_the_share_of_kept_plans(counts, percent):
    kept_plans, broken_plans = counts
    tally = Tally(plans_kept=kept_plans, plans_broken=broken_plans)
    assert tally.plans_kept_percent == percent
