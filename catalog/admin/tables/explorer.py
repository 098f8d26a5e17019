"""The tree in the sidebar: namespaces, tables and views, loaded level by level."""

from typing import Any

from django.contrib import admin
from django.db.models import OuterRef, Subquery
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import URLPattern, path

from catalog import access
from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.paging import number, query, word
from catalog.admin.score_charts import FAIR
from catalog.identifiers import digest
from catalog.models import Namespace, Table, TableFormat, TableHealth, TableKind

PAGE_SIZE = 50
_ICONS = {TableFormat.LANCE: "table", TableFormat.ICEBERG: "table_rows"}


def urls() -> list[URLPattern]:
    return [path("", admin.site.admin_view(_view), name="explorer")]


def _view(request: HttpRequest) -> HttpResponseBase:
    """A page of the children of a namespace: namespaces first, then tables and views.

    Two statements, or three on the page on which the namespaces end.
    """
    parent = number(request, "parent")
    visible = Namespace.objects.live().filter(access.visible_namespaces(actor(request)))
    row = visible.filter(**({"digest": digest(())} if parent is None else {"pk": parent})).first()
    if row is None:
        if parent is None:  # the user sees nothing
            return render(request, "admin/catalog/explorer_rows.html", {})
        raise Http404
    after_table = word(request, "table")
    spaces: list[Namespace] = []
    if not after_table:
        below = visible.filter(parent=row, name__gt=word(request, "after"))
        spaces = list(below.order_by("name")[: PAGE_SIZE + 1])
    following = None
    tables: list[Any] = []
    if len(spaces) > PAGE_SIZE:
        following = query(request, parent=row.pk, after=spaces[PAGE_SIZE - 1].name)
    else:
        tables = _tables(request, row, after_table)
        if len(tables) > PAGE_SIZE:
            last = tables[PAGE_SIZE - 1].name
            following = query(request, parent=row.pk, after=None, table=last)
    context = {
        "spaces": [(space, cells.page_url(space)) for space in spaces[:PAGE_SIZE]],
        "tables": [_shown(table) for table in tables[:PAGE_SIZE]],
        "following": following,
    }
    return render(request, "admin/catalog/explorer_rows.html", context)


def _tables(request: HttpRequest, row: Namespace, after: str) -> list[Any]:
    scores = TableHealth.objects.newest().filter(table=OuterRef("pk")).values("score")[:1]
    rows = Table.objects.present().filter(
        access.visible_tables(actor(request)), namespace=row, name__gt=after
    )
    return list(rows.annotate(score=Subquery(scores)).order_by("name")[: PAGE_SIZE + 1])


def _shown(table: Any) -> dict[str, Any]:
    is_view = table.kind == TableKind.VIEW
    return {
        "name": table.name,
        "url": cells.page_url(table),
        "icon": "table_eye" if is_view else _ICONS[table.format],
        "title": f"{table.get_format_display()} {table.kind}",
        "is_protected": table.is_protected,
        "needs_work": table.score is not None and table.score < FAIR,
    }
