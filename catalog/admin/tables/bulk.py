"""Actions on several tables of the list: label, protect, drop.

Each table is changed by itself, with the privileges of the user. Errors are shown with the table."""

from collections.abc import Callable, Sequence
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from catalog.access import Principal
from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.governance import impact
from catalog.admin.governance.annotation_actions import LabelForm
from catalog.admin.pages import ReadOnlyAdmin
from catalog.errors import CatalogError, TableNotFound
from catalog.models import Table, TableFormat, TableKind, TableState
from catalog.services.engine.commit import commit
from catalog.services.governance import annotations
from catalog.services.governance.annotations import Changes
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg import views as iceberg_views
from catalog.services.recovery import undrop
from catalog.services.tables.table_operations import DropTable

MAX_TABLES = 200
"""Maximum number of tables that an action changes."""
_SHOWN = 5
_Change = Callable[[Principal, Table, dict[str, Any]], None]


def for_each(
    request: HttpRequest,
    rows: Sequence[Table],
    participle: str,
    change: _Change,
    data: dict[str, Any],
) -> None:
    """Change each table, and show the number of changed tables and the errors of the others."""
    principal = actor(request)
    count, refused = 0, []
    for row in rows:
        try:
            if row.state == TableState.DROPPED:
                # Services look up by name, and another table may have the name now.
                raise TableNotFound(row.identifier)
            change(principal, row, data)
            count += 1
        except CatalogError as error:
            refused.append(f"{row}: {error.message}")
    if count:
        messages.success(
            request, f"{count} {'table was' if count == 1 else 'tables were'} {participle}"
        )
    for text in refused[:_SHOWN]:
        messages.warning(request, text)
    if len(refused) > _SHOWN:
        messages.warning(request, cells.not_changed(len(refused) - _SHOWN))


def _confirm(
    page: ReadOnlyAdmin,
    request: HttpRequest,
    chosen: QuerySet[Table],
    *,
    action: str,
    title: str,
    submit: str,
    participle: str,
    change: _Change,
    form: type[forms.Form] = forms.Form,
    text: str = "",
    danger: bool = False,
    warn: Callable[[Principal, Sequence[Table]], str] | None = None,
) -> HttpResponseBase | None:
    """Show the selected tables and the form; once it is submitted, apply the change."""
    rows = list(chosen.select_related("namespace").order_by("pk")[: MAX_TABLES + 1])
    if len(rows) > MAX_TABLES:
        messages.error(request, f"No table was changed. Select at most {MAX_TABLES} tables.")
        return None
    filled = form(request.POST if "confirmed" in request.POST else None)
    if filled.is_valid():
        for_each(request, rows, participle, change, filled.cleaned_data)
        return None
    return page.render(
        request,
        "admin/catalog/bulk.html",
        {
            "title": title.format(f"{len(rows)} {'table' if len(rows) == 1 else 'tables'}"),
            "form": filled,
            "text": text + (warn(actor(request), rows) if warn else ""),
            "submit_text": submit,
            "danger": danger,
            "rows": rows,
            "action": action,
            "checkbox": ACTION_CHECKBOX_NAME,
        },
    )


@admin.action(description="Set label", permissions=["rename"])
def label_many(
    page: ReadOnlyAdmin, request: HttpRequest, chosen: QuerySet[Table]
) -> HttpResponseBase | None:
    return _confirm(
        page,
        request,
        chosen,
        action="label_many",
        title="Set label on {}",
        submit="Save",
        participle="labeled",
        change=_label,
        form=LabelForm,
    )


@admin.action(description="Protect", permissions=["rename"])
def protect_many(
    page: ReadOnlyAdmin, request: HttpRequest, chosen: QuerySet[Table]
) -> HttpResponseBase | None:
    return _confirm(
        page,
        request,
        chosen,
        action="protect_many",
        title="Protect {}?",
        text="Protected tables cannot be dropped or overwritten until the protection is removed.",
        submit="Protect",
        participle="protected",
        change=_protect,
    )


@admin.action(description="Drop", permissions=["drop"])
def drop_many(
    page: ReadOnlyAdmin, request: HttpRequest, chosen: QuerySet[Table]
) -> HttpResponseBase | None:
    return _confirm(
        page,
        request,
        chosen,
        action="drop_many",
        title="Drop {}?",
        text="Dropped tables go to the trash, and can be undropped until their retention ends.",
        submit="Drop",
        participle="dropped",
        change=_drop,
        danger=True,
        warn=impact.of_tables,
    )


ACTIONS = [label_many, protect_many, drop_many]


def _label(principal: Principal, row: Table, data: dict[str, Any]) -> None:
    changes = Changes(labels={data["label"]: data["values"]})
    annotations.annotate_table(actor=principal, table=row.identifier, changes=changes)


def _protect(principal: Principal, row: Table, _data: dict[str, Any]) -> None:
    undrop.set_table_protection(actor=principal, table=row.identifier, is_protected=True)


def _drop(principal: Principal, row: Table, _data: dict[str, Any]) -> None:
    """Drop with the defaults of the button on the page of a table."""
    if row.kind == TableKind.VIEW:
        iceberg_views.drop_view(actor=principal, view=row.identifier)
    elif row.format == TableFormat.ICEBERG:
        iceberg_tables.drop_table(actor=principal, table=row.identifier, purge=False)
    else:
        commit([DropTable(table=row.identifier, purge=True)], actor=principal)
