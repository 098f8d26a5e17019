"""Forms for the annotations of a namespace or table: owner, description, sensitivity, links and labels."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from unfold.widgets import (
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.form_pages import sent
from catalog.admin.pages import ReadOnlyAdmin
from catalog.admin.paging import word
from catalog.errors import NamespaceNotFound, TableNotFound
from catalog.models import LabelDefinition, Namespace, Sensitivity, Table, TableState
from catalog.services.governance import annotations
from catalog.services.governance.annotation_operations import Link
from catalog.services.governance.annotations import Changes, ColumnChanges

DESCRIBE_MENU: dict[str, Any] = {
    "title": "Annotate",
    "icon": "edit_note",
    "items": ["describe", "label"],
}
"""The menu of these forms on a page."""
_INHERITED = ("", "Inherited")
_NO_SENSITIVITY = ("", "As the table")
COLUMN_LEVELS = [_NO_SENSITIVITY, *Sensitivity.choices]
"""The choices of the sensitivity of a column."""


class DescribeForm(forms.Form):
    owner = forms.CharField(
        required=False,
        widget=UnfoldAdminTextInputWidget(attrs={"data-suggest": "principals"}),
        help_text="Name of a principal, such as etl, user:ada or group:analysts. Empty for no owner.",
    )
    description = forms.CharField(
        required=False,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 8}),
        help_text="Markdown. Empty for no description.",
    )
    sensitivity = forms.ChoiceField(
        required=False,
        choices=[_INHERITED, *Sensitivity.choices],
        widget=UnfoldAdminSelectWidget(choices=[_INHERITED, *Sensitivity.choices]),
    )
    links = forms.CharField(
        required=False,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3, "spellcheck": "false"}),
        help_text="One link per line: the URL, a space and the title. The title defaults to the URL.",
    )

    def clean_links(self) -> list[Link]:
        links = []
        for line in self.cleaned_data["links"].splitlines():
            url, _, title = line.strip().partition(" ")
            if url:
                links.append(Link(title.strip() or url, url))
        return links


class ColumnForm(forms.Form):
    description = forms.CharField(
        required=False,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 4}),
        help_text="Markdown. Empty for no description.",
    )
    sensitivity = forms.ChoiceField(
        required=False,
        choices=COLUMN_LEVELS,
        widget=UnfoldAdminSelectWidget(choices=COLUMN_LEVELS),
    )


class LabelForm(forms.Form):
    """A label and its values. Without values, the label is removed."""

    label = forms.ChoiceField(widget=UnfoldAdminSelectWidget())
    values = forms.CharField(
        required=False,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 2, "spellcheck": "false"}),
        help_text="One value per line. Empty to remove the label.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choices = [
            (definition.key, _choice_text(definition))
            for definition in LabelDefinition.objects.order_by("key")
        ]
        self.fields["label"] = forms.ChoiceField(
            choices=choices, widget=UnfoldAdminSelectWidget(choices=choices)
        )
        self.order_fields(["label", "values", "column"])

    def clean_values(self) -> list[str]:
        lines = (line.strip() for line in self.cleaned_data["values"].splitlines())
        return [line for line in lines if line]


class ColumnLabelForm(LabelForm):
    column = forms.CharField(
        required=False,
        widget=UnfoldAdminTextInputWidget(attrs={"spellcheck": "false"}),
        help_text="Path of a column. Empty for the table itself.",
    )


def _choice_text(definition: LabelDefinition) -> str:
    return (
        f"{definition.key}: {', '.join(definition.values)}" if definition.values else definition.key
    )


def describe(page: ReadOnlyAdmin, request: HttpRequest, row: Namespace | Table) -> HttpResponseBase:
    """Show the form of owner, description, sensitivity and links, and save the changed values."""
    current = annotations.annotations_of(row)
    before = {
        "owner": current.owner,
        "description": current.description,
        "sensitivity": current.said_sensitivity.value if current.said_sensitivity else "",
        "links": list(current.links),
    }
    shown_links = "\n".join(f"{link.url} {link.title}" for link in current.links)
    form = DescribeForm(sent(request), initial=before | {"links": shown_links})

    def call(data: dict[str, Any]) -> HttpResponseBase:
        # A text area submits CRLF. Saving an unchanged form must not change the description.
        data["description"] = data["description"].replace("\r\n", "\n")
        changed = {name: data[name] for name in before if data[name] != before[name]}
        sets_sensitivity = "sensitivity" in changed
        sensitivity = changed.pop("sensitivity", "")
        _save(
            request,
            row,
            Changes(
                **changed,
                sets_sensitivity=sets_sensitivity,
                sensitivity=Sensitivity(sensitivity) if sensitivity else None,
            ),
        )
        messages.success(request, "Saved.")
        return HttpResponseRedirect(cells.page_url(row))

    return page.ask(
        request,
        title=f"Edit description and owner of '{row}'",
        submit="Save",
        form=form,
        call=call,
        original=row,
    )


def describe_column(page: ReadOnlyAdmin, request: HttpRequest, row: Table) -> HttpResponseBase:
    """Show the form of description and sensitivity of the column in the URL, and save the changed values."""
    path, back = word(request, "column"), _schema_url(row)
    if not path:
        messages.error(request, "Select a column on the tab Schema.")
        return HttpResponseRedirect(back)
    columns = annotations.annotations_of(row).columns
    current = next((column for column in columns if column.path == path), None)
    before = {
        "description": current.description if current else "",
        "sensitivity": current.sensitivity.value if current and current.sensitivity else "",
    }

    def call(data: dict[str, Any]) -> HttpResponseBase:
        data["description"] = data["description"].replace("\r\n", "\n")
        level = data["sensitivity"]
        changes = ColumnChanges(
            description=(
                data["description"] if data["description"] != before["description"] else None
            ),
            sets_sensitivity=level != before["sensitivity"],
            sensitivity=Sensitivity(level) if level else None,
        )
        _save(request, row, Changes(columns={path: changes}))
        messages.success(request, "Saved.")
        return HttpResponseRedirect(back)

    return page.ask(
        request,
        title=f"Edit column '{path}' of '{row}'",
        submit="Save",
        form=ColumnForm(sent(request), initial=before),
        call=call,
        back=back,
        original=row,
    )


def label(page: ReadOnlyAdmin, request: HttpRequest, row: Namespace | Table) -> HttpResponseBase:
    """Show the form of labels, and set or remove a label of a namespace, table or column."""
    of_table = isinstance(row, Table)
    path = word(request, "column") if of_table else ""
    form = (ColumnLabelForm if of_table else LabelForm)(sent(request), initial={"column": path})
    back = _schema_url(row) if path else cells.page_url(row)

    def call(data: dict[str, Any]) -> HttpResponseBase:
        label_values = {data["label"]: data["values"]}
        column = data.get("column", "")
        changes = (
            Changes(columns={column: ColumnChanges(labels=label_values)})
            if column
            else Changes(labels=label_values)
        )
        _save(request, row, changes)
        subject = f"column '{column}' of '{row}'" if column else f"'{row}'"
        verb = "set on" if data["values"] else "removed from"
        messages.success(request, f"Label '{data['label']}' was {verb} {subject}")
        return HttpResponseRedirect(back)

    return page.ask(
        request,
        title=f"Edit labels of '{row}'",
        text=""
        if form.fields["label"].choices  # type: ignore[attr-defined]
        else "No labels are defined. Administrators define labels on the page Labels.",
        submit="Save",
        form=form,
        call=call,
        back=back,
        original=row,
    )


def _schema_url(row: Namespace | Table) -> str:
    return f"{cells.page_url(row)}?tab=schema"


def _save(request: HttpRequest, row: Namespace | Table, changes: Changes) -> None:
    """Save changes. Raises CatalogError, also for a dropped row, whose name another row may have now."""
    principal = actor(request)
    if isinstance(row, Table):
        if row.state == TableState.DROPPED:
            raise TableNotFound(row.identifier)
        annotations.annotate_table(actor=principal, table=row.identifier, changes=changes)
    else:
        if row.dropped_at is not None:
            raise NamespaceNotFound(row.identifier)
        annotations.annotate_namespace(actor=principal, namespace=row.identifier, changes=changes)
