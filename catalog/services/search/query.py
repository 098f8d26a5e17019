"""The query language of the search, as people type it.

customer orders              both words, in any text of a document; the last one as a prefix
"customer orders"            the words next to each other
column:email label:pii=yes   filters: label, owner, column, format, kind, in, sensitivity
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from catalog.errors import InvalidInput
from catalog.models import Sensitivity, TableFormat, TableKind
from catalog.services.search.words import (
    MAX_MARK,
    all_of,
    any_of,
    can_be_corrected,
    fold,
    mark,
    phrase,
    term,
    words,
)

MAX_QUERY = 500  # characters
_MAX_WORDS = 20
_SIMILARITY = 0.7  # of a misspelled filter
KINDS = (*TableKind.values, "namespace")
FIELDS = ("column", "format", "in", "kind", "label", "owner", "sensitivity")
_TOKEN = re.compile(
    r'(?P<field>[A-Za-z]+):(?P<of_field>(?:"[^"]*"?|[^\s"])*)|(?P<plain>(?:"[^"]*"?|[^\s"])+)'
)


@dataclass(frozen=True, slots=True)
class Term:
    """A word to search for, or several words next to each other."""

    parts: tuple[tuple[str, ...], ...]
    """Words in order, each with its spellings: ``events2024`` is also ``events``, ``2024``."""
    is_prefix: bool = False
    """True if the last word is a prefix."""
    is_quoted: bool = False
    in_columns: bool = False
    """True if only names of columns match."""

    @property
    def words(self) -> list[str]:
        return [word for spellings in self.parts for word in spellings]

    @property
    def is_in_order(self) -> bool:
        """True if the term has several consecutive words."""
        return len(self.words) > 1

    def query(self) -> str:
        """tsquery over all words of a document."""
        if self.in_columns:
            return self.in_marks("c")
        return phrase(
            self._spelled(spellings, self._is_open(position))
            for position, spellings in enumerate(self.parts)
        )

    def in_marks(self, kind: str) -> str:
        """tsquery over the marks of names or of columns, which have no positions."""
        return all_of(
            self._marked(kind, spellings, self._is_open(position))
            for position, spellings in enumerate(self.parts)
        )

    def near(self, placeholder: Callable[[str, str], str]) -> str:
        """tsquery for similar words; ``placeholder`` returns the placeholder for a mark and a word.

        Words that are not quoted no longer need to be next to each other.
        """
        if self.is_quoted:
            return self.query()
        queries = []
        for position, spellings in enumerate(self.parts):
            singles = spellings[:1] if len(spellings) == 1 else spellings[1:]
            for word in singles:
                kind = mark("c") if self.in_columns else ""
                exact = term(kind + word, is_prefix=self._is_open(position))
                likely = (placeholder(kind, word),) if can_be_corrected(word) else ()
                queries.append(any_of((exact, *likely)))
        return all_of(queries)

    def _is_open(self, position: int) -> bool:
        return self.is_prefix and position == len(self.parts) - 1

    @staticmethod
    def _marked(kind: str, spellings: Sequence[str], is_open: bool) -> str:
        whole, *subwords = (mark(kind, spelling) for spelling in spellings)
        exact = term(whole, is_prefix=is_open)
        return any_of((exact, all_of(term(subword) for subword in subwords))) if subwords else exact

    @staticmethod
    def _spelled(spellings: Sequence[str], is_open: bool) -> str:
        whole, *subwords = spellings
        if not subwords:
            return term(whole, is_prefix=is_open)
        last = len(subwords) - 1
        beside = phrase(
            term(subword, is_prefix=is_open and position == last)
            for position, subword in enumerate(subwords)
        )
        return any_of((term(whole, is_prefix=is_open), beside))


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query."""

    terms: tuple[Term, ...]
    filters: tuple[str, ...]
    """tsqueries over marks."""
    labels: tuple[tuple[str, str | None], ...]
    """Folded keys and values; None: any value."""
    sensitivities: tuple[Sensitivity, ...]
    whole: str
    """The whole text, for names that equal it."""

    @property
    def words(self) -> list[str]:
        """All words, to highlight them in the results."""
        return [word for term in self.terms for word in term.words]


def parse(text: str) -> Query:
    """Parse a query. Raises InvalidInput, with a valid example where possible."""
    if len(text) > MAX_QUERY:
        raise InvalidInput(f"The query has {len(text)} characters; {MAX_QUERY} are allowed")
    text = text.replace("\0", " ")
    terms: list[Term] = []
    filters: list[str] = []
    labels: list[tuple[str, str | None]] = []
    sensitivities: list[Sensitivity] = []
    tokens = list(_TOKEN.finditer(text))
    for number, token in enumerate(tokens):
        field = (token["field"] or "").lower()
        value = token["of_field"] if field else token["plain"]
        # The last word may still be typed; a space or a quote after it completes it.
        is_open = number == len(tokens) - 1 and token.end() == len(text) and '"' not in value
        plain = value.replace('"', "")
        if field in FIELDS and not plain.strip():
            raise InvalidInput(f"'{field}:' needs a value: {_EXAMPLES[field]}")
        if field == "label":
            key, equals, label_value = plain.partition("=")
            labels.append((fold(key, MAX_MARK), fold(label_value, MAX_MARK) if equals else None))
        elif field == "sensitivity":
            sensitivities.append(Sensitivity(_choice(field, plain, Sensitivity.values)))
        elif field in _FILTERS:
            filters.append(term(_FILTERS[field](plain)))
        else:
            # An unknown filter is searched for as words.
            words_of = plain if field in {"", "column"} else f"{token['field']} {plain}"
            terms += _terms(words_of, is_open, '"' in value, in_columns=field == "column")
    if sum(len(entry.words) for entry in terms) > _MAX_WORDS:
        raise InvalidInput(f"The query has more than {_MAX_WORDS} words")
    if not (terms or filters or labels or sensitivities):
        raise InvalidInput("The query is empty; enter a word, or a filter such as kind:view")
    return Query(tuple(terms), tuple(filters), tuple(labels), tuple(sensitivities), text.strip())


def respelled(text: str) -> str:
    """The query with similar filters in place of unknown ones, as ``column:`` for ``colum:``; or empty."""
    changed = text
    for token in reversed(list(_TOKEN.finditer(text))):
        field = (token["field"] or "").lower()
        if field and field not in FIELDS:
            close = get_close_matches(field, FIELDS, 1, _SIMILARITY)
            if close:
                changed = (
                    f"{changed[: token.start('field')]}{close[0]}{changed[token.end('field') :]}"
                )
    return changed if changed != text else ""


_EXAMPLES = {
    "column": "column:email",
    "format": "format:lance",
    "in": "in:prod.sales",
    "kind": "kind:view",
    "label": "label:pii or label:pii=yes",
    "owner": "owner:ada",
    "sensitivity": "sensitivity:restricted",
}


def _choice(field: str, value: str, choices: Sequence[str]) -> str:
    if value.lower() not in choices:
        raise InvalidInput(f"'{field}:{value}' is unknown; use one of {', '.join(choices)}")
    return value.lower()


_FILTERS: dict[str, Callable[[str], str]] = {
    "owner": lambda value: mark("o", value),
    "format": lambda value: mark("f", _choice("format", value, TableFormat.values)),
    "kind": lambda value: mark("k", _choice("kind", value, KINDS)),
    "in": lambda value: mark("i", value),
}


def _terms(text: str, is_open: bool, is_quoted: bool, *, in_columns: bool = False) -> list[Term]:
    parts: list[list[str]] = []
    ends_at = 0
    for word in words(text):
        if word.start < ends_at:  # part of the preceding compound
            parts[-1].append(word.text)
        else:
            parts.append([word.text])
            ends_at = word.end
    if not parts:
        return []
    return [Term(tuple(tuple(spellings) for spellings in parts), is_open, is_quoted, in_columns)]
