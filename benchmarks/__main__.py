"""`python -m benchmarks [data|scale|iceberg|maintenance|upkeep|search|lists|paint|previews|batches|objects|lancedb|budget|counts]`."""

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import (
    batches,
    budget,
    compare,
    data,
    iceberg,
    iceberg_other,
    lancedb_remote,
    lists,
    maintenance,
    object_stores,
    paint,
    previews,
    report,
    scale,
    search,
    upkeep,
)
from benchmarks.errors import BenchmarkError
from server.errors import ServerError

MODULES: dict[str, Any] = {
    "maintenance": maintenance,
    "upkeep": upkeep,
    "search": search,
    "lists": lists,
    "paint": paint,
    "previews": previews,
    "batches": batches,
    "objects": object_stores,
    "lancedb": lancedb_remote,
}
"""Sets that measure by themselves, with a short and a full size."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "set",
        nargs="?",
        choices=["compare", "data", "scale", "iceberg", "budget", "counts", *MODULES],
        default="compare",
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer and shorter rounds, 8 connections only"
    )
    parser.add_argument("--only", help="operations to measure, such as describe,exists")
    parser.add_argument("--directory", type=Path, help="where the temporary home goes (/var/tmp)")
    parser.add_argument(
        "--against", metavar="URL", help="iceberg: another catalog to measure, without /v1"
    )
    parser.add_argument("--token", default="", help="the bearer token for that catalog")
    parser.add_argument(
        "--pids", default="", help="the processes of that catalog on this machine, such as 12,34"
    )
    arguments = parser.parse_args()
    if arguments.against and arguments.set != "iceberg":
        parser.error("--against is for the set iceberg")
    all_operations: Mapping[str, object] = {
        "data": data.OPERATIONS,
        "iceberg": iceberg.OPERATIONS,
        "budget": budget.OPERATIONS,
        "counts": budget.OPERATIONS,
    }.get(arguments.set, compare.OPERATIONS)
    operations = tuple(arguments.only.split(",")) if arguments.only else tuple(all_operations)
    if unknown := [name for name in operations if name not in all_operations]:
        parser.error(f"{', '.join(unknown)}: choose from {', '.join(all_operations)}")
    try:
        if arguments.set == "scale":
            scale.scale(arguments.directory, rounds=2 if arguments.quick else 5, connections=8)
            return 0
        if arguments.set == "budget":
            size = budget.QUICK if arguments.quick else budget.FULL
            return 0 if budget.measure(size, arguments.directory, operations) else 1
        if arguments.set == "counts":
            return 0 if budget.count(arguments.directory, operations) else 1
        if arguments.set in MODULES:
            module = MODULES[arguments.set]
            module.measure(module.QUICK if arguments.quick else module.FULL, arguments.directory)
            return 0
        plan = (
            compare.Plan(operations, (8,), rounds=3, seconds=1)
            if arguments.quick
            else compare.Plan(operations, (1, 8, 32), rounds=3, seconds=2)
        )
        if arguments.set == "data":
            plan = dataclasses.replace(plan, connections=data.CONNECTIONS, rounds=5)
            if arguments.quick:
                plan = dataclasses.replace(plan, rounds=2)
            outcome = data.measure(plan, arguments.directory)
            return show(outcome, "data", data.OPERATIONS, data.goals(outcome))
        if arguments.set == "iceberg":
            other = arguments.against and iceberg_other.Address(
                arguments.against.rstrip("/"),
                arguments.token,
                [int(pid) for pid in arguments.pids.split(",") if pid],
            )
            outcome = iceberg.measure(plan, arguments.directory, other or None)
            return show(outcome, "iceberg", iceberg.OPERATIONS, iceberg.goals(outcome))
        outcome = compare.compare(plan, arguments.directory)
        return show(outcome, "compare", compare.OPERATIONS, report.goals(outcome))
    except (BenchmarkError, ServerError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; everything was stopped and removed", file=sys.stderr)
        return 130
    return 0


def show(
    outcome: compare.Outcome, name: str, names: Mapping[str, str], goals: Sequence[report.Goal]
) -> int:
    """Print the outcome; returns the exit status."""
    return 0 if report.show(outcome, name, names, goals) else 1


if __name__ == "__main__":
    sys.exit(main())
