"""The queries of LanceDB's clients in the form of the Lance protocol (spec: QueryTableRequest)."""

from collections.abc import Mapping
from typing import Any

from catalog.errors import InvalidInput

_ALL = 2**63 - 1
"""What the clients send as ``k`` for all rows."""
_NO_ROWS = "false"
"""A filter that no row matches."""
_LANCE_COLUMNS = {"column_names", "column_aliases"}
_LANCE_FORMS = {"string_query", "structured_query"}


def translate(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a query in the form of the Lance protocol. Raises InvalidInput.

    A query that already has that form stays as it is. Values of a wrong type stay, and are refused later.
    """
    query = dict(body)
    if query.get("k") is None:
        query["k"] = _ALL
    elif query["k"] == 0:  # in the Lance protocol, the default
        if body.get("vector"):
            raise InvalidInput("A search by vector needs a limit of at least one")
        query |= {"k": 1, "offset": None, "filter": _NO_ROWS}
    query["vector"] = _vector(body.get("vector"))
    query["columns"] = _columns(body.get("columns"))
    query["full_text_query"] = _full_text(body.get("full_text_query"))
    for bound in ("minimum_nprobes", "maximum_nprobes"):
        if query.get(bound) == 0:  # no bound
            query[bound] = None
    return query


def _vector(value: Any) -> Any:
    if not value:
        return {}
    if not isinstance(value, list):
        return value
    return {"multi_vector" if isinstance(value[0], list) else "single_vector": value}


def _columns(value: Any) -> Any:
    if not value:
        return None
    if isinstance(value, list):
        if all(_is_pair(column) for column in value):
            return {"column_aliases": dict(value)}  # clients before 0.30
        return {"column_names": value}
    if isinstance(value, dict) and not _is_lance_form(value):
        return {"column_aliases": value}
    return value


def _is_pair(column: Any) -> bool:
    """True if this is a name with its expression."""
    return isinstance(column, list) and len(column) == 2 and isinstance(column[0], str)


def _is_lance_form(columns: dict[str, Any]) -> bool:
    """True if columns have the form of the Lance protocol, instead of expressions by name."""
    return columns.keys() <= _LANCE_COLUMNS and not any(
        isinstance(value, str) for value in columns.values()
    )


def _full_text(value: Any) -> Any:
    if not isinstance(value, dict) or value.keys() & _LANCE_FORMS:
        return value
    query = value.get("query")
    if isinstance(query, dict):
        return {"structured_query": {"query": _structured(query)}}
    return {"string_query": {"query": query, "columns": value.get("columns") or None}}


def _structured(query: Any) -> Any:
    """A structured query. In the clients' form, a multi_match has one text for several columns."""
    if not isinstance(query, dict):
        return query
    parts = dict(query)
    multi = parts.get("multi_match")
    if isinstance(multi, dict) and isinstance(multi.get("columns"), list):
        parts["multi_match"] = {"match_queries": _matches(multi)}
    boost = parts.get("boost")
    if isinstance(boost, dict):
        inner = {side: _structured(boost.get(side)) for side in ("positive", "negative")}
        parts["boost"] = {**boost, **inner}
    boolean = parts.get("boolean")
    if isinstance(boolean, dict):
        parts["boolean"] = {
            occur: [_structured(clause) for clause in clauses]
            if isinstance(clauses, list)
            else clauses
            for occur, clauses in boolean.items()
        }
    return parts


def _matches(multi: Mapping[str, Any]) -> list[dict[str, Any]]:
    columns = multi["columns"]
    boosts = multi.get("boost") or [1.0] * len(columns)
    if not isinstance(boosts, list) or len(boosts) != len(columns):
        raise InvalidInput("A multi_match has as many boosts as columns")
    return [
        {
            "terms": multi.get("query"),
            "column": column,
            "boost": boost,
            "operator": multi.get("operator"),
        }
        for column, boost in zip(columns, boosts, strict=True)
    ]
