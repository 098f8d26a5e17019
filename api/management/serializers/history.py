"""Serializers of the catalog's past states and of the changes between them."""

from typing import Any

from rest_framework import serializers

from api.management import fields
from api.management.serializers.base import PageQuery, QuerySerializer, Serializer
from catalog.history import Change
from catalog.models import TableFormat, TableKind

_MOMENT = "A time, or the id of a transaction: the state right after it."
_ACTOR = "The last actor that changed it, as far as the audit trail has it."


class PastNamespaceSerializer(Serializer):
    """A namespace at a moment."""

    id = serializers.IntegerField(
        help_text="Of its row. A namespace that is created again has another id."
    )
    namespace = fields.NamesField(source="identifier")
    created_at = serializers.DateTimeField()


class PastVersionSerializer(Serializer):
    """The newest version of a branch at a moment."""

    version = serializers.IntegerField()
    metadata_location = serializers.CharField(
        help_text="Empty if the caller may not read the table."
    )
    committed_at = serializers.DateTimeField()
    transaction_id = serializers.UUIDField(allow_null=True)
    actor = serializers.CharField()


class PastBranchSerializer(PastVersionSerializer):
    """A branch at a moment."""

    branch = serializers.CharField(help_text="Empty: main.")


class PastTableSerializer(Serializer):
    """A table or view at a moment."""

    id = serializers.IntegerField(help_text="Of its row. Renaming keeps it.")
    uuid = serializers.UUIDField()
    table = fields.NamesField(source="identifier")
    format = fields.EnumField(TableFormat)
    kind = fields.EnumField(TableKind)
    is_materialized = serializers.BooleanField()
    created_at = serializers.DateTimeField()
    branches = PastBranchSerializer(many=True, help_text="The branches with a version, main first.")
    has_more_branches = serializers.BooleanField()


class StatePageSerializer(Serializer):
    """A page of the catalog's state at a moment."""

    at = serializers.DateTimeField()
    namespaces = PastNamespaceSerializer(many=True)
    tables = PastTableSerializer(many=True)
    next_page_token = serializers.CharField(source="next_page", allow_null=True)


class PropertyChangeSerializer(Serializer):
    """A change of properties."""

    before = serializers.DictField(
        child=serializers.CharField(), allow_null=True, help_text="Null: the values are not known."
    )
    after = serializers.DictField(child=serializers.CharField(), allow_null=True)


class NamespaceChangeSerializer(Serializer):
    """The changes of a namespace between two moments."""

    id = serializers.IntegerField()
    namespace = fields.NamesField(source="identifier")
    changes = serializers.ListField(child=fields.EnumField(Change))
    properties = PropertyChangeSerializer(allow_null=True)
    actor = serializers.CharField(help_text=_ACTOR)


class BranchChangeSerializer(Serializer):
    """The change of a branch between two moments. Null: the branch had no version."""

    branch = serializers.CharField()
    before = PastVersionSerializer(allow_null=True)
    after = PastVersionSerializer(allow_null=True)
    commits = serializers.IntegerField(
        help_text="The number of versions added between, with those deleted since."
    )


class TableChangeSerializer(Serializer):
    """The changes of a table or view between two moments."""

    id = serializers.IntegerField()
    uuid = serializers.UUIDField()
    before = fields.NamesField(
        allow_null=True, help_text="Its name before. Null: it did not exist."
    )
    after = fields.NamesField(allow_null=True)
    format = fields.EnumField(TableFormat)
    kind = fields.EnumField(TableKind)
    changes = serializers.ListField(child=fields.EnumField(Change))
    branches = BranchChangeSerializer(many=True)
    has_more_branches = serializers.BooleanField()
    properties = PropertyChangeSerializer(allow_null=True)
    actor = serializers.CharField(help_text=_ACTOR)


class ChangesPageSerializer(Serializer):
    """A page of changes. It may have fewer than ``limit``, although there is a next page."""

    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    namespaces = NamespaceChangeSerializer(many=True)
    tables = TableChangeSerializer(many=True)
    next_page_token = serializers.CharField(source="next_page", allow_null=True)


class ChangeCountsSerializer(Serializer):
    """Numbers of changes between two moments."""

    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    namespaces_added = serializers.IntegerField()
    namespaces_dropped = serializers.IntegerField()
    tables_added = serializers.IntegerField()
    tables_dropped = serializers.IntegerField()
    tables_renamed = serializers.IntegerField()
    tables_advanced = serializers.IntegerField(
        help_text="Tables that existed at both moments, with other versions."
    )
    commits = serializers.IntegerField()


def _moment(**options: Any) -> fields.TextParameter:
    return fields.TextParameter(
        required=True,
        default=serializers.empty,
        error_messages={"required": "use a time or a transaction's id"},
        **options,
    )


_NAMESPACE = "Only this namespace and everything below it; spelled as in a path."


class StateQuery(PageQuery):
    """A moment."""

    at = _moment(help_text=_MOMENT)
    namespace = fields.TextParameter(help_text=_NAMESPACE)


class ChangesQuery(QuerySerializer):
    """Two moments."""

    namespace = fields.TextParameter(help_text=_NAMESPACE)
    to = _moment(help_text="As `from`; not before it.")

    def get_fields(self) -> dict[str, Any]:
        # ``from`` is a keyword of Python.
        return {"from": _moment(help_text=_MOMENT), **super().get_fields()}


class ChangesPageQuery(ChangesQuery, PageQuery):
    """Two moments, and a page."""
