"""Serializers of the lineage of tables and views."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from api.management import fields
from api.management.serializers.base import QuerySerializer, Serializer
from api.management.serializers.recovery import DependentsSerializer
from catalog.models import TableFormat, TableState
from catalog.services.tables import lineage
from catalog.services.tables.column_lineage import ColumnLineage, ViewColumn
from catalog.services.tables.lineage import Direction, EdgeKind, Lineage


class TableDependentsSerializer(DependentsSerializer):
    """Tables that refer to files of a table, and views that read it."""

    tables = serializers.ListField(
        child=fields.NamesField(),
        source="files.visible",
        help_text="The first 100 tables that refer to its files and that the caller may browse.",
    )
    others = serializers.IntegerField(
        source="files.others",
        help_text="The number of the others of these tables. Those that the caller may not browse count only if"
        " it may maintain the table.",
    )
    views = serializers.ListField(
        child=fields.NamesField(),
        help_text="Views and materialized views that read the table, directly or through other views, and"
        " that the caller may browse; at most 200.",
    )


class DetachDependentsSerializer(Serializer):
    """How to end references to files of a table."""

    dry_run = fields.FlagField(default=False, help_text="Report only; change nothing.")


class DetachmentSerializer(Serializer):
    """The dependents of a table before and after references to its files ended."""

    detached = serializers.IntegerField(
        help_text="The number of tables whose references have ended, or would."
    )
    remaining = serializers.IntegerField(
        help_text="The number of tables that still refer to files of the table."
    )


class LineageQuery(QuerySerializer):
    """The part of the graph."""

    hops = fields.CountParameter(
        max_value=lineage.MAX_HOPS,
        default=lineage.DEFAULT_HOPS,
        help_text="Steps from the object.",
    )
    direction = fields.EnumParameter(
        Direction, default=Direction.BOTH, help_text="Sources, dependents, or both."
    )


class LineageNodeSerializer(Serializer):
    """A table or view in the graph."""

    id = serializers.IntegerField(source="table.pk", help_text="Used by the edges.")
    name = fields.NamesField(source="table.identifier")
    format = fields.EnumField(TableFormat, source="table.format")
    kind = serializers.CharField(help_text="table, view or materialized_view.")
    state = fields.EnumField(TableState, source="table.state")
    distance = serializers.IntegerField(
        help_text="Steps from the object; negative for sources, 0 for the object itself."
    )
    problem = serializers.CharField(
        help_text="For an Iceberg view of which some SQL was not parsed, so that sources may be missing: a"
        " sentence about it; or empty."
    )


class LineageEdgeSerializer(Serializer):
    """A dependency between two nodes."""

    # REST framework has an attribute of this name.
    source = serializers.IntegerField(  # type: ignore[assignment]
        help_text="The id of the node that is read."
    )
    dependent = serializers.IntegerField(help_text="The id of the node that reads it.")
    kind = fields.EnumField(
        EdgeKind,
        help_text="materialized_view and view: it is a view of the source. files: it refers to files of the"
        " source, as shallow clones do.",
    )


class LineageSerializer(Serializer):
    """The lineage of a table or view, as far as the caller may browse it."""

    nodes = serializers.SerializerMethodField(help_text="By distance and name.")
    edges = serializers.SerializerMethodField()
    is_complete = serializers.BooleanField(
        help_text="False if the graph has more objects than are returned (200)."
    )
    unresolved = fields.NamesField(
        help_text="For an Iceberg view that the caller may read: names in its SQL that no object has that the"
        " caller may browse."
    )

    @extend_schema_field(LineageNodeSerializer(many=True))
    def get_nodes(self, graph: Lineage) -> list[dict[str, Any]]:
        return [LineageNodeSerializer.represent(node) for node in graph.nodes]

    @extend_schema_field(LineageEdgeSerializer(many=True))
    def get_edges(self, graph: Lineage) -> list[dict[str, Any]]:
        return [LineageEdgeSerializer.represent(edge) for edge in graph.edges]


class OriginSerializer(Serializer):
    """A column that a column of a view is made from."""

    table = fields.NamesField(source="table.identifier")
    column = serializers.CharField(help_text="`*` for all columns of the table.")


class ViewColumnSerializer(Serializer):
    """A column of a view."""

    name = serializers.CharField(help_text="`*` for all columns of the source.")
    origins = serializers.SerializerMethodField(
        help_text="The columns that it is made from. An element has several columns if the view reads one of"
        " them, but their schemas do not say which."
    )
    is_copy = serializers.BooleanField(help_text="True if it is a copy of a column, not computed.")
    remarks = serializers.ListField(
        child=serializers.CharField(),
        help_text="Sentences on origins that are missing or not certain.",
    )
    dialects = serializers.ListField(
        child=serializers.CharField(),
        help_text="The SQL dialects with this definition, if other dialects define it differently.",
    )

    @extend_schema_field(serializers.ListField(child=OriginSerializer(many=True)))
    def get_origins(self, column: ViewColumn) -> list[list[dict[str, Any]]]:
        return [
            [OriginSerializer.represent(origin) for origin in origins] for origins in column.origins
        ]


class ColumnReaderSerializer(Serializer):
    """A column of a view that is made from a column of the object."""

    column = serializers.CharField(help_text="The column of the object; `*` for all.")
    view = fields.NamesField(source="view.identifier")
    view_column = serializers.CharField(help_text="`*` for all columns of the view.")
    is_copy = serializers.BooleanField(
        help_text="True if it is a copy of the column, not computed."
    )
    is_certain = serializers.BooleanField(
        help_text="False if the view may read a column of another table instead."
    )


class ColumnLineageSerializer(Serializer):
    """The lineage of columns, as far as the caller may read the objects."""

    columns = serializers.SerializerMethodField(
        help_text="The columns of a view; empty for a table. At most 2,000."
    )
    problem = serializers.CharField(
        source="columns.problem", help_text="Why columns are missing; empty if there are all."
    )
    readers = serializers.SerializerMethodField(help_text="By column and view; at most 1,000.")
    is_complete = serializers.BooleanField(
        source="readers.is_complete",
        help_text="False if there are more readers, or more than 50 views of a kind.",
    )

    @extend_schema_field(ViewColumnSerializer(many=True))
    def get_columns(self, row: ColumnLineage) -> list[dict[str, Any]]:
        return [ViewColumnSerializer.represent(column) for column in row.columns.columns]

    @extend_schema_field(ColumnReaderSerializer(many=True))
    def get_readers(self, row: ColumnLineage) -> list[dict[str, Any]]:
        return [ColumnReaderSerializer.represent(reader) for reader in row.readers.readers]
