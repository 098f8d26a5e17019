"""Reading a page of few versions of main in one row, with what decides about access, for frequent reads.

PostgreSQL renders the versions as JSON, so that the event loop takes the same time for one version and for many.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from catalog import access
from catalog.postgresql.pipeline import Parameters, are_small, size_of
from catalog.services.lance.ledger import versions

MOST = 100
"""The most versions of a page. A connection executes one statement at a time, and others wait for it."""
_MOST_BYTES, _MOST_BYTES_OF_METADATA = 60_000, 8_000
"""The most bytes of the columns of a page, and of its metadata, whose many small members take longer."""
# The members of TableVersion in the contract, with the text that orjson gives them.
_ENTRY = """'{"version":' || v.version || ',"manifest_path":' || to_json(v.manifest_path)::text
            || coalesce(',"manifest_size":' || v.manifest_size, '')
            || coalesce(',"e_tag":' || to_json(v.e_tag)::text, '')
            || ',"timestamp_millis":'
            || trunc(round(date_part('epoch', v.created_at) * 1000000) / 1000000 * 1000)::bigint
            || CASE WHEN v.metadata IS NULL THEN '' ELSE ',"metadata":{' || coalesce((
                SELECT string_agg(to_json(key)::text || ':' || value::text, ',') FROM jsonb_each(v.metadata)
            ), '') || '}' END
            || '}'"""
_COLUMNS = ("v.staged_path", "v.manifest_path", "v.e_tag", "v.metadata")
"""What clients write."""


class Page(NamedTuple):
    """A page of versions."""

    entries: str
    """JSON objects as in the contract (TableVersion), with commas between them."""
    token: str | None
    """The token of the next page, if there is one."""


def _versions(from_: str, direction: str, last: str) -> str:
    """The join that reads a page.

    Deleted versions are read, too: a table may have any number of them. The constant limit lets PostgreSQL plan for
    few rows whatever the parameters are. A row that is large, or follows many bytes, is not rendered. The last row
    only shows that there is another page.
    """
    return f"""CROSS JOIN LATERAL (
    SELECT count(*) AS number, count(*) FILTER (WHERE is_listed) AS listed, bool_and(is_small) AS are_small,
        string_agg({_ENTRY}, ',') FILTER (WHERE is_of_page AND is_small) AS entries,
        {last}(v.version) FILTER (WHERE is_of_page) AS last,
        json_agg(json_build_array(v.staged_path, v.manifest_path))
            FILTER (WHERE is_of_page AND is_small AND v.staged_path IS NOT NULL)::text AS staged
    FROM (
        SELECT *, v.deleted_at IS NULL AS is_listed,
            v.deleted_at IS NULL AND row_number() OVER rows_before < %(limit)s AS is_of_page,
            v.deleted_at IS NOT NULL OR (
                {are_small(*_COLUMNS)}
                AND sum({size_of(*_COLUMNS)}) OVER rows_before <= {_MOST_BYTES}
                AND sum(pg_column_size(v.metadata)) OVER rows_before <= {_MOST_BYTES_OF_METADATA}
            ) IS NOT FALSE AS is_small
        FROM (
            SELECT * FROM catalog_tableversion v
            WHERE v.table_id = t.id AND v.branch = '' AND v.version {from_} %(first)s
            ORDER BY v.version {direction} LIMIT {MOST + 1}
        ) v WINDOW rows_before AS (ROWS UNBOUNDED PRECEDING) LIMIT %(limit)s
    ) v
) few"""  # noqa: S608 -- fixed columns


def _read(name: str, from_: str, direction: str, last: str) -> access.TableRead:
    return access.TableRead(
        "t.location, few.number, few.listed, CASE WHEN few.are_small THEN few.entries END, few.last, few.staged",
        name=name,
        join=_versions(from_, direction, last),
        condition="t.format = 'lance' AND t.location ^@ '/'",
        parameters=("digest", "first", "limit"),
    )


ASCENDING = _read("lance versions", ">=", "ASC", "max")
DESCENDING = _read("lance versions, newest first", "<=", "DESC", "min")
"""A page of versions of a table in local files. ``page_of`` reads it."""


def parameters(first: int, size: int) -> Parameters:
    """The parameters of a statement, after the digest."""
    return str(first).encode(), str(_limit(size)).encode()


def _limit(size: int) -> int:
    """The number of rows to read: one more than the page has, to know whether there is another page."""
    return min(size, MOST) + 1


def page_of(columns: Sequence[Any], size: int) -> Page | None:
    """The page of this size that a statement has read.

    None if it has read too few rows to know them, if one of them is large, or if a manifest may still have to be moved, which
    takes a look at the storage.
    """
    location, number, listed, entries, last, staged = columns
    if number > MOST and size > MOST:
        return None
    if listed < number == _limit(size) or (listed and entries is None):
        return None
    for staged_path, manifest_path in orjson.loads(staged) if staged else []:
        if not versions.was_moved(location, staged_path, manifest_path):
            return None
    return Page(entries or "", str(last) if number > size else None)
