"""The section "Column profile" of a table's page: the same for both table formats."""

from collections.abc import Callable, Mapping

import pyarrow as pa
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.html import format_html

from catalog.admin import cells, charts
from catalog.admin.pages import Panel
from catalog.admin.paging import word
from catalog.admin.row_previews import shown_cell
from catalog.errors import CatalogError
from catalog.formats.rows.profiles import MOST_VECTORS, Profile, has_profile, is_vector
from catalog.services.lance.contents import Unreadable

_OFFERED = 500  # columns to choose from


def panels(
    request: HttpRequest,
    schema: pa.Schema,
    version: Mapping[str, str],
    compute: Callable[[str], Profile],
) -> list[Panel]:
    """The form, and the profile of the chosen column. ``version`` has the parameters of the version."""
    names = [field.name for field in schema if has_profile(field)]
    column = word(request, "column")
    form = render_to_string(
        "admin/catalog/column_profile.html",
        {"names": names[:_OFFERED], "column": column, "version": version},
    )
    if not column:
        empty = "Select a column. Its values are read now, for at most 5 seconds."
        if not names:
            empty = "No column has a profile: nested and binary columns have none."
        return [Panel((), (), empty, title="Column profile", lead=form)]
    try:
        profile = compute(column)
    except CatalogError as error:
        return [Panel((), (), cells.clipped(error.message, 2000), lead=form)]
    except Unreadable as error:
        return [Panel((), (), f"The column cannot be read: {error}", lead=form)]
    field = schema.field(column)
    shown = [_figures(field, profile, form)]
    if profile.top:
        shown.append(_top(profile))
    if is_vector(field):
        shown.append(_map(profile))
    return shown


def _figures(field: pa.Field, profile: Profile, form: str) -> Panel:
    rows: list[tuple[object, object]] = [
        ("Type", cells.code(cells.clipped(str(field.type)))),
        ("Rows read", f"{profile.rows:,}"),
        ("Nulls", cells.meter(profile.nulls, profile.rows, _share(profile.nulls, profile.rows))),
    ]
    if not is_vector(field):
        distinct = "too many to count" if profile.distinct is None else f"{profile.distinct:,}"
        rows.append(("Distinct values", distinct))
    if profile.lowest is not None and profile.highest is not None:
        rows += [
            ("Minimum", shown_cell(profile.lowest)),
            ("Maximum", shown_cell(profile.highest)),
        ]
    lead = format_html("{}", form)
    if profile.histogram and profile.lowest is not None and profile.highest is not None:
        chart = charts.distribution(
            f"Distribution of {field.name}",
            profile.histogram,
            profile.lowest.text,
            profile.highest.text,
        )
        lead = format_html("{}{}", form, chart)
    return Panel(
        title="Column profile",
        columns=("Figure", "Value"),
        rows=rows,
        empty="",
        lead=lead,
        note=profile.stopped,
    )


def _share(part: int, whole: int) -> str:
    return f"{part:,} ({100 * part / whole:.1f} %)" if whole else f"{part:,}"


def _top(profile: Profile) -> Panel:
    return Panel(
        title="Most frequent values",
        columns=("Value", "Rows"),
        rows=[
            (
                shown_cell(top.value),
                cells.meter(top.rows, profile.rows, _share(top.rows, profile.rows)),
            )
            for top in profile.top
        ],
        empty="",
    )


def _map(profile: Profile) -> Panel:
    if not profile.points:
        return Panel(
            (),
            (),
            "There are fewer than three different vectors to draw.",
            title="Vectors in two dimensions",
        )
    names = [f"vector {number:,}" for number in range(1, len(profile.points) + 1)]
    title = f"{len(profile.points):,} vectors in two dimensions"
    note = (
        f"The first {MOST_VECTORS:,} vectors at most, by their two principal components. "
        "Similar vectors are close to each other; vectors that are close may still differ."
    )
    return Panel(
        (),
        (),
        note,
        title="Vectors in two dimensions",
        lead=charts.scatter(title, profile.points, names),
    )
