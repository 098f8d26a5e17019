"""Forms for the annotations of a namespace or table: owner, description, sensitivity, links and labels."""

from collections.abc import Container, Iterable, Mapping, Sequence
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
from catalog.services.governance.annotations import Changes, ColumnChanges, GivenLabel

DESCRIBE_MENU: dict[str, Any] = {
    "title": "Annotate",
    "icon": "edit_note",
    "items": ["describe", "label"],
}
"""The menu of these forms on a page."""
_INHERITED = ("", "Inherited")
_NO_SENSITIVITY = ("", "As the table")
_COLUMN_LEVELS = [_NO_SENSITIVITY, *Sensitivity.choices]
_MOST_KEYS = 20
"""Keys of labels in the help of a field."""


class AnnotationForm(forms.Form):
    """The annotations of an object, or with ``only`` one of them."""

    description = forms.CharField(
        required=False,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 4}),
        help_text="Markdown. Empty for no description.",
    )
    labels = forms.CharField(
        required=False,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 2, "spellcheck": "false"}),
    )

    def __init__(self, *args: Any, only: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if only in self.fields:
            self.fields = {only: self.fields[only]}
        if "labels" in self.fields:
            keys = LabelDefinition.objects.order_by("key").values_list("key", flat=True)
            self.fields["labels"].help_text = _labels_help(list(keys[: _MOST_KEYS + 1]))

    def clean_description(self) -> str:
        # A text area submits CRLF. Saving an unchanged form must not change the description.
        text: str = self.cleaned_data["description"]
        return text.replace("\r\n", "\n")

    def clean_labels(self) -> dict[str, list[str]]:
        """The values of each label."""
        labels: dict[str, list[str]] = {}
        for line in self.cleaned_data["labels"].splitlines():
            key, _, value = line.strip().partition("=")
            if key:
                labels.setdefault(key.strip(), []).append(value.strip())
        return labels


class DescribeForm(AnnotationForm):
    owner = forms.CharField(
        required=False,
        widget=UnfoldAdminTextInputWidget(attrs={"data-suggest": "principals"}),
        help_text="Name of a principal, such as etl, user:ada or group:analysts. Empty for no owner.",
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
    field_order = ("owner", "description", "labels", "sensitivity", "links")

    def clean_links(self) -> list[Link]:
        links = []
        for line in self.cleaned_data["links"].splitlines():
            url, _, title = line.strip().partition(" ")
            if url:
                links.append(Link(title.strip() or url, url))
        return links


class ColumnForm(AnnotationForm):
    sensitivity = forms.ChoiceField(
        required=False,
        choices=_COLUMN_LEVELS,
        widget=UnfoldAdminSelectWidget(choices=_COLUMN_LEVELS),
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


def _labels_help(keys: Sequence[str]) -> str:
    if not keys:
        return "No labels are defined. Administrators define labels on the page Labels."
    names = ", ".join([*keys[:_MOST_KEYS], *(["…"] if len(keys) > _MOST_KEYS else [])])
    return f"One label per line, with its value: {keys[0]}=value. Empty for none. Defined labels: {names}."


def describe(page: ReadOnlyAdmin, request: HttpRequest, row: Namespace | Table) -> HttpResponseBase:
    """Show the form of the annotations, or of one of them, and save the changed values."""
    current = annotations.annotations_of(row)
    # A title is one line of the form, whatever it has been set to.
    links = [Link(" ".join(link.title.split()), link.url) for link in current.links]
    before: dict[str, Any] = {
        "owner": current.owner,
        "description": current.description,
        "labels": _direct(current.labels),
        "sensitivity": current.said_sensitivity.value if current.said_sensitivity else "",
        "links": links,
    }
    shown = {
        "labels": _lines(before["labels"]),
        "links": "\n".join(f"{link.url} {link.title}" for link in links),
    }

    def call(data: dict[str, Any]) -> HttpResponseBase:
        _save(request, row, Changes(**_changed(before, data, request.POST)))
        messages.success(request, "Saved.")
        return HttpResponseRedirect(cells.page_url(row))

    only = word(request, "only")
    form = DescribeForm(sent(request), initial=before | shown, only=only)
    return page.ask(
        request,
        title=f"Edit {_subject(form)} of '{row}'",
        submit="Save",
        form=form,
        call=call,
        original=row,
    )


def describe_column(page: ReadOnlyAdmin, request: HttpRequest, row: Table) -> HttpResponseBase:
    """Show the form of the annotations of the column in the URL, or of one of them, and save the changed values."""
    path, back = word(request, "column"), _schema_url(row)
    if not path:
        messages.error(request, "Select a column on the tab Schema.")
        return HttpResponseRedirect(back)
    columns = annotations.annotations_of(row).columns
    current = next((column for column in columns if column.path == path), None)
    before: dict[str, Any] = {
        "description": current.description if current else "",
        "labels": _direct(current.labels if current else ()),
        "sensitivity": current.sensitivity.value if current and current.sensitivity else "",
    }

    def call(data: dict[str, Any]) -> HttpResponseBase:
        changes = ColumnChanges(**_changed(before, data, request.POST))
        _save(request, row, Changes(columns={path: changes}))
        messages.success(request, "Saved.")
        return HttpResponseRedirect(back)

    initial = before | {"labels": _lines(before["labels"])}
    form = ColumnForm(sent(request), initial=initial, only=word(request, "only"))
    return page.ask(
        request,
        title=f"Edit {_subject(form)} of column '{path}' of '{row}'",
        submit="Save",
        form=form,
        call=call,
        back=back,
        original=row,
    )


def _subject(form: AnnotationForm) -> str:
    return next(iter(form.fields)) if len(form.fields) == 1 else "annotations"


def _direct(labels: Iterable[GivenLabel]) -> dict[str, list[str]]:
    """The values of labels of the object itself."""
    return {label.key: list(label.values) for label in labels if not label.is_inherited}


def _lines(labels: Mapping[str, Sequence[str]]) -> str:
    return "\n".join(
        f"{key}={value}" if value else key for key, values in labels.items() for value in values
    )


def _changed(
    before: Mapping[str, Any], data: Mapping[str, Any], sent_fields: Container[str]
) -> dict[str, Any]:
    """The changes of a form. A field that was not sent keeps its value."""
    changes = {
        name: value for name, value in data.items() if name in sent_fields and value != before[name]
    }
    if "sensitivity" in changes:
        level = changes["sensitivity"]
        changes |= {
            "sets_sensitivity": True,
            "sensitivity": Sensitivity(level) if level else None,
        }
    if "labels" in changes:
        old, new = before["labels"], data["labels"]
        removed: dict[str, list[str]] = {key: [] for key in old if key not in new}
        changed = {key: values for key, values in new.items() if values != old.get(key)}
        changes["labels"] = removed | changed
    return changes


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
