"""Create materialized views and find their definitions."""

import base64
import binascii
from dataclasses import dataclass
from functools import partial

import lance
import pyarrow as pa

from catalog import access
from catalog.access import On, Principal
from catalog.errors import InvalidInput, Unsupported
from catalog.formats import view_queries
from catalog.identifiers import Identifier, check_table, label
from catalog.models import MaterializedView, Table
from catalog.privileges import Privilege
from catalog.services.lance import commits, datasets, time_limits
from catalog.services.lance.commits import NewDataset
from catalog.services.lance.errors import refusing
from catalog.services.lance.materialized_views import view_operations
from catalog.services.lance.materialized_views.view_sources import (
    expand_columns,
    require_same_fields,
    result_schema,
)
from catalog.services.tables import table_operations, tables

QUERY_PROPERTY = "monodon.materialized_view.query"
"""Property of a view that shows its query to clients."""


@dataclass(frozen=True, slots=True)
class CreatedView:
    """A view created by CreateMaterializedView."""

    version: int
    job: str | None
    """Id of the transaction of the first refresh, if one was requested."""


def create_view(
    *,
    actor: Principal,
    table: Identifier,
    kind: str,
    source_query: str,
    output_schema: str,
    with_no_data: bool = True,
    auto_refresh: bool = False,
) -> CreatedView:
    """Create a view of a query; without ``with_no_data``, a job fills it.

    Raises Unsupported for a view that runs code, InvalidInput for a query that cannot be parsed or
    evaluated, SchemaMismatch if its schema differs from ``output_schema``, and the errors of
    ``find_snapshot`` for the source.
    """
    check_table(table)
    access.require(actor, Privilege.CREATE, On.namespace(table[:-1]))
    if kind != "query":
        raise Unsupported(
            f"A materialized view of kind '{kind}' runs code that the client sends, which this server "
            "does not do",
            detail="Use kind 'query', or write the rows of a plain table from where the code runs.",
        )
    query = view_queries.parse(source_query)
    expected = _decode_schema(output_schema)
    tables.require_namespace(table[:-1])
    if (holder := Table.objects.named(table).first()) is not None:
        raise table_operations.already_exists(table, holder)
    snapshot = datasets.find_snapshot(actor=actor, table=query.source, version=query.version)
    dataset = datasets.open_dataset(snapshot)
    with refusing(query.source):
        query = expand_columns(query, dataset)
        schema = time_limits.read(
            dataset, actor.name, lambda: result_schema(query, dataset), query.expressions
        )
    require_same_fields(expected, schema)
    written = commits.create(
        actor=actor,
        table=table,
        work=partial(_write_empty, schema),
        properties={QUERY_PROPERTY: query.to_sql()},
        summary={"source": label(query.source)},
        operation=view_operations.CreateMaterializedView,
        fields={
            "source": query.source,
            "source_uuid": snapshot.uuid,
            "source_query": source_query,
            "definition": query.to_json(),
            "auto_refresh": auto_refresh,
            "refresh": not with_no_data,
        },
    )
    return CreatedView(written.version, None if with_no_data else written.transaction_id)


def find_view(table: Identifier) -> MaterializedView:
    """Return the definition of a view.

    Raises TableNotFound, and InvalidInput for a table that is not a view.
    """
    row = Table.objects.named(table).filter(is_materialized=True).first()
    if row is None:
        tables.describe_table(actor=access.SYSTEM, table=table)
        raise InvalidInput(f"Table '{label(table)}' is not a materialized view")
    return MaterializedView.objects.select_related("source__namespace").get(table=row)


def _decode_schema(text: str) -> pa.Schema:
    """Decode the schema of a request: base64 of an IPC message or of a stream without data."""
    try:
        content = pa.py_buffer(base64.b64decode(text, validate=True))
        return pa.ipc.read_schema(content)
    except (binascii.Error, ValueError, pa.ArrowException, OSError) as error:
        raise InvalidInput(f"'output_schema' is no Arrow schema in base64: {error}") from None


def _write_empty(schema: pa.Schema, new: NewDataset) -> None:
    lance.write_dataset(pa.RecordBatchReader.from_batches(schema, []), **new.options)
