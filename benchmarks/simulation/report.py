"""The results of a simulation as a table, for the terminal and for the documentation."""

import math
import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.simulation.fleet import DAY, HOUR
from benchmarks.simulation.world import World, cost_errors
from catalog.scheduling.turns import MAX_HEAD_START

_PERCENTILES = (50, 99, 100)


@dataclass(frozen=True)
class Row:
    """A line of the results."""

    name: str
    value: str


def rows(world: World, cpu_seconds: float) -> list[Row]:
    """The results of a simulation that has ended."""
    size, records, invariants = world.size, world.records, world.invariants
    capacity = size.workers * size.days * DAY
    facts = [
        Row("tables", f"{size.tables:,} in {size.tenants} namespaces"),
        Row("virtual time", f"{size.days} days, seed {size.seed}"),
        Row("workers", f"{size.workers}, busy {records.busy_seconds / capacity:.0%} of the time"),
        Row("measurements", f"{records.measurements:,}"),
        Row("jobs", f"{sum(records.jobs.values()):,}: " + _listed(records.jobs.most_common())),
        Row("mean score, by day", _series(_daily(records.scores))),
    ]
    facts += [
        Row(f"mean score of tables: {name}", _series(_daily(scores)))
        for name, scores in records.scores_by_pattern.items()
    ]
    for use, waits in records.waits.items():
        hours = np.percentile(waits, _PERCENTILES) / HOUR if waits else [math.nan] * 3
        name = "tables that are read" if use == "read" else "tables that nobody reads"
        middle, most, longest = (f"{value:.1f} h" for value in hours)
        facts.append(Row(f"wait of {name}", f"median {middle}, 99 % {most}, longest {longest}"))
    head_start = MAX_HEAD_START.total_seconds() / HOUR
    overtaking = f"{invariants.longest_overtaking / HOUR:.1f} h of {head_start:.0f} h"
    wait = f"{invariants.longest_namespace_wait / 60:.0f} min"
    facts += [
        Row("longest lead of a table that was due later", overtaking),
        Row("longest wait of a namespace for a job", wait),
        Row("largest use of a budget", _budgets(world)),
        Row("conflicts with writers", _conflicts(world)),
        Row(
            "repeated after a worker's death",
            f"{records.outcomes['death']:,} of {sum(records.outcomes.values()):,} attempts",
        ),
        Row("error of the learned costs", _errors(world)),
        Row("checks", f"{invariants.checks:,}"),
        Row("violations", f"{invariants.number:,}"),
        Row("cost of the simulation", _machine(cpu_seconds)),
    ]
    return facts


def text(facts: Iterable[Row]) -> str:
    listed = list(facts)
    width = max(len(row.name) for row in listed)
    return "\n".join(f"{row.name:{width}}  {row.value}" for row in listed)


def markdown(facts: Iterable[Row]) -> str:
    lines = ["| figure | result |", "|---|---|"]
    return "\n".join(lines + [f"| {row.name} | {row.value} |" for row in facts])


def write(page: Path, tables: int, facts: Iterable[Row]) -> None:
    """Replace the figures of this number of tables in a page.

    Raises ValueError if the page has no lines between which they belong.
    """
    first, last = (f"<!-- {tables} tables: {edge} -->" for edge in ("begin", "end"))
    before, begin, remainder = page.read_text().partition(first)
    _, end, after = remainder.partition(last)
    if not begin or not end:
        raise ValueError(f"{page} has no lines '{first}' and '{last}'")
    page.write_text(f"{before}{begin}\n\n{markdown(facts)}\n\n{end}{after}")


def _listed(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts)


def _daily(hourly: list[float]) -> list[float]:
    ends = range(24, len(hourly) + 1, 24)
    return [float(np.nanmean(hourly[end - 24 : end])) for end in ends]


def _series(values: list[float]) -> str:
    return " → ".join(f"{value:.1f}" for value in values)


def _budgets(world: World) -> str:
    shares = {"seconds": 0.0, "bytes": 0.0}
    for budget, spent in world.invariants.budgets.values():
        if budget.seconds:
            shares["seconds"] = max(shares["seconds"], spent.seconds / budget.seconds)
        if budget.bytes:
            shares["bytes"] = max(shares["bytes"], spent.bytes / budget.bytes)
    return f"{shares['seconds']:.1%} of the seconds, {shares['bytes']:.1%} of the bytes"


def _conflicts(world: World) -> str:
    counts = world.records.conflicts
    parts = []
    for period in ("day", "night"):
        attempts, conflicts = counts[f"attempts by {period}"], counts[f"conflicts by {period}"]
        share = conflicts / attempts if attempts else 0.0
        parts.append(f"{conflicts:,} of {attempts:,} attempts by {period} ({share:.1%})")
    return ", ".join(parts) + f"; {world.records.failed:,} jobs failed"


def _errors(world: World) -> str:
    errors = cost_errors(world)
    worst = max(errors, key=lambda name: abs(errors[name]), default="")
    return f"at most {abs(errors[worst]):.0%} ({worst})" if worst else "no job ended"


def _machine(cpu_seconds: float) -> str:
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return f"{cpu_seconds / 60:.1f} min of CPU, {memory:,.0f} MiB"


def cpu_seconds() -> float:
    return time.process_time()
