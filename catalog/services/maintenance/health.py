"""Health of tables: the list of measured tables, and the history of one table."""

from dataclasses import dataclass
from datetime import timedelta

from django.db.models import F, Q, Window
from django.db.models.functions import Mod, RowNumber
from django.utils import timezone

from catalog import access
from catalog.access import On, Principal
from catalog.errors import InvalidInput, NamespaceNotFound
from catalog.identifiers import Identifier
from catalog.models import Namespace, TableFormat, TableHealth, TableState
from catalog.services.tables import tables

PAGE_SIZE = 100
MAX_PAGE = 1000
DAYS, MAX_DAYS = 30, 90
POINTS, MAX_POINTS = 200, 1000


@dataclass(frozen=True, slots=True)
class HealthHistory:
    """The newest measurement of a table, and the earlier ones, oldest first."""

    newest: TableHealth | None
    series: list[TableHealth]


def list_health(
    *,
    actor: Principal,
    namespace: Identifier = (),
    format: TableFormat | None = None,
    max_score: int | None = None,
    limit: int | None = None,
    page_token: str | None = None,
) -> tuple[list[TableHealth], str | None]:
    """A page of the measured tables, lowest score first, and the token of the next page.

    With ``namespace``, only tables in it and below it. Tables that the actor may not browse are
    left out. Raises NamespaceNotFound, InvalidInput. Three statements at most.
    """
    if not access.is_visible(actor, On.namespace(namespace)):
        raise NamespaceNotFound(namespace)
    size = min(limit or PAGE_SIZE, MAX_PAGE)
    rows = TableHealth.objects.newest().exclude(table__state=TableState.DROPPED)
    rows = rows.filter(access.visible_tables(actor, "table__"))
    if namespace:
        tables.require_namespace(namespace)
        # The stored spelling of the name, which the paths of child namespaces share.
        path = Namespace.objects.named(namespace).values_list("path", flat=True)[0]
        rows = rows.filter(tables.at_or_below(tuple(path), "table__namespace__path"))
    if format is not None:
        rows = rows.filter(table__format=format)
    if max_score is not None:
        rows = rows.filter(score__lte=max_score)
    if page_token:
        rows = rows.filter(_behind(page_token))
    page = list(rows.select_related("table__namespace").order_by("score", "table")[: size + 1])
    last = page[size - 1] if len(page) > size else None
    return page[:size], f"{last.score}.{last.table_id}" if last else None


def table_health(
    *, actor: Principal, table: Identifier, days: int = DAYS, points: int = POINTS
) -> HealthHistory:
    """Health of a table now and over the last ``days``. Raises TableNotFound.

    If there are more measurements than ``points``, return every second, every third, and so on.
    """
    row = tables.find_any(actor=actor, table=table)
    since = timezone.now() - timedelta(days=min(days, MAX_DAYS))
    of_table = TableHealth.objects.filter(table=row, measured_at__gte=since)
    step = -(-of_table.count() // min(points, MAX_POINTS)) or 1
    numbered = of_table.annotate(
        number=Window(RowNumber(), order_by=[F("measured_at").desc(), F("pk").desc()])
    ).annotate(offset=Mod(F("number") - 1, step))
    series = list(numbered.filter(offset=0).order_by("measured_at", "pk"))
    newest = TableHealth.objects.newest().filter(table=row).first()
    return HealthHistory(newest, series)


def _behind(token: str) -> Q:
    score, _, table = token.partition(".")
    if not all(
        number.isascii() and number.isdigit() and len(number) < 19 for number in (score, table)
    ):
        raise InvalidInput(f"Page token {token!r} is not one of this list")
    return Q(score__gt=int(score)) | Q(score=int(score), table__gt=int(table))
