"""Maintenance policies: set them, and resolve the effective policy of a table."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.db.models import Count, Q

from catalog import maintenance_actions, policies
from catalog.access import Principal
from catalog.identifiers import Identifier, digest, label
from catalog.models import Job, JobStatus, MaintenancePolicy, Table, TableFormat
from catalog.policies import EffectivePolicy
from catalog.services.engine.commit import commit
from catalog.services.engine.database_clock import database_now
from catalog.services.maintenance import policy_operations
from catalog.services.tables import namespaces, tables


def set_namespace_policy(
    *, actor: Principal, namespace: Identifier, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Set the maintenance policy of a namespace and of everything below it; returns the new policy.

    Values that are left out are inherited. Raises NamespaceNotFound, InvalidInput.
    """
    committed = commit(
        [policy_operations.SetNamespacePolicy(namespace=namespace, values=values)], actor=actor
    )
    policy: dict[str, Any] = committed.results[0]
    return policy


def set_table_policy(
    *, actor: Principal, table: Identifier, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Set the maintenance policy of a table; returns it. Raises TableNotFound, InvalidInput."""
    row = tables.find_any(actor=actor, table=table)
    operation = policy_operations.SetTablePolicy(
        table=table, format=TableFormat(row.format), values=values
    )
    policy: dict[str, Any] = commit([operation], actor=actor).results[0]
    return policy


def policy_of_namespace(
    *, actor: Principal, namespace: Identifier
) -> tuple[EffectivePolicy, dict[str, Any]]:
    """The effective policy for tables of a namespace, and the namespace's own policy."""
    namespaces.describe_namespace(actor=actor, namespace=namespace)
    policies_by_digest = _own_policies([namespace])
    own = dict(policies_by_digest.get(digest(namespace), {}))
    return policies.effective(_chain(policies_by_digest, namespace)), own


def policy_of_table(
    *, actor: Principal, table: Identifier
) -> tuple[EffectivePolicy, dict[str, Any]]:
    """The effective policy of a table, and its own policy. Raises TableNotFound."""
    row = tables.find_any(actor=actor, table=table)
    own = MaintenancePolicy.objects.filter(table=row).values_list("values", flat=True).first()
    return effective_policy(row), own or {}


def effective_policy(table: Table) -> EffectivePolicy:
    """The effective policy of a table, with the source of each value. Two statements."""
    return effective_policies([table])[table.pk]


def effective_policies(rows: Iterable[Table]) -> dict[int, EffectivePolicy]:
    """Effective policies of many tables by primary key; their namespaces should be loaded."""
    tables_ = list(rows)
    policies_by_digest = _own_policies([tuple(row.namespace.path) for row in tables_])
    own: dict[int | None, dict[str, Any]] = dict(
        MaintenancePolicy.objects.filter(table__in=[row.pk for row in tables_]).values_list(
            "table", "values"
        )
    )
    return {
        row.pk: policies.effective(
            [
                *_chain(policies_by_digest, tuple(row.namespace.path)),
                (str(row), own.get(row.pk, {})),
            ]
        )
        for row in tables_
    }


def _own_policies(paths: Iterable[Identifier]) -> dict[Any, dict[str, Any]]:
    """Policies of the namespaces and their ancestors, by digest of the name."""
    digests = {digest(path[:depth]) for path in paths for depth in range(len(path) + 1)}
    return dict(
        MaintenancePolicy.objects.filter(
            namespace__digest__in=digests, namespace__dropped_at=None
        ).values_list("namespace__digest", "values")
    )


def _chain(
    policies_by_digest: Mapping[Any, Mapping[str, Any]], path: Identifier
) -> Iterable[tuple[str, Mapping[str, Any]]]:
    for depth in range(len(path) + 1):
        values = policies_by_digest.get(digest(path[:depth]))
        if values:
            yield label(path[:depth]), values


# --- limits of running jobs ---------------------------------------------------------------------


def policy_values() -> list[Mapping[str, Any]]:
    return list(MaintenancePolicy.objects.values_list("values", flat=True))


def limit_key(policy: EffectivePolicy) -> str:
    """The key of the jobs that count together against ``max_jobs``."""
    return f"max_jobs of {policy.values['max_jobs'].source or 'the default'}"


def ended_by_policy(since: datetime) -> Counter[str]:
    """Number of jobs that the scheduler started and that ended, by their limit's key."""
    ended = Job.objects.filter(finished_at__gt=since).exclude(limit_key="")
    return Counter(dict(ended.values_list("limit_key").annotate(number=Count("pk"))))


def running_by_policy() -> Counter[str]:
    """Number of tables with a running or imminent job, by the source of ``max_jobs``.

    A table runs one job at a time, so a job that waits for another job of its table does not count.
    Neither does a failed job that waits for its next attempt, which may be hours away. A job that
    waits for a worker counts, because jobs that are started later would wait too.
    """
    is_next = Q(lease_until=None) | Q(lease_until__lte=database_now())
    at_work = Job.objects.filter(
        Q(status=JobStatus.RUNNING) | Q(is_next, status=JobStatus.QUEUED),
        kind__in=maintenance_actions.keys(),
    )
    rows = list(Table.objects.filter(pk__in=at_work.values("table")).select_related("namespace"))
    effective = effective_policies(rows)
    return Counter(effective[row.pk].values["max_jobs"].source for row in rows)
