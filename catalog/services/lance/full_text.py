"""Convert full-text queries of the Lance protocol to queries of Lance."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lance import query as fts
from lance.dataset import LanceDataset
from lance_namespace_urllib3_client import models as m

from catalog.errors import ContradictoryInput, InvalidInput, Unsupported
from catalog.identifiers import Identifier, label

_KINDS = ("match", "phrase", "boost", "multi_match", "boolean")
_OPERATORS = {"and": fts.FullTextOperator.AND, "or": fts.FullTextOperator.OR}
_MAX_INT32 = 2**31 - 1
_MAX_EXPANSIONS = 50
"""By default."""
MAX_TEXT, MAX_FUZZY_TEXT = 32_768, 1_024
"""Characters of all texts of a search, and of those that are fuzzy: for each of these, Lance takes kilobytes of memory."""
MAX_EXPANSIONS = 1_000
_NEGATIVE_BOOST = 0.5


def search(
    table: Identifier, dataset: LanceDataset, requested: m.QueryTableRequestFullTextQuery | None
) -> fts.FullTextQuery | dict[str, Any] | None:
    """Return the full-text query for a scanner, or None without a full-text search.

    Raises InvalidInput, and Unsupported for the combinations that Lance's Python interface lacks.
    """
    if requested is None:
        return None
    text, structured = requested.string_query, requested.structured_query
    if text and structured:
        raise ContradictoryInput(
            "A full-text query has a string_query or a structured_query, not both"
        )
    if structured:
        return _Builder(table, dataset).build(structured.query)
    if not text:
        return None
    texts, columns = _Texts(), list(dict.fromkeys(text.columns or ()))
    for _ in columns or [""]:
        texts.add(text.query)
    return {"query": text.query, "columns": columns or None}


@dataclass(slots=True)
class _Texts:
    """The number of characters in the texts of a search."""

    characters: int = 0
    fuzzy: int = 0

    def add(self, text: str, *, is_fuzzy: bool = False) -> None:
        """Count a text. Raises InvalidInput if the search has too many characters."""
        self.characters += len(text)
        self.fuzzy += len(text) if is_fuzzy else 0
        if self.characters > MAX_TEXT:
            raise InvalidInput(
                f"The texts of a full-text query have more than {MAX_TEXT:,} characters"
            )
        if self.fuzzy > MAX_FUZZY_TEXT:
            raise InvalidInput(
                f"The fuzzy texts of a full-text query have more than {MAX_FUZZY_TEXT:,} characters"
            )


@dataclass(frozen=True)
class _Builder:
    table: Identifier
    dataset: LanceDataset
    texts: _Texts = field(default_factory=_Texts)

    def build(self, query: m.FtsQuery) -> fts.FullTextQuery:
        named = [kind for kind in _KINDS if getattr(query, kind) is not None]
        if len(named) != 1:
            raise InvalidInput(f"A structured query has exactly one of {', '.join(_KINDS)}")
        make: Callable[[Any], fts.FullTextQuery] = getattr(self, f"_{named[0]}")
        return make(getattr(query, named[0]))

    def _match(self, query: m.MatchQuery) -> fts.FullTextQuery:
        return self._any_of([query])

    def _multi_match(self, query: m.MultiMatchQuery) -> fts.FullTextQuery:
        if not query.match_queries:
            raise InvalidInput("A multi_match query has no match_queries")
        return self._any_of(query.match_queries)

    def _any_of(self, queries: list[m.MatchQuery]) -> fts.FullTextQuery:
        """Return a query that scores by its best match.

        A query without a column searches all indexed columns.
        """
        first = queries[0]
        for query in queries:
            self.texts.add(query.terms, is_fuzzy=bool(query.fuzziness))
            if (query.max_expansions or 0) > MAX_EXPANSIONS:
                raise InvalidInput(
                    f"'max_expansions' is {query.max_expansions}; at most {MAX_EXPANSIONS:,} are allowed"
                )
        targets = [
            (column, 1.0 if query.boost is None else float(query.boost))
            for query in queries
            for column in ([query.column] if query.column else self._indexed)
        ]
        if len(targets) == 1:
            expansions = small("max_expansions", first.max_expansions)
            return fts.MatchQuery(
                first.terms,
                targets[0][0],
                boost=targets[0][1],
                fuzziness=small("fuzziness", first.fuzziness) or 0,
                max_expansions=_MAX_EXPANSIONS if expansions is None else expansions,
                operator=_operator(first),
                prefix_length=small("prefix_length", first.prefix_length) or 0,
            )
        for query in queries:
            if query.fuzziness or query.prefix_length or query.max_expansions is not None:
                raise Unsupported(
                    "A match over several columns cannot be fuzzy",
                    detail="Combine a match of each column in the 'should' of a boolean query.",
                )
            if (query.terms, _operator(query)) != (first.terms, _operator(first)):
                raise Unsupported(
                    "The queries of a multi_match have the same terms and operator",
                    detail="Combine different ones in the 'should' of a boolean query.",
                )
        columns, boosts = zip(*targets, strict=True)
        return fts.MultiMatchQuery(
            first.terms, list(columns), boosts=list(boosts), operator=_operator(first)
        )

    def _phrase(self, query: m.PhraseQuery) -> fts.FullTextQuery:
        self.texts.add(query.terms)
        columns = [query.column] if query.column else self._indexed
        if len(columns) > 1:
            raise InvalidInput(
                f"A phrase query names its column; there are {', '.join(sorted(columns))}"
            )
        return fts.PhraseQuery(query.terms, columns[0], slop=small("slop", query.slop) or 0)

    def _boost(self, query: m.BoostQuery) -> fts.FullTextQuery:
        negative = query.negative_boost
        return fts.BoostQuery(
            self.build(query.positive),
            self.build(query.negative),
            negative_boost=_NEGATIVE_BOOST if negative is None else float(negative),
        )

    def _boolean(self, query: m.BooleanQuery) -> fts.FullTextQuery:
        return fts.BooleanQuery(
            [
                (occur, self.build(clause))
                for occur, queries in (
                    (fts.Occur.SHOULD, query.should),
                    (fts.Occur.MUST, query.must),
                    (fts.Occur.MUST_NOT, query.must_not),
                )
                for clause in queries
            ]
        )

    @cached_property
    def _indexed(self) -> list[str]:
        """The columns that have a full-text index.

        A structured query may have thousands of parts that name no column, and Lance reads the indexes at each call.
        """
        columns = {
            index.field_names[0]
            for index in self.dataset.describe_indices()
            if index.index_type == "Inverted"
        }
        if not columns:
            raise InvalidInput(
                f"Table '{label(self.table)}' has no full-text index, and the query names no column",
                detail="Create an index of type INVERTED.",
            )
        return sorted(columns)


def _operator(query: m.MatchQuery) -> fts.FullTextOperator:
    name = query.operator or "or"
    if name.lower() not in _OPERATORS:
        raise InvalidInput(f"Operator {name!r} is not known; use And or Or")
    return _OPERATORS[name.lower()]


def small(name: str, number: int | None) -> int | None:
    """Return the number after checking that it fits into 32 bits. Raises InvalidInput."""
    if number is not None and number > _MAX_INT32:
        raise InvalidInput(f"'{name}' is more than {_MAX_INT32}")
    return number
