"""Reading a page of few versions of main in one row, with what decides about access, for frequent reads."""

from collections.abc import Sequence
from typing import Any

import orjson

from catalog import access
from catalog.postgresql.pipeline import Parameters, are_small
from catalog.services.lance.ledger import versions
from catalog.services.lance.ledger.versions import Version

MOST = 50
"""The most versions of a page: reading and rendering 200 would take the event loop 0.7 ms."""
# Deleted versions are read, too: a table may have any number of them. The constant limit lets PostgreSQL plan for
# few rows whatever the parameters are.
_VERSIONS = f"""CROSS JOIN LATERAL (
    SELECT count(*) AS number, (
        json_agg(CASE WHEN {are_small("v.staged_path", "v.manifest_path", "v.e_tag", "v.metadata")}
            THEN json_build_array({versions.COLUMNS}) END
        ) FILTER (WHERE v.deleted_at IS NULL)
    )::text AS rows
    FROM (
        SELECT * FROM (
            SELECT * FROM catalog_tableversion v
            WHERE v.table_id = t.id AND v.branch = '' AND v.version {{from_}} %(first)s
            ORDER BY v.version {{direction}} LIMIT {MOST + 1}
        ) v LIMIT %(limit)s
    ) v
) few"""  # noqa: S608 -- fixed columns


def _read(name: str, from_: str, direction: str) -> access.TableRead:
    return access.TableRead(
        "t.location, few.number, few.rows",
        name=name,
        join=_VERSIONS.format(from_=from_, direction=direction),
        condition="t.format = 'lance' AND t.location ^@ '/'",
        parameters=("digest", "first", "limit"),
    )


ASCENDING = _read("lance versions", ">=", "ASC")
DESCENDING = _read("lance versions, newest first", "<=", "DESC")
"""A page of versions of a table in local files. ``page_of`` reads it."""


def parameters(first: int, size: int) -> Parameters:
    """The parameters of a statement, after the digest."""
    return str(first).encode(), str(_limit(size)).encode()


def _limit(size: int) -> int:
    """The number of rows to read: one more than the page has, to know whether there is another page."""
    return min(size, MOST) + 1


def page_of(columns: Sequence[Any], size: int) -> tuple[list[Version], str | None] | None:
    """The versions that a statement returned for a page of this size, and the token of the next page.

    None if it has read too few rows to know them, if one of them is large, or if a manifest may still have to be moved, which
    takes a look at the storage.
    """
    location, number, text = columns
    if number > MOST and size > MOST:
        return None
    rows = orjson.loads(text) if text else []
    if len(rows) < number == _limit(size):
        return None
    for row in rows:
        if row is None or not versions.was_moved(location, row[1], row[3]):
            return None
        row[1] = None
    return versions.page_of(rows, location, size)
