"""Maintenance policies: set them, and resolve the effective policy of a table."""

from collections.abc import Iterable, Mapping
from typing import Any

from catalog import policies
from catalog.access import Principal
from catalog.identifiers import Identifier, digest, label
from catalog.models import MaintenancePolicy, Table, TableFormat
from catalog.policies import EffectivePolicy
from catalog.services.engine.commit import commit
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
