"""The path to a page: the catalog, the namespaces, the object, and the tab or form."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Model

from catalog.admin import cells
from catalog.models import Function, MaterializedView, Namespace, Table

Crumb = tuple[str, str]
"""A text and its URL; the URL is empty for a place without a page."""


def path(original: Model, opts: Any, last: Sequence[Crumb] = ()) -> list[Crumb]:
    """The path to a page of a row. ``last`` is what follows the row. At most one statement.

    Objects of the catalog follow their namespaces; other rows follow their list.
    """
    url = cells.page_url(original)
    if isinstance(original, Namespace) and opts.model is Namespace:
        return [*_namespaces(original), *last]
    if isinstance(original, Table) and opts.model is Table:
        return [*_namespaces(original.namespace), (original.name, url), *last]
    if isinstance(original, Function):
        return [*_namespaces(original.namespace), (original.name, url), *last]
    if isinstance(original, MaterializedView):
        return [*_namespaces(original.table.namespace), (original.table.name, url), *last]
    return [list_of(opts), (str(original), url), *last]


def list_of(opts: Any) -> Crumb:
    """The list of a model."""
    name = str(opts.verbose_name_plural)
    return (name[0].upper() + name[1:], cells.list_url(opts.model))


def of_tab(
    titles: Mapping[str, str], groups: Sequence[tuple[str, Sequence[str]]], key: str
) -> list[Crumb]:
    """The open tab of a page, and its section, from the titles and groups of its tabs."""
    if key not in titles:
        return []
    title, keys = next((group for group in groups if key in group[1]), ("", (key,)))
    if title in {"", titles[key]}:
        return [(titles[key], "")]
    first = next(name for name in keys if name in titles)
    return [(title, f"?tab={first}"), (titles[key], "")]


def _namespaces(row: Namespace) -> list[Crumb]:
    """The catalog, and the namespaces down to this one. No statement unless it has a parent with a name."""
    root = ("Catalog", cells.list_url(Namespace))
    if row.parent_id is None:
        return [root]
    path = row.identifier
    above = [path[:depth] for depth in range(1, len(path))]
    rows = {tuple(each.path): each for each in Namespace.objects.named(*above)} if above else {}
    return [
        root,
        *((name[-1], cells.page_url(rows[name]) if name in rows else "") for name in above),
        (row.name, cells.page_url(row)),
    ]
