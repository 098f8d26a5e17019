"""Words of names and texts, and the text search vectors and queries built from them. Pure.

A vector holds words, with their positions and weights (name A, columns and labels B, descriptions C,
owner and parent namespaces D), and marks, which begin with a colon, as no word does:

    :e:orders   :e:prod.sales.orders     whole name, alone and with its parents
    :n:orders                            word of the name
    :c:email    :c=billing.email         word of a column's name, and the whole path of a column
    :l:pii      :l:pii=yes               own label
    :m:pii      :m:pii=yes               label of a column
    :s:         :s:restricted            has an own sensitivity, and its value
    :t:restricted                        highest sensitivity of the columns
    :o:user:ada :o:ada                   owner
    :f:lance    :k:view                  format and kind
    :i:prod.sales  :p:12                 parent namespaces, by name and by primary key
    :w:12        :d:345                  the namespace or table itself

Filters are marks rather than columns so that one index answers all conditions together.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MAX_WORD = 100  # characters of a word; the rest is ignored
MAX_MARK = 450  # characters of a mark; PostgreSQL takes 2 kB
_MAX_POSITIONS = 250  # of one word; PostgreSQL keeps 255
_MAX_POSITION = 16_000  # PostgreSQL counts to 16,383
_MAX_LEXEMES = 20_000  # of a vector, which may have 1 MB
_GAP = 8  # positions between two texts, so that no phrase spans both
_CHUNK = re.compile(r"(?:[^\W_][\u0300-\u036f]*)+")
_MIN_CORRECTED = 3  # letters of a word that is corrected


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a text, and its offsets in the text."""

    text: str
    start: int
    end: int
    parts: int = 1
    """Number of parts: 2 for ``events2024``, which is a compound of two words."""


def fold(text: str, longest: int = MAX_WORD) -> str:
    """Remove case and accents, which search ignores, and shorten the text."""
    plain = unicodedata.normalize("NFKD", text)
    letters = "".join(c for c in plain if not unicodedata.combining(c) and c != "\0")
    return letters.casefold()[:longest]


def mark(kind: str, text: str = "") -> str:
    """Mark of this kind for a text: ``mark("l", "pii=yes")``."""
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
    """True between letters and digits, before a capital, and before the last of several capitals."""
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
        """Add the words of a text, and with ``mark`` a mark for each.

        With ``follows`` they directly follow the previous words, so that a phrase can span both.
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
        """Text representation of a tsvector for PostgreSQL."""
        return " ".join(
            f"{quote(lexeme)}:{','.join(positions)}" if positions else quote(lexeme)
            for lexeme, positions in self._positions.items()
        )


def quote(lexeme: str) -> str:
    """Quote a lexeme for a tsvector or tsquery."""
    escaped = lexeme.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def term(lexeme: str, *, is_prefix: bool = False) -> str:
    """Lexeme of a tsquery."""
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


# --- similar words -------------------------------------------------------------------------------


def can_be_corrected(word: str) -> bool:
    """True if the word can be corrected; numbers and short words resemble too many others."""
    return len(word) >= _MIN_CORRECTED and word.isalpha()


def keys(word: str) -> set[str]:
    """Keys of a word in the dictionary for spelling correction (``SearchWord``)."""
    return {f"={word}", *likeness(word)}


def likeness(word: str) -> set[str]:
    """Keys that a word shares with similar words: trigrams, and the word with one letter removed.

    A transposed letter changes most trigrams of a short word, but not the word without that letter.
    """
    padded = f"  {word} "
    trigrams = {padded[i : i + 3] for i in range(len(padded) - 2)}
    without = {f"-{word[:i]}{word[i + 1 :]}" for i in range(len(word))}
    return trigrams | without | {f"-{word}"}
