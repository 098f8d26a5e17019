"""The list of namespaces: the tree, of which each level is one page, and the search by name."""

from collections.abc import Sequence
from typing import Any

from django.db.models import OuterRef, QuerySet
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from catalog import access
from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.pages import ReadOnlyAdmin
from catalog.admin.paging import COUNT_LIMIT, count_up_to, number, query, word
from catalog.models import Namespace, Table
from catalog.privileges import Privilege

_ROWS = 50
_DEEPEST = 24  # maximum indentation, in levels
_MATCHES = 50


def view(page: ReadOnlyAdmin, request: HttpRequest) -> HttpResponseBase:
    """The tree below the requested parent, or the results of a search."""
    term = word(request, "q").strip()
    dropped = request.GET.get("dropped") == "1"
    context: dict[str, Any] = {"title": "Namespaces", "query": term, "dropped": dropped}
    if term or dropped:
        return _search_results(page, request, context, term, dropped)
    parent = parent_of(page, request)
    if parent is None:
        return page.missing(request, request.GET["parent"])
    depth = number(request, "depth", 0) or 0
    inside = Namespace.objects.live().filter(parent=parent, name__gt=word(request, "after"))
    rows = list(counted(request, page.only_visible(request, inside)).order_by("name")[: _ROWS + 1])
    following = None
    if len(rows) > _ROWS:
        rows = rows[:_ROWS]
        following = query(request, parent=parent.pk, after=rows[-1].name)
    context |= {
        "rows": [_row(row, depth, row.name) for row in rows],
        "following": following,
        "depth": depth,
        "indent": _indent(depth),
    }
    if request.GET.get("rows") == "1":
        return page.render(request, "admin/catalog/namespace_rows.html", context)
    context |= {
        "parent": parent,
        "parent_url": cells.page_url(parent),
        "trail": _trail(parent),
        "is_first": not request.GET.get("after"),
        "first": query(request, after=None),
        "add_url": f"add/?parent={parent.pk}" if may_create_in(request, parent) else None,
    }
    return page.render(request, "admin/catalog/namespaces.html", context)


def parent_of(page: ReadOnlyAdmin, request: HttpRequest) -> Namespace | None:
    """The requested parent, by default the root; None if it is not visible."""
    if "parent" not in request.GET:
        return Namespace.objects.named(()).get()
    rows = page.only_visible(request, Namespace.objects.live())
    return rows.filter(pk=number(request, "parent") or 0).first()


def _search_results(
    page: ReadOnlyAdmin, request: HttpRequest, context: dict[str, Any], term: str, dropped: bool
) -> HttpResponseBase:
    rows = page.only_visible(request, Namespace.objects.exclude(parent=None))
    rows = rows.filter(dropped_at__isnull=not dropped)
    if term:
        rows = rows.filter(name__icontains=term)
    before = number(request, "before")
    if before is not None:
        rows = rows.filter(pk__lt=before)
    matches = list(counted(request, rows).order_by("-pk")[: _MATCHES + 1])
    context |= {
        "rows": [_row(row, 0, str(row), is_flat=True) for row in matches[:_MATCHES]],
        "following": (
            query(request, before=matches[_MATCHES - 1].pk) if len(matches) > _MATCHES else None
        ),
        "is_flat": True,
        "is_first": before is None,
        "first": query(request, before=None),
    }
    return page.render(request, "admin/catalog/namespaces.html", context)


def counted(request: HttpRequest, rows: QuerySet[Namespace]) -> QuerySet[Namespace]:
    """Annotate namespaces with the numbers of their visible namespaces and tables."""
    principal = actor(request)
    children = Namespace.objects.live().filter(access.visible_namespaces(principal))
    tables = Table.objects.present().filter(access.visible_tables(principal))
    return rows.annotate(
        namespace_count=count_up_to(children.filter(parent=OuterRef("pk"))),
        table_count=count_up_to(tables.filter(namespace=OuterRef("pk"))),
    )


def _row(row: Any, depth: int, text: str, *, is_flat: bool = False) -> dict[str, object]:
    return {
        "row": row,
        "text": text,
        "url": cells.page_url(row),
        "depth": depth,
        "indent": _indent(depth),
        "namespaces": cells.bounded(row.namespace_count, COUNT_LIMIT),
        "tables": cells.bounded(row.table_count, COUNT_LIMIT),
        "owner": cells.who(row.owner),
        "created": cells.when(row.created_at),
        "opens": bool(row.namespace_count) and not is_flat,
    }


def _indent(depth: int) -> str:
    return f"{min(depth, _DEEPEST) * 1.4:.1f}"


def _trail(row: Namespace) -> Sequence[tuple[str, str]]:
    """Namespaces from the root to this one. One statement for any depth."""
    paths = [row.identifier[:depth] for depth in range(len(row.path) + 1)]
    rows = sorted(Namespace.objects.named(*paths), key=lambda namespace: len(namespace.path))
    return [
        (namespace.name or str(namespace), cells.list_url(Namespace, f"parent={namespace.pk}"))
        for namespace in rows
    ]


def may_create_in(request: HttpRequest, row: Namespace) -> bool:
    return access.holds(actor(request), Privilege.CREATE, row)
