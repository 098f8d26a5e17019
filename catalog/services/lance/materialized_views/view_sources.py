"""Plan the query of a materialized view and read its source."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import lance
import pyarrow as pa
from lance.dataset import LanceDataset
from lance.fragment import LanceFragment

from catalog import access
from catalog.access import Principal
from catalog.errors import (
    CatalogError,
    ForeignFile,
    InvalidTableState,
    NamespaceNotFound,
    PermissionDenied,
    SchemaMismatch,
    TableNotFound,
)
from catalog.formats import view_queries
from catalog.formats.view_queries import ViewQuery
from catalog.identifiers import Identifier, label
from catalog.models import MaterializedView, TableState
from catalog.privileges import Privilege
from catalog.services.lance.errors import plan
from catalog.services.lance.rehearsals import rehearse

log = logging.getLogger(__name__)

# Prefixes of the metadata that describes a field's type and storage; other metadata stays behind.
_TYPE_METADATA = (b"ARROW:", b"lance-encoding:")


_NOT_READABLE = (
    "The source of the view was dropped, or the principal of the refresh may not read it"
)


def source_of(view: MaterializedView, actor: Principal) -> Identifier:
    """Return the current name of the source. Raises InvalidTableState if it was dropped.

    An actor that may not read the source does not learn whether it was.
    """
    if view.source.state == TableState.DROPPED:
        if not access.holds(actor, Privilege.READ, view.source):
            raise InvalidTableState(_NOT_READABLE)
        log.warning("The source of view '%s', table '%s', was dropped", view, view.source)
        raise InvalidTableState(
            "The source of the view was dropped",
            detail="Drop the view, and create it again from another table.",
        )
    return view.source.identifier


@contextmanager
def hiding_source_name(source: Identifier) -> Iterator[None]:
    """Remove the current name of the source from errors.

    A principal who may see the view and the messages of its jobs may not be allowed to see the
    source.
    """
    try:
        yield
    except (NamespaceNotFound, TableNotFound, PermissionDenied) as error:
        log.warning("The source of a view: %s", error)
        raise InvalidTableState(_NOT_READABLE) from error
    except ForeignFile as error:  # the path may contain the name
        log.warning("The source of a view: %s", error)
        raise InvalidTableState(
            "The source of the view refers to files that may not be read for the view"
        ) from error
    except CatalogError as error:
        name = f"able '{label(source)}'"
        message = error.message.replace(f"T{name}", "The source of the view")
        error.reword(message.replace(f"t{name}", "the source of the view"))
        raise


def scan(
    query: ViewQuery,
    dataset: LanceDataset,
    fragments: list[LanceFragment] | None = None,
    limit: int | None = None,
) -> lance.LanceScanner:
    return dataset.scanner(
        columns=dict(query.columns or ()), filter=query.filter, fragments=fragments, limit=limit
    )


def expand_columns(query: ViewQuery, dataset: LanceDataset) -> ViewQuery:
    """Replace ``*`` with the current columns of the source: the columns of a view do not change."""
    if query.columns is not None:
        return query
    names = dataset.schema.names
    return replace(query, columns=tuple((name, view_queries.quoted(name)) for name in names))


def result_schema(query: ViewQuery, dataset: LanceDataset) -> pa.Schema:
    """Return the schema of the result. Lance plans the query, so an invalid query fails here."""
    rehearse(dataset, query.expressions)
    scanner = scan(query, dataset)
    plan(scanner)
    return pa.schema([_own_metadata(field) for field in scanner.projected_schema])


def _own_metadata(field: pa.Field) -> pa.Field:
    metadata = {
        key: value
        for key, value in (field.metadata or {}).items()
        if key.startswith(_TYPE_METADATA)
    }
    return field.with_metadata(metadata or None)


def require_same_fields(
    expected: pa.Schema, actual: pa.Schema, *, expected_by: str = "'output_schema'"
) -> None:
    """Require the same names and types in the same order; the query determines nullability.

    Raises SchemaMismatch.
    """
    expected_fields = [(field.name, field.type) for field in expected]
    actual_fields = [(field.name, field.type) for field in actual]
    if expected_fields != actual_fields:
        raise SchemaMismatch(
            f"The query gives {_spelled(actual_fields)}, but {expected_by} has"
            f" {_spelled(expected_fields)}"
        )


def _spelled(fields: list[tuple[str, pa.DataType]]) -> str:
    return "(" + ", ".join(f"{name} {type_}" for name, type_ in fields) + ")"
