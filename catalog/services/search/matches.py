"""Matches of a search result: the texts that contain the words of the query, with highlights."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from catalog.services.search import words as search_words
from catalog.services.search.query import Query

_MAX_MATCHES = 5  # per result
_CONTEXT = 80  # characters shown before and after a match in a long text


@dataclass(frozen=True, slots=True)
class Part:
    """Piece of a text that matches the query or not. Plain text that must be escaped for display."""

    text: str
    is_hit: bool


@dataclass(frozen=True, slots=True)
class Match:
    """Text of a result that contains words of the query."""

    field: str
    """name, column, comment, label, description, owner or path."""
    parts: tuple[Part, ...]


def matches_of(row: Mapping[str, Any], query: Query, likely: Sequence[str]) -> list[Match]:
    """Texts that contain the words, most relevant field first; the last word matches as a prefix."""
    exact = {word for query_term in query.terms for word in query_term.words} | set(likely)
    open_words = tuple(query_term.words[-1] for query_term in query.terms if query_term.is_prefix)
    only_columns = all(query_term.in_columns for query_term in query.terms)
    label_filters = {key for key, _ in query.labels}
    *above, name = row["path"]
    matches: list[Match] = []
    if not only_columns:
        matches += _match("name", name, exact, open_words)
    for path, _, comment in _json(row["columns"]):
        if len(matches) >= _MAX_MATCHES:
            return matches
        matches += _match("column", path, exact, open_words)
        if not only_columns:
            matches += _match("comment", comment, exact, open_words)
    if not only_columns or label_filters:
        matches += _match_labels(row, exact, open_words, label_filters)
    if not only_columns:
        matches += _match("description", row["description"], exact, open_words)
        for _, text in map(_json, row["column_descriptions"]):
            matches += _match("description", text, exact, open_words)
        matches += _match("owner", row["owner"], exact, open_words)
        matches += _match("path", ".".join(above), exact, open_words)
    return matches[:_MAX_MATCHES]


def _match_labels(
    row: Mapping[str, Any], exact: set[str], open_words: tuple[str, ...], label_filters: set[str]
) -> list[Match]:
    labels = [_json(entry) for entry in row["labels"]]
    matches = [
        Match("label", (Part(key, is_hit=True), Part(" (inherited)", is_hit=False)))
        for key in sorted(label_filters - {key for key, *_ in labels})
    ]
    for key, value, column in labels:
        text = f"{key}={value}" if value else key
        if key in label_filters:
            matches.append(Match("label", (Part(text, is_hit=True),)))
        else:
            matches += _match("label", f"{column}: {text}" if column else text, exact, open_words)
    return matches


def _json(value: Any) -> Any:
    return orjson.loads(value) if isinstance(value, (str, bytes)) else value


def _match(field: str, text: str, exact: set[str], open_words: tuple[str, ...]) -> Iterable[Match]:
    parts = highlight(text, exact, open_words)
    return [Match(field, parts)] if parts else []


def highlight(text: str, exact: set[str], open_words: tuple[str, ...] = ()) -> tuple[Part, ...]:
    """The text around the first of these words, in pieces; empty if it contains none of them.

    ``open_words`` are prefixes of words.
    """
    spans: list[tuple[int, int]] = []
    for word in search_words.words(text):
        if word.text not in exact and not (open_words and word.text.startswith(open_words)):
            continue
        span = (word.start, word.end)
        if spans and span[0] < spans[-1][1]:  # part of a compound that is already highlighted
            continue
        spans.append(span)
    if not spans:
        return ()
    first, last = max(0, spans[0][0] - _CONTEXT), min(len(text), spans[0][1] + _CONTEXT)
    parts: list[Part] = []
    at = first
    if first > 0:
        parts.append(Part("…", is_hit=False))
    for start, end in spans:
        if end > last:
            break
        if start > at:
            parts.append(Part(text[at:start], is_hit=False))
        parts.append(Part(text[start:end], is_hit=True))
        at = end
    if last > at:
        parts.append(Part(text[at:last], is_hit=False))
    if last < len(text):
        parts.append(Part("…", is_hit=False))
    return tuple(parts)
