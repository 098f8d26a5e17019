"""Search: from a query to a page of results that the actor may browse.

At most three statements: inherited labels and sensitivities of namespaces, if the query filters by
them; the search; and, if it returns nothing, the search for similar words.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from catalog.access import Principal
from catalog.errors import InvalidInput
from catalog.identifiers import Identifier
from catalog.services.search import query as search_query
from catalog.services.search import words as search_words
from catalog.services.search.matches import Match, matches_of
from catalog.services.search.query import Query
from catalog.services.search.statements import EXACT_TIER, Lookup, Position

PAGE_SIZE = 20
MAX_PAGE = 100


@dataclass(frozen=True, slots=True)
class Result:
    """A namespace, a table or a view that matches the query."""

    pk: int
    """Primary key of the namespace or table."""
    kind: str
    """namespace, table or view."""
    format: str | None
    identifier: Identifier
    owner: str
    description: str
    matches: tuple[Match, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """Results, best first."""

    results: list[Result]
    next_page: str | None
    is_corrected: bool = False
    """True if the query had no results and these match similar words."""


def search(
    *, actor: Principal, text: str, limit: int | None = None, page_token: str | None = None
) -> Page:
    """A page of results that the actor may browse. At most three statements.

    Raises InvalidInput for an invalid query, with a valid example, and for an invalid page token.
    """
    query = search_query.parse(text)
    size = min(limit or PAGE_SIZE, MAX_PAGE)
    position = _read_token(page_token) if page_token else None
    lookup = Lookup(actor, query, size, position)
    rows, is_corrected = [], position is not None and position.is_corrected
    if not is_corrected:
        rows = lookup.exactly()
    if is_corrected or (not rows and position is None and _may_be_misspelled(query)):
        rows = lookup.nearly()
        is_corrected = is_corrected or bool(rows)
    token = None
    if len(rows) > size:
        rows = rows[:size]
        token = _token(Position.of(rows[-1], is_corrected=is_corrected))
    return Page([_result(row, query, lookup.likely) for row in rows], token, is_corrected)


def _may_be_misspelled(query: Query) -> bool:
    return any(
        search_words.can_be_corrected(word)
        for query_term in query.terms
        if not query_term.is_quoted
        for word in query_term.words
    )


def _token(position: Position) -> str:
    encoded = orjson.dumps(
        [position.tier, position.rank, position.path, position.pk, position.is_corrected]
    )
    return base64.urlsafe_b64encode(encoded).decode().rstrip("=")


def _read_token(text: str) -> Position:
    try:
        values = orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        tier, rank, path, pk, is_corrected = values
    except (ValueError, TypeError, binascii.Error):
        raise InvalidInput("The page token is not one of this list") from None
    if not (
        type(tier) is int
        and 0 <= tier <= EXACT_TIER
        and isinstance(rank, (int, float))
        and isinstance(path, list)
        and all(isinstance(name, str) and "\0" not in name for name in path)
        and type(pk) is int
        and 0 <= pk < 2**63
        and isinstance(is_corrected, bool)
    ):
        raise InvalidInput("The page token is not one of this list")
    return Position(tier, float(rank), path, pk, is_corrected)


# --- results -----------------------------------------------------------------------------------


def _result(row: Mapping[str, Any], query: Query, likely: Sequence[str]) -> Result:
    is_table = row["table_id"] is not None
    return Result(
        pk=row["table_id"] if is_table else row["namespace_id"],
        kind=row["kind"] if is_table else "namespace",
        format=row["format"] if is_table else None,
        identifier=tuple(row["path"]),
        owner=row["owner"],
        description=row["description"],
        matches=tuple(matches_of(row, query, likely)),
    )
