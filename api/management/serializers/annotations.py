"""Serializers of annotations, labels and searches."""

from typing import Any

from rest_framework import serializers

from api.management import fields
from api.management.serializers.base import PageQuery, Serializer
from catalog.models import LabelColour, LabelTarget, Sensitivity, TableFormat
from catalog.services.governance.annotation_operations import Link
from catalog.services.governance.annotations import Changes, ColumnChanges
from catalog.services.search import query

_MARKDOWN = "Markdown."
_VALUES = "Empty: any text is a value."
_APPLIES_TO = "The kinds of objects that it can be assigned to."

# --- labels ----------------------------------------------------------------------------------------


class LabelSerializer(Serializer):
    """The definition of a label."""

    key = serializers.CharField()
    description = serializers.CharField()
    colour = fields.EnumField(LabelColour)
    values = fields.NamesField(help_text=_VALUES)
    is_multiple = serializers.BooleanField(
        help_text="Whether an object can have several values of the label."
    )
    applies_to = serializers.ListField(child=fields.EnumField(LabelTarget), help_text=_APPLIES_TO)
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class LabelsSerializer(Serializer):
    """All labels, by key."""

    labels = LabelSerializer(many=True)


class CreateLabelSerializer(Serializer):
    """A label to define."""

    key = fields.TextField(help_text="Up to 63 of a-z, 0-9, '_', '-' and '.'.")
    description = fields.TextField(default="")
    colour = fields.EnumField(LabelColour, default=LabelColour.GREY)
    values = fields.ListField(default=list, help_text=_VALUES)
    is_multiple = fields.FlagField(default=False)
    applies_to = fields.ListField(
        child=fields.EnumField(LabelTarget),
        default=lambda: list(LabelTarget),
        help_text=_APPLIES_TO,
    )


class UpdateLabelSerializer(Serializer):
    """Changes of a label. Omitted fields keep their values."""

    description = fields.TextField(**fields.OPTIONAL)
    colour = fields.EnumField(LabelColour, **fields.OPTIONAL)
    values = fields.ListField(**fields.OPTIONAL)
    is_multiple = fields.FlagField(**fields.OPTIONAL)
    applies_to = fields.ListField(
        child=fields.EnumField(LabelTarget), **fields.OPTIONAL, help_text=_APPLIES_TO
    )


# --- annotations -----------------------------------------------------------------------------------


class LinkSerializer(Serializer):
    """A link to a page about the object."""

    title = fields.TextField()
    url = fields.TextField(help_text="http or https.")


class GivenLabelSerializer(Serializer):
    """The values of a label that an object has."""

    key = serializers.CharField()
    values = fields.NamesField()
    source = serializers.CharField(help_text="The object that carries it, with dots.")  # type: ignore[assignment]
    is_inherited = serializers.BooleanField()


class ColumnAnnotationsSerializer(Serializer):
    """A column and its annotations."""

    path = serializers.CharField()
    type = serializers.CharField(
        help_text="Empty: the column no longer exists, or the schema was not read yet."
    )
    comment = serializers.CharField(help_text="The comment of the schema.")
    description = serializers.CharField()
    sensitivity = fields.EnumField(Sensitivity, allow_null=True)
    labels = GivenLabelSerializer(many=True)


class AnnotationsSerializer(Serializer):
    """The annotations of a namespace, a table or a view, with the inherited ones."""

    identifier = fields.NamesField()
    kind = serializers.CharField(help_text="namespace, table or view.")
    format = fields.EnumField(TableFormat, allow_null=True)
    owner = serializers.CharField()
    description = serializers.CharField(help_text=_MARKDOWN)
    links = LinkSerializer(many=True)
    labels = GivenLabelSerializer(many=True, help_text="Direct and inherited labels.")
    direct_sensitivity = fields.EnumField(
        Sensitivity, source="said_sensitivity", allow_null=True, help_text="Null: inherited."
    )
    sensitivity = fields.EnumField(
        Sensitivity, allow_null=True, help_text="The effective sensitivity: the nearest one."
    )
    sensitivity_source = serializers.CharField(
        help_text="The object that sets it, with dots. Empty: none."
    )
    highest_sensitivity = fields.EnumField(
        Sensitivity,
        allow_null=True,
        help_text="The highest of the effective sensitivity and those of the columns.",
    )
    columns = ColumnAnnotationsSerializer(many=True)


class UpdateColumnSerializer(Serializer):
    """Changes of a column's annotations. Omitted fields keep their values."""

    description = fields.TextField(**fields.OPTIONAL, help_text="Markdown. Empty: no description.")
    sensitivity = fields.EnumField(
        Sensitivity, required=False, allow_null=True, help_text="Null: remove it."
    )
    labels = serializers.DictField(
        child=fields.ListField(),
        default=dict,
        help_text="Values by key. An empty list removes the label.",
    )


def column_changes(values: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ColumnChanges for validated values."""
    return {
        "description": values["description"],
        "sensitivity": values.get("sensitivity"),
        "sets_sensitivity": "sensitivity" in values,
        "labels": values["labels"],
    }


class UpdateNamespaceAnnotationsSerializer(UpdateColumnSerializer):
    """Changes of a namespace's annotations. Omitted fields keep their values."""

    owner = fields.TextField(**fields.OPTIONAL, help_text="A principal. Empty: no owner.")
    # Not ``many=True``, which would let the links in the list be null, too.
    links = serializers.ListSerializer(
        child=LinkSerializer(), **fields.OPTIONAL, help_text="All links of the object."
    )
    dry_run = fields.DryRunField()

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        values = super().to_internal_value(data)
        links = values["links"]
        columns = {
            path: ColumnChanges(**column_changes(changes))
            for path, changes in values.get("columns", {}).items()
        }
        changes = Changes(
            **column_changes(values),
            owner=values["owner"],
            links=None if links is None else [Link(link["title"], link["url"]) for link in links],
            columns=columns,
        )
        return {"changes": changes, "dry_run": values["dry_run"]}


class UpdateTableAnnotationsSerializer(UpdateNamespaceAnnotationsSerializer):
    """Changes of the annotations of a table or view and its columns. Omitted fields keep their values."""

    columns = serializers.DictField(
        child=UpdateColumnSerializer(), default=dict, help_text="By path: point.x."
    )


# --- search ----------------------------------------------------------------------------------------


class SearchPartSerializer(Serializer):
    """A part of a text."""

    text = serializers.CharField(help_text="Plain text.")
    is_hit = serializers.BooleanField(help_text="Whether this part matches the query.")


class SearchMatchSerializer(Serializer):
    """A match of a result."""

    field = serializers.CharField(
        help_text="name, column, comment, label, description, owner or path."
    )
    parts = SearchPartSerializer(many=True, help_text="The text around the match.")


class SearchResultSerializer(Serializer):
    """An object that matches the query."""

    kind = serializers.CharField(help_text="namespace, table or view.")
    format = fields.EnumField(TableFormat, allow_null=True)
    identifier = fields.NamesField()
    owner = serializers.CharField()
    description = serializers.CharField(help_text=_MARKDOWN)
    matches = SearchMatchSerializer(many=True)


class SearchPageSerializer(Serializer):
    """A page of results."""

    results = SearchResultSerializer(many=True, help_text="Best first.")
    is_corrected = serializers.BooleanField(
        help_text="Whether no object matched the query, so that the results match similar words."
    )
    next_page_token = serializers.CharField(source="next_page", allow_null=True)


class SearchQuery(PageQuery):
    """A search."""

    q = fields.TextParameter(
        default="", help_text=f"Words, phrases and filters; at most {query.MAX_QUERY} characters."
    )
