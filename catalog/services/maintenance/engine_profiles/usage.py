"""What uses an engine profile, and would break without it."""

from collections.abc import Iterable
from dataclasses import dataclass

from catalog import access
from catalog.access import Principal
from catalog.identifiers import label
from catalog.models import Job, JobStatus, MaintenancePolicy, Namespace, Table
from catalog.privileges import Privilege
from catalog.services.storage.profile_usage import needed_tables

SHOWN = 10
"""How many namespaces and tables a refusal names."""


@dataclass(frozen=True)
class Usage:
    """The policies that choose a profile, and the active jobs that have it."""

    namespaces: int
    namespace_names: tuple[str, ...]
    """The first namespaces, as far as the actor may browse them."""
    tables: int
    table_names: tuple[str, ...]
    queued: int
    running: int

    @property
    def is_used(self) -> bool:
        return bool(self.namespaces or self.tables or self.queued or self.running)

    def describe(self) -> str:
        """The users as a phrase."""
        parts = []
        if self.namespaces:
            names = _listed(self.namespace_names, self.namespaces)
            parts.append(f"policies of namespaces choose it: {self.namespaces}{names}")
        if self.tables:
            names = _listed(self.table_names, self.tables)
            parts.append(f"policies of tables choose it: {self.tables}{names}")
        if self.queued or self.running:
            parts.append(f"jobs have it: {self.queued} queued, {self.running} running")
        return "; ".join(parts)


def of_profile(actor: Principal, name: str) -> Usage:
    """What uses a profile. Policies in the trash count, because they can come back."""
    chosen = MaintenancePolicy.objects.filter(values__engine_profile=name)
    namespaces = Namespace.objects.holding_locations().filter(
        pk__in=chosen.exclude(namespace=None).values("namespace")
    )
    tables = needed_tables().filter(pk__in=chosen.exclude(table=None).values("table"))
    active = Job.objects.filter(engine_profile=name)
    return Usage(
        namespaces=namespaces.distinct().count(),
        namespace_names=_names(actor, namespaces.distinct().order_by("pk")[:SHOWN]),
        tables=tables.count(),
        table_names=_names(actor, tables.select_related("namespace").order_by("pk")[:SHOWN]),
        queued=active.filter(status=JobStatus.QUEUED).count(),
        running=active.filter(status=JobStatus.RUNNING).count(),
    )


def _names(actor: Principal, rows: Iterable[Namespace] | Iterable[Table]) -> tuple[str, ...]:
    return tuple(
        label(row.identifier) for row in rows if access.holds(actor, Privilege.BROWSE, row)
    )


def _listed(names: tuple[str, ...], number: int) -> str:
    if not names:
        return ""
    more = [f"{number - len(names)} more"] if number > len(names) else []
    return f" ({', '.join([*names, *more])})"
