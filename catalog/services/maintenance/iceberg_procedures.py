"""Run one of Iceberg's Spark procedures for a job and report the table before and after it.

A procedure calls this catalog as any client does, with a token of the job. Each of its commits goes
through the commit engine, and none is accepted once the job has lost its lease.
"""

from collections.abc import Callable, Mapping
from typing import Any

from catalog import regular_files
from catalog.errors import Unsupported
from catalog.models import (
    Engine,
    Job,
    Table,
)
from catalog.planning import Statistics
from catalog.policies import EffectivePolicy, Value
from catalog.services.engine import job_stages, jobs
from catalog.services.engine.jobs import Report, Spark
from catalog.services.maintenance import policies
from catalog.services.maintenance.iceberg_statistics import (
    CurrentMetadata,
    current_metadata,
    measure,
)
from catalog.storage import locations, object_locations

SCRIPT = "iceberg"


def policy_of(job: Job) -> EffectivePolicy:
    """The policy that was requested with the job, else the effective policy of the table."""
    effective = policies.effective_policy(job.table)
    overrides = job.parameters.get("policy") or {}
    return EffectivePolicy(
        {**effective.values, **{name: Value(value, "the job") for name, value in overrides.items()}}
    )


def require_metadata(table: Table) -> CurrentMetadata:
    current = current_metadata(table)
    if current is None:
        raise Unsupported(f"'{table}' has no metadata")
    return current


def statistics_of(
    job: Job, policy: EffectivePolicy, left_out: frozenset[str] = frozenset()
) -> Statistics:
    statistics = measure(job.table, policy, left_out)
    if statistics is None:
        raise Unsupported(f"'{job.table}' has no metadata")
    return statistics


def require_plain_directories(table: Table) -> None:
    """Refuse to write files into a table in whose directories a link leads to another directory.

    Spark follows links, so new files might lie in the directory of another table. Raises Unsupported. A
    link that appears during the job is not noticed.
    """
    for directory in (table.location, *table.paths.values_list("path", flat=True)):
        if locations.is_object(directory):
            continue
        link = regular_files.find_linked_directory(directory)
        if link is not None:
            raise Unsupported(
                f"Table '{table}' has a link to a directory at '{link or directory}', which Spark would"
                " follow. Remove the link"
            )


def run_procedure(
    job: Job,
    report: Report,
    spark: Spark | None,
    *,
    on_part: Callable[[Mapping[str, Any]], None] | None = None,
    **request: Any,
) -> dict[str, Any]:
    """Run the procedure of the job's kind; ``on_part`` is that of ``jobs.Spark``."""
    if spark is None:
        raise Unsupported("Maintenance of Iceberg tables requires a worker with Spark")
    job_stages.choose_engine(job, Engine.SPARK, "Iceberg's procedures run on Spark")
    arguments = {
        "action": str(job.kind),
        "table": list(jobs.identify(job)),
        "scheme": object_locations.scheme_of(job.table.location) or "",
        **request,
    }
    return spark(job, SCRIPT, arguments, report, needs_iceberg=True, on_part=on_part)


def outcome_of(
    job: Job,
    policy: EffectivePolicy,
    before: Statistics,
    procedure_result: Mapping[str, Any],
    left_out: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    return {
        "before": before.as_json(),
        "after": statistics_of(job, policy, left_out).as_json(),
        "done": dict(procedure_result),
    }
