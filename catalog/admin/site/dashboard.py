"""The overview: recent changes, items that need attention, catalog size and table health."""

from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import Q
from django.http import HttpRequest

from catalog import access
from catalog.admin import cells, contacts, growth
from catalog.admin.actor import actor
from catalog.admin.engine import transactions
from catalog.admin.maintenance import health as maintenance_health
from catalog.admin.maintenance import jobs
from catalog.admin.site import activity, month, overview
from catalog.admin.site.navigation import may_see
from catalog.models import Job, JobStatus, Namespace, Table, TableFormat, TableHealth, Transaction
from catalog.privileges import Privilege

EXACT = 50_000
"""Maximum number of rows that are counted. For larger tables, the estimate of PostgreSQL is shown."""
_LARGE = 2
"""The multiple of ``EXACT`` above which the estimate of PostgreSQL, which may be old, is used without counting."""
_NEWEST = 8

# One statement, in which every scan ends after EXACT + 1 rows. A table that PostgreSQL estimates to be large is not
# scanned at all. Views have an index.
_COUNTS = """
    WITH estimate AS MATERIALIZED (
        SELECT relname::text AS relation, GREATEST(reltuples, -1)::bigint AS rows,
            CASE WHEN reltuples > %(large)s THEN 0 ELSE %(limit)s END AS scanned
        FROM pg_class WHERE oid IN (
            'catalog_namespace'::regclass, 'catalog_table'::regclass, 'catalog_tableversion'::regclass
        )
    )
    SELECT 'namespaces', '', count(*) FILTER (WHERE dropped_at IS NULL), count(*)
    FROM (
        SELECT dropped_at FROM catalog_namespace
        LIMIT (SELECT scanned FROM estimate WHERE relation = 'catalog_namespace')
    ) n
    UNION ALL
    SELECT 'tables', format, count(*) FILTER (WHERE kind = 'table' AND state <> 'dropped'), sum(count(*)) OVER ()
    FROM (
        SELECT kind, format, state FROM catalog_table
        LIMIT (SELECT scanned FROM estimate WHERE relation = 'catalog_table')
    ) t GROUP BY format
    UNION ALL
    SELECT 'views', '', count(*), count(*)
    FROM (
        SELECT FROM catalog_table WHERE kind = 'view' AND state <> 'dropped' LIMIT %(limit)s
    ) v
    UNION ALL
    SELECT 'versions', '', count(*) FILTER (WHERE deleted_at IS NULL), count(*)
    FROM (
        SELECT deleted_at FROM catalog_tableversion
        LIMIT (SELECT scanned FROM estimate WHERE relation = 'catalog_tableversion')
    ) v
    UNION ALL
    SELECT 'estimate', relation, rows, 0 FROM estimate
"""
_RELATIONS = {
    "namespaces": "catalog_namespace",
    "tables": "catalog_table",
    "versions": "catalog_tableversion",
}


@dataclass(frozen=True)
class Count:
    """A number of rows: exact, or an estimate."""

    number: int
    text: str
    by_format: tuple[tuple[str, str], ...] = ()


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """The context of templates/admin/index.html."""
    context["title"] = "Overview"
    context["server"] = request.build_absolute_uri("/").rstrip("/")
    principal = actor(request)
    sees_all = principal.holds_everywhere(Privilege.READ)
    if sees_all:
        totals = counts()
        # The count excludes the root namespace.
        context["cards"] = [
            ("Namespaces", "account_tree", cells.list_url(Namespace), totals["namespaces"]),
            ("Tables", "table", cells.list_url(Table, "kind__exact=table"), totals["tables"]),
            ("Views", "frame_inspect", cells.list_url(Table, "kind__exact=view"), totals["views"]),
            ("Versions", "layers", None, totals["versions"]),
        ]
        context["is_empty"] = not totals["tables"].number and not totals["views"].number
    else:
        namespaces = Namespace.objects.live().filter(access.visible_namespaces(principal))
        tables = Table.objects.present().filter(access.visible_tables(principal))
        # Everybody sees the root.
        context["sees_nothing"] = not (namespaces.exclude(parent=None).exists() or tables.exists())
    context["needs"] = overview.needs(request)
    context["changes"] = overview.changes(request)
    if context.get("sees_nothing"):
        context["contacts"] = contacts.administrators()
    context["health"] = overview.health_summary(request)
    context["growth"] = growth.growth(request)
    if sees_all:
        context["additions"] = growth.additions(growth.days(request))
    context["days"] = growth.days(request)
    context["storage"] = activity.storage(request)
    context["busiest"] = [activity.most_read(request), activity.most_written(request)]
    if may_see(request, Transaction):
        own = Q() if sees_all else Q(actor=principal.name)
        newest = list(Transaction.objects.filter(own).order_by("-pk")[:_NEWEST])
        context["transactions"] = transactions.panel(
            request,
            newest,
            "No transactions.",
            title="Recent transactions" if sees_all else "Your recent transactions",
        )
    if may_see(request, Job):
        visible = access.visible_tables(principal, "table__")
        context["active_jobs"] = jobs.panel(
            request,
            Job.objects.filter(visible, status__in=[JobStatus.QUEUED, JobStatus.RUNNING])
            .select_related("table__namespace")
            .order_by("created_at")[:_NEWEST],
            "No active jobs.",
            title="Active jobs",
        )
        failed = overview.failed_jobs(request)[:_NEWEST]
        context["failed_jobs"] = jobs.panel(
            request,
            Job.objects.filter(pk__in=failed)
            .select_related("table__namespace")
            .order_by("-created_at", "-pk"),
            "No failed jobs.",
            title="Failed jobs",
        )
    if sees_all:
        context["month"] = month.month()
    if may_see(request, TableHealth):
        context["health_url"] = cells.list_url(TableHealth)
        context["unhealthy"] = maintenance_health.unhealthy(request, _NEWEST)
    if may_see(request, Namespace):
        context["namespaces_url"] = cells.list_url(Namespace)
    return context


def counts() -> dict[str, Count]:
    """Counts of the overview, in one statement of bounded cost."""
    large = _LARGE * EXACT
    with connection.cursor() as cursor:
        cursor.execute(_COUNTS, {"limit": EXACT + 1, "large": large})
        rows = cursor.fetchall()
    estimates = {name: int(number) for category, name, number, _ in rows if category == "estimate"}
    [views] = [number for category, _, number, _ in rows if category == "views"]
    result = {"views": Count(views, f"{views:,}") if views <= EXACT else _estimate(views)}
    for category, relation in _RELATIONS.items():
        groups = [(name, number, count) for kind, name, number, count in rows if kind == category]
        scanned = max((int(count) for _, _, count in groups), default=0)
        if scanned > EXACT or estimates[relation] > large:
            result[category] = _estimate(estimates[relation])
            continue
        number = sum(number for _, number, _ in groups)
        if category == "namespaces":
            number = max(number - 1, 0)
        formats = tuple((TableFormat(n).label, f"{k:,}") for n, k, _ in sorted(groups) if n and k)
        result[category] = Count(number, f"{number:,}", formats if category == "tables" else ())
    return result


def _estimate(rows: int) -> Count:
    """Estimate of PostgreSQL as text. -1 means that the table has not been analyzed."""
    if rows <= EXACT:
        return Count(EXACT, f"> {EXACT:,}")
    digits = max(len(str(rows)) - 3, 0)
    return Count(rows, f"≈ {round(rows, -digits):,}")
