"""The columns by which queries search and filter, counted to suggest missing indexes."""

from lance_namespace_urllib3_client import models as m

from catalog.access import Principal
from catalog.formats.lance import filters
from catalog.identifiers import Identifier
from catalog.services.lance.ledger.snapshots import Snapshot
from catalog.services.tables import usage


def count(
    actor: Principal,
    snapshot: Snapshot,
    query: m.QueryTableRequest | m.AnalyzeTableQueryPlanRequest,
    searched_column: str,
) -> None:
    """Count a query of main. ``searched_column`` is that of a vector search, else empty."""
    if snapshot.branch:
        return
    columns: set[tuple[str, str]] = set()
    if query.filter:
        columns |= filters.compared_columns(query.filter)
    if searched_column and not query.bypass_vector_index:
        distance = (query.distance_type or "l2").lower()
        columns.add((searched_column, f"{usage.VECTOR} {distance}"))
    if columns:
        usage.count_columns(actor, snapshot.table, columns)


def count_filter(actor: Principal, table: Identifier, predicate: str) -> None:
    """Count a count of the rows that match a predicate."""
    usage.count_columns(actor, table, filters.compared_columns(predicate))
