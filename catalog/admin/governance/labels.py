"""Labels: the list of definitions, and creating, editing and deleting one."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import URLPattern
from django.utils.safestring import SafeString
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.form_pages import sent
from catalog.admin.governance.annotations import LABEL_COLOURS
from catalog.admin.pages import Page, Panel, ReadOnlyAdmin, button
from catalog.admin.search import search
from catalog.models import LabelAssignment, LabelColour, LabelDefinition, LabelTarget
from catalog.privileges import Privilege
from catalog.services.governance import annotations, descriptions

_SHOWN = 25


class ChangeForm(forms.Form):
    description = forms.CharField(
        required=False,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3}),
        help_text="Markdown. Empty for no description.",
    )
    colour = forms.ChoiceField(
        choices=LabelColour.choices,
        initial=LabelColour.GREY,
        widget=UnfoldAdminSelectWidget(choices=LabelColour.choices),
    )
    values = forms.CharField(
        required=False,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 4, "spellcheck": "false"}),
        help_text="Allowed values, one per line. Default: any text.",
    )
    is_multiple = forms.BooleanField(
        required=False,
        label="Multiple values: an object may have several values of the label",
        widget=UnfoldBooleanSwitchWidget(),
    )
    applies_to = forms.MultipleChoiceField(
        choices=[(value, text.capitalize()) for value, text in LabelTarget.choices],
        initial=LabelTarget.values,
        widget=UnfoldAdminCheckboxSelectMultipleWidget(),
        label="Applies to",
    )

    def clean_values(self) -> list[str]:
        lines = (line.strip() for line in self.cleaned_data["values"].splitlines())
        return [line for line in lines if line]


class AddForm(ChangeForm):
    key = forms.CharField(
        max_length=63,
        widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off", "spellcheck": "false"}),
        help_text="Lowercase letters, digits, '_', '-' and '.', such as pii or data-domain.",
    )
    field_order = ("key",)


def _definition_fields(data: dict[str, Any]) -> dict[str, Any]:
    """The form data as arguments of the services."""
    return {
        "description": data["description"],
        "colour": LabelColour(data["colour"]),
        "values": data["values"],
        "is_multiple": data["is_multiple"],
        "applies_to": [LabelTarget(value) for value in data["applies_to"]],
    }


@admin.register(LabelDefinition)
class LabelAdmin(ReadOnlyAdmin):
    list_display = ["badge", "shown_values", "multiple", "shown_places", "shown_description"]
    list_display_links = ["badge"]
    search_fields = ["key", "description"]
    empty_text = "No labels. Define a label such as “pii” here, and set it on namespaces, tables and columns."
    ordering = ["key"]
    actions_detail = ["edit", "remove"]

    @admin.display(description="Label")
    def badge(self, row: LabelDefinition) -> SafeString:
        return cells.badge(row.key, LABEL_COLOURS[row.colour])

    @admin.display(description="Values")
    def shown_values(self, row: LabelDefinition) -> object:
        return cells.clipped(", ".join(row.values)) if row.values else cells.muted("any text")

    @admin.display(description="Multiple", boolean=True)
    def multiple(self, row: LabelDefinition) -> bool:
        return row.is_multiple

    @admin.display(description="Applies to")
    def shown_places(self, row: LabelDefinition) -> str:
        return ", ".join(row.applies_to)

    @admin.display(description="Description")
    def shown_description(self, row: LabelDefinition) -> object:
        return cells.clipped(row.description) or cells.NOTHING

    def get_urls(self) -> list[URLPattern]:
        urls: list[URLPattern] = super().get_urls()
        return [*search.urls(self), *urls]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.may(request, Privilege.ALL)

    def has_define_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may(request, Privilege.ALL)

    def page(self, request: HttpRequest, row: LabelDefinition) -> Page:
        assignments = LabelAssignment.objects.filter(definition=row).select_related(
            "namespace", "table__namespace"
        )
        newest = list(assignments.order_by("-pk")[: _SHOWN + 1])
        return Page(
            facts=(
                ("Key", self.badge(row)),
                ("Description", descriptions.render(row.description) or cells.NOTHING),
                ("Values", self.shown_values(row)),
                ("Multiple values", "yes" if row.is_multiple else "no"),
                ("Applies to", self.shown_places(row)),
                ("Created by", cells.who(row.created_by)),
                ("Created", cells.when(row.created_at)),
            ),
            panels=[
                Panel(
                    title="Recent assignments",
                    columns=("Object", "Column", "Value", "Set by", "Set at"),
                    rows=[
                        (
                            cells.link(assignment.table or assignment.namespace),
                            cells.code(assignment.column),
                            assignment.value or cells.NOTHING,
                            cells.who(assignment.set_by),
                            cells.when(assignment.set_at),
                        )
                        for assignment in newest[:_SHOWN]
                    ],
                    empty="No assignments.",
                    note="The search lists all assignments." if len(newest) > _SHOWN else "",
                    following=search.url(f"label:{row.key}") if newest else None,
                )
            ],
        )

    def add_page(self, request: HttpRequest) -> HttpResponseBase:
        def create(data: dict[str, Any]) -> HttpResponseBase:
            who = actor(request)
            row = annotations.create_label(actor=who, key=data["key"], **_definition_fields(data))
            messages.success(request, f"Label '{row}' was created")
            return HttpResponseRedirect(cells.page_url(row))

        return self.ask(
            request,
            title="Create a label",
            submit="Create",
            form=AddForm(sent(request)),
            call=create,
            back=cells.list_url(LabelDefinition),
        )

    @button("Edit", permission="define", icon="edit")
    def edit(self, request: HttpRequest, row: LabelDefinition) -> HttpResponseBase:
        def call(data: dict[str, Any]) -> HttpResponseBase:
            who = actor(request)
            annotations.update_label(actor=who, key=row.key, **_definition_fields(data))
            messages.success(request, f"Label '{row}' was updated")
            return HttpResponseRedirect(cells.page_url(row))

        initial = {
            "description": row.description,
            "colour": row.colour,
            "values": "\n".join(row.values),
            "is_multiple": row.is_multiple,
            "applies_to": row.applies_to,
        }
        return self.ask(
            request,
            title=f"Edit label '{row}'",
            submit="Save",
            form=ChangeForm(sent(request), initial=initial),
            call=call,
            original=row,
        )

    @button("Delete", permission="define", icon="delete", danger=True)
    def remove(self, request: HttpRequest, row: LabelDefinition) -> HttpResponseBase:
        def call(_data: dict[str, Any]) -> HttpResponseBase:
            annotations.delete_label(actor=actor(request), key=row.key)
            messages.success(request, f"Label '{row}' was deleted")
            return HttpResponseRedirect(cells.list_url(LabelDefinition))

        return self.ask(
            request,
            title=f"Delete label '{row}'?",
            text="A label with assignments cannot be deleted. Remove its assignments first.",
            submit="Delete",
            danger=True,
            call=call,
            original=row,
        )
