"""Reading a few versions of main in one row, with what decides about access, for frequent reads."""

from collections.abc import Sequence
from typing import Any

import orjson

from catalog import access
from catalog.services.lance.ledger import versions

MOST = 200
"""The most versions that are worth reading in this way: rendering more takes too long for an event loop."""
_VERSIONS = f"""CROSS JOIN LATERAL (
    SELECT json_agg(json_build_array({versions.COLUMNS}))::text AS rows
    FROM (
        SELECT * FROM catalog_tableversion v
        WHERE v.table_id = t.id AND v.branch = '' AND v.deleted_at IS NULL AND v.version {{from_}} %(first)s
        ORDER BY v.version {{direction}} LIMIT %(limit)s
    ) v
) few"""  # noqa: S608 -- fixed columns


def _read(name: str, from_: str, direction: str) -> access.TableRead:
    return access.TableRead(
        "t.location, few.rows",
        name=name,
        join=_VERSIONS.format(from_=from_, direction=direction),
        condition="t.format = 'lance' AND t.location ^@ '/'",
        parameters=("digest", "first", "limit"),
    )


ASCENDING = _read("lance versions", ">=", "ASC")
DESCENDING = _read("lance versions, newest first", "<=", "DESC")
"""Versions of a table in local files, as ``rows_of`` reads them."""


def rows_of(columns: Sequence[Any]) -> tuple[str, list[list[Any]]] | None:
    """The location of the table, and the rows of ``versions.COLUMNS``, that a statement returned.

    None: a manifest may still have to be moved, which takes a look at the storage.
    """
    location, text = columns
    rows = orjson.loads(text) if text else []
    staged = [row for row in rows if row[1] is not None]
    are_moved = all(versions.was_moved(location, row[1], row[3]) for row in staged)
    return (location, rows) if are_moved else None
