"""The columns of the list of tables, from subqueries that run for the rows of one page only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import (
    BigIntegerField,
    F,
    Func,
    OuterRef,
    QuerySet,
    Subquery,
    TextField,
    Value,
)
from django.db.models.fields.json import KT
from django.db.models.functions import Cast, Collate
from django.http import HttpRequest
from django.utils.safestring import SafeString

from catalog.admin import cells
from catalog.admin.maintenance import health
from catalog.admin.score_charts import score as score_bar
from catalog.models import LabelAssignment, Table, TableHealth, TableKind, TableState, TableVersion
from catalog.services.tables.listing import Order

_LABELS = 4
_EXPORTED_LABELS = 50
_VERSIONS = TableVersion.objects.filter(table=OuterRef("pk")).on("").visible().order_by("-version")
_MEASURED = TableHealth.objects.newest().filter(table=OuterRef("pk"))
_WITH_DATA = _MEASURED.filter(statistics__has_key="rows")
_FULL_NAME = Func(
    Func(F("namespace__path"), F("name"), function="array_append"),
    Value("."),
    function="array_to_string",
    output_field=TextField(),
)


def _figure(name: str) -> Subquery:
    number = Cast(KT(f"statistics__{name}"), BigIntegerField())
    return Subquery(_WITH_DATA.annotate(number=number).values("number")[:1])


@dataclass(frozen=True)
class Column:
    """A column of the list. Users choose columns, and URLs name orders, by the key."""

    key: str
    method: str
    title: str
    order: Order | None
    exported: Sequence[tuple[str, Callable[[Any], object]]]
    """Names and values in an export."""
    is_default: bool = True


def _measured(name: str) -> Callable[[Any], object]:
    return lambda row: (row.measured or {}).get(name)


_COLUMNS = (
    Column(
        "name",
        "table",
        "Table",
        Order(Collate(_FULL_NAME, "C"), "summary__name"),
        [("table", str)],
    ),
    Column(
        "kind",
        "kind_of",
        "Kind",
        None,
        [
            ("format", lambda row: row.format),
            ("kind", lambda row: row.kind),
            ("state", lambda row: row.state),
        ],
    ),
    Column(
        "rows",
        "rows_of",
        "Rows",
        Order(_figure("rows"), "summary__rows", True),
        [("rows", _measured("rows"))],
    ),
    Column(
        "size",
        "size_of",
        "Size",
        Order(_figure("bytes"), "summary__bytes", True),
        [("bytes", _measured("bytes"))],
    ),
    Column(
        "committed",
        "committed",
        "Last commit",
        Order(Subquery(_VERSIONS.values("created_at")[:1]), "summary__committed_at", True),
        [
            ("committed_at", lambda row: row.committed_at),
            ("committed_by", lambda row: row.committed_by),
        ],
    ),
    Column(
        "owner", "owned_by", "Owner", Order(F("owner"), "owner"), [("owner", lambda row: row.owner)]
    ),
    Column(
        "health",
        "health_of",
        "Health",
        Order(Subquery(_WITH_DATA.values("score")[:1]), "summary__score", True),
        [("health", lambda row: row.measured_score if "rows" in (row.measured or {}) else None)],
    ),
    Column(
        "labels", "labels_of", "Labels", None, [("labels", lambda row: " ".join(row.label_keys))]
    ),
    Column(
        "created",
        "created",
        "Created",
        Order(F("pk")),
        [("created_at", lambda row: row.created_at)],
        is_default=False,
    ),
    Column("uuid", "uuid_of", "UUID", None, [("uuid", lambda row: row.uuid)], is_default=False),
)
COLUMNS = {column.key: column for column in _COLUMNS}
BY_METHOD = {column.method: column for column in _COLUMNS}


def with_figures(rows: QuerySet[Table]) -> QuerySet[Table]:
    """Rows with their last commit and newest measurement."""
    return rows.annotate(
        committed_at=Subquery(_VERSIONS.values("created_at")[:1]),
        committed_by=Subquery(_VERSIONS.values("transaction__actor")[:1]),
        measured_score=Subquery(_MEASURED.values("score")[:1]),
        measured=Subquery(_MEASURED.values("statistics")[:1]),
    )


def kind(row: Table) -> SafeString | str:
    """The format, the kind unless it is a table, and the state unless it is live."""
    name = row.get_format_display()
    name = name if row.kind == TableKind.TABLE else f"{name} {row.kind}"
    return name if row.state == TableState.LIVE else cells.spaced([name, cells.badge(row.state)])


def rows_of(row: Any) -> object:
    return health.count((row.measured or {}).get("rows"))


def size(row: Any) -> SafeString:
    return cells.size((row.measured or {}).get("bytes"))


def last_commit(row: Any) -> SafeString:
    by = [cells.muted("by"), cells.who(row.committed_by)] if row.committed_by else []
    return cells.spaced([cells.when(row.committed_at), *by])


def score(row: Any) -> SafeString:
    is_measured = bool(row.measured) and "error" not in row.measured
    return score_bar(row.measured_score) if is_measured else cells.NOTHING


class TableColumns:
    """Columns of the table admin."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Table]:
        rows: QuerySet[Table] = super().get_queryset(request)  # type: ignore[misc]
        assigned = LabelAssignment.objects.filter(table=OuterRef("pk"), column="")
        keys = assigned.order_by("definition__key").values("definition__key")
        return with_figures(rows).annotate(label_keys=ArraySubquery(keys[:_EXPORTED_LABELS]))

    @admin.display(description="Table", ordering="name")
    def table(self, row: Table) -> str:
        return str(row)

    @admin.display(description="Kind")
    def kind_of(self, row: Table) -> SafeString | str:
        return kind(row)

    @admin.display(description="Rows", ordering="measured")
    def rows_of(self, row: Any) -> object:
        return rows_of(row)

    @admin.display(description="Size", ordering="measured")
    def size_of(self, row: Any) -> SafeString:
        return size(row)

    @admin.display(description="Last commit", ordering="committed_at")
    def committed(self, row: Any) -> SafeString:
        return last_commit(row)

    @admin.display(description="Owner", ordering="owner")
    def owned_by(self, row: Table) -> SafeString:
        return cells.who(row.owner)

    @admin.display(description="Health", ordering="measured_score")
    def health_of(self, row: Any) -> SafeString:
        return score(row)

    @admin.display(description="Labels")
    def labels_of(self, row: Any) -> SafeString:
        badges = [cells.badge(key, "plain") for key in row.label_keys[:_LABELS]]
        return cells.spaced([*badges, "…"] if row.label_keys[_LABELS:] else badges) or cells.NOTHING

    @admin.display(description="Created", ordering="pk")
    def created(self, row: Table) -> SafeString:
        return cells.when(row.created_at)

    @admin.display(description="UUID")
    def uuid_of(self, row: Table) -> SafeString:
        return cells.exact(row.uuid)
