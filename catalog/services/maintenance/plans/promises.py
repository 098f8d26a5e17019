"""Promises of plans: what a job announced, compared with what it did.

Each implementation of an action names the figures of its result that its plan promises. A promise is
kept if the actual figure differs from the planned one by at most a tenth of the larger of both. Figures
that a plan names in its ``estimates`` are shown, but promise nothing.
"""

from collections.abc import Mapping
from typing import Any

from catalog.maintenance_actions import Implementation

TOLERANCE = 0.1


def number(result: Mapping[str, Any], *path: str) -> int | None:
    """The whole number at a path of keys; None if there is none.

    A result is JSON of a worker, perhaps of another release, so any value may be missing.
    """
    value: Any = result
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def judge(implementation: Implementation, result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Compare the result of a job with its plan; None if the result has no promised figure.

    The answer has ``kept``, and for each figure ``planned`` and ``actual``, and ``is_estimate`` if nothing
    is promised about it.
    """
    figures: dict[str, dict[str, Any]] = {}
    for name, (planned_path, actual_path) in implementation.promises.items():
        planned, actual = number(result, *planned_path), number(result, *actual_path)
        if planned is not None and actual is not None:
            figures[name] = {"planned": planned, "actual": actual}
            if _is_estimate(result, *planned_path):
                figures[name]["is_estimate"] = True
    if not figures:
        return None
    return {"kept": all(is_kept(**figure) for figure in figures.values()), "figures": figures}


def _is_estimate(result: Mapping[str, Any], plan: str, *path: str) -> bool:
    estimates = result[plan].get("estimates")
    return isinstance(estimates, list) and ".".join(path) in estimates


def is_kept(*, planned: int, actual: int, is_estimate: bool = False) -> bool:
    return is_estimate or abs(actual - planned) <= TOLERANCE * max(planned, actual)


def describe(promise: Mapping[str, Any]) -> str:
    """The figures that differ from the plan, as a phrase."""
    return ", ".join(
        f"{name.replace('_', ' ')}: {figure['planned']:,} planned, {figure['actual']:,} actual"
        for name, figure in promise["figures"].items()
        if not is_kept(**figure)
    )
