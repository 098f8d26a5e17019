"""Words: how names and texts fall into them, and the vectors and queries made of them. Pure.

A vector holds words, with their places and weights (name A, columns and labels B, descriptions C,
owner and the names above D), and marks, which begin with a colon, as no word does:

    :e:orders   :e:prod.sales.orders     the whole name, alone and with those above it
    :n:orders                            a word of the name
    :c:email    :c=billing.email         a word of a column's name, and its whole path
    :l:pii      :l:pii=yes               a label of its own
    :m:pii      :m:pii=yes               a label of one of its columns
    :s:         :s:restricted            its own sensitivity, and whether it has one
    :t:restricted                        the highest sensitivity of its columns
    :o:user:ada :o:ada                   its owner
    :f:lance    :k:view                  format and kind
    :i:prod.sales  :p:12                 the namespaces above it, by name and by primary key
    :w:12        :d:345                  itself, a namespace or a table

One index answers for all of them at once, which is why filters are marks and no columns.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MAX_WORD = 100  # characters of a word; what follows does not count
MAX_MARK = 450  # characters of a mark; PostgreSQL takes 2 kB
_MAX_POSITIONS = 250  # of one word; PostgreSQL keeps 255
_MAX_POSITION = 16_000  # PostgreSQL counts to 16,383
_MAX_LEXEMES = 20_000  # of a vector, which may have 1 MB
_GAP = 8  # between two texts, so that no phrase reaches over it
_CHUNK = re.compile(r"(?:[^\W_][\u0300-\u036f]*)+")
_MIN_CORRECTED = 3  # letters of a word that is corrected


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a text, and where it stands there."""

    text: str
    start: int
    end: int
    parts: int = 1
    """How many words it holds: 2 for ``events2024``, which is one word and two."""


def fold(text: str, longest: int = MAX_WORD) -> str:
    """Without case and accents, in which words do not differ; shortened."""
    plain = unicodedata.normalize("NFKD", text)
    letters = "".join(c for c in plain if not unicodedata.combining(c) and c != "\0")
    return letters.casefold()[:longest]


def mark(kind: str, text: str = "") -> str:
    """The mark of this kind for a text: ``mark("l", "pii=yes")``."""
    return f":{kind}:{fold(text, MAX_MARK)}"[:MAX_MARK]


def words(text: str) -> Iterator[Word]:
    """The words of a text or name, in order; a compound comes before its parts.

    ``customerOrders_2024`` is ``customerorders``, ``customer``, ``orders`` and ``2024``.
    """
    for chunk in _CHUNK.finditer(text):
        parts = list(_parts(chunk.group(), chunk.start()))
        if len(parts) > 1:
            yield Word(fold(chunk.group()), chunk.start(), chunk.end(), len(parts))
        yield from parts


def _parts(chunk: str, offset: int) -> Iterator[Word]:
    start = 0
    for here in range(1, len(chunk) + 1):
        if here == len(chunk) or _is_border(chunk, here):
            yield Word(fold(chunk[start:here]), offset + start, offset + here)
            start = here


def _is_border(chunk: str, here: int) -> bool:
    """Between letters and digits, before a capital, and before the last capital of a row."""
    before, after = chunk[here - 1], chunk[here]
    if unicodedata.combining(after):
        return False
    if before.isdigit() != after.isdigit():
        return True
    if not after.isupper():
        return False
    return before.islower() or (here + 1 < len(chunk) and chunk[here + 1].islower())


class Vector:
    """Collects the words and marks of one document."""

    def __init__(self) -> None:
        self._positions: dict[str, list[str]] = {}
        self._position = 1

    def add(self, text: str, weight: str, mark: str = "", *, follows: bool = False) -> None:
        """The words of a text; with ``mark`` each is a mark too.

        With ``follows`` they directly follow the words before, so that a phrase may reach over.
        """
        if not follows:
            self._position += _GAP
        for word in words(text):
            self._enter(word.text, f"{min(self._position, _MAX_POSITION)}{weight}")
            if mark:
                self.mark(mark + word.text)
            if word.parts == 1:
                self._position += 1

    def mark(self, mark: str) -> None:
        self._enter(mark[:MAX_MARK], "")

    def _enter(self, lexeme: str, position: str) -> None:
        if lexeme not in self._positions and len(self._positions) >= _MAX_LEXEMES:
            return
        positions = self._positions.setdefault(lexeme, [])
        if position and len(positions) < _MAX_POSITIONS:
            positions.append(position)

    def __str__(self) -> str:
        """As PostgreSQL reads a tsvector."""
        return " ".join(
            f"{quote(lexeme)}:{','.join(positions)}" if positions else quote(lexeme)
            for lexeme, positions in self._positions.items()
        )


def quote(lexeme: str) -> str:
    """A lexeme as it stands in a tsvector or tsquery."""
    escaped = lexeme.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def term(lexeme: str, *, is_prefix: bool = False) -> str:
    """A lexeme in a tsquery."""
    return quote(lexeme) + (":*" if is_prefix else "")


def any_of(terms: Iterable[str]) -> str:
    return _joined(terms, " | ")


def all_of(terms: Iterable[str]) -> str:
    return _joined(terms, " & ")


def phrase(terms: Iterable[str]) -> str:
    return _joined(terms, " <-> ")


def _joined(terms: Iterable[str], operator: str) -> str:
    operands = list(terms)
    return operands[0] if len(operands) == 1 else f"({operator.join(operands)})"


# --- words like another --------------------------------------------------------------------------


def can_be_corrected(word: str) -> bool:
    """Whether words like it are looked for: numbers and short words are like too many."""
    return len(word) >= _MIN_CORRECTED and word.isalpha()


def keys(word: str) -> set[str]:
    """The keys under which a word is entered among those that may be meant (``SearchWord``)."""
    return {f"={word}", *likeness(word)}


def likeness(word: str) -> set[str]:
    """The keys that it has in common with words like it.

    A transposed letter breaks most trigrams of a short word, but not the word without it.
    """
    padded = f"  {word} "
    trigrams = {padded[i : i + 3] for i in range(len(padded) - 2)}
    without = {f"-{word[:i]}{word[i + 1 :]}" for i in range(len(word))}
    return trigrams | without | {f"-{word}"}
