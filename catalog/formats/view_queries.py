"""The queries of materialized views: rows of one table, filtered, with columns or expressions.

The protocol leaves the form of a query to the client. Two equivalent forms are accepted:

    {"source": ["ws", "t"], "columns": {"twice": "id * 2"}, "filter": "id > 1", "limit": 10}
    SELECT id * 2 AS twice FROM ws.t WHERE id > 1 LIMIT 10

LanceDB writes the SQL form. Expressions and filters are Lance SQL; this module does not parse them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from catalog.errors import InvalidInput
from catalog.formats.lance import sql as lance_sql
from catalog.formats.lance import sql_growth
from catalog.identifiers import Identifier, check_table

UNDERSTOOD = (
    'A source query is a JSON object {"source": [...], "columns": {name: expression} or a list of '
    "names and of pairs [name, expression], "
    '"filter": SQL, "limit": n, "version": n}, of which only "source" must be there, or '
    '"SELECT * | expression [AS name], ... FROM namespace.table [WHERE filter] [LIMIT n]".'
)
_MAX_CHARACTERS = 100_000
_KEYS = {"source", "columns", "filter", "limit", "version"}
_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
    | (?P<text>'(?:[^']|'')*')
    | (?P<name>"(?:[^"]|"")+"|`(?:[^`]|``)+`)
    | (?P<word>[^\W\d]\w*)
    | (?P<number>\d\w*(?:\.\w+)?)
    | (?P<sign>[^'"`\s])
    """,
    re.VERBOSE,
)
_CLAUSES = ("FROM", "WHERE", "LIMIT")
_OTHERS = {
    *("GROUP", "ORDER", "HAVING", "JOIN", "UNION", "INTERSECT", "EXCEPT", "OFFSET", "WINDOW"),
    *("INNER", "OUTER", "CROSS", "LATERAL", "WITH", "QUALIFY"),
}


@dataclass(frozen=True, slots=True)
class ViewQuery:
    """The query of a materialized view."""

    source: Identifier
    columns: tuple[tuple[str, str], ...] | None = None
    """Names and Lance SQL expressions; None: all columns of the source."""
    filter: str | None = None
    limit: int | None = None
    version: int | None = None
    """The version of the source that the view shows; None for the newest."""

    @property
    def expressions(self) -> tuple[str, ...]:
        """The filter, and the expressions of columns."""
        return (self.filter or "", *(expression for _, expression in self.columns or ()))

    def to_json(self) -> dict[str, Any]:
        """The object that ``from_json`` reads, without unset values."""
        document = {
            "source": list(self.source),
            # Pairs, because PostgreSQL does not keep the order of an object's keys.
            "columns": None if self.columns is None else [list(pair) for pair in self.columns],
            "filter": self.filter,
            "limit": self.limit,
            "version": self.version,
        }
        return {key: value for key, value in document.items() if value is not None}

    def to_sql(self) -> str:
        """The query as SQL for display, without the version."""
        selection = "*"
        if self.columns is not None:
            selection = ", ".join(
                text if text == quoted(name) else f"{text} AS {quoted(name)}"
                for name, text in self.columns
            )
        source = ".".join(map(quoted, self.source))
        text = f"SELECT {selection} FROM {source}"  # noqa: S608 -- it is shown, not run
        if self.filter is not None:
            text += f" WHERE {self.filter}"
        return text if self.limit is None else f"{text} LIMIT {self.limit}"


def parse(text: str) -> ViewQuery:
    """Parse a source query in either form. Raises InvalidInput, whose detail names both forms."""
    try:
        if len(text) > _MAX_CHARACTERS:
            raise InvalidInput(f"it has more than {_MAX_CHARACTERS:,} characters")
        is_json = text.lstrip().startswith("{")
        query = from_json(orjson.loads(text)) if is_json else _from_sql(text)
        if "\x00" in text + query.to_sql():
            raise InvalidInput("it holds a NUL character")
        for expression in query.expressions:
            lance_sql.check(expression)
        sql_growth.check_values([expression for _, expression in query.columns or ()])
        return query
    except (InvalidInput, orjson.JSONDecodeError) as error:
        raise InvalidInput(f"The source query cannot be read: {error}", detail=UNDERSTOOD) from None


def from_json(document: Mapping[str, Any]) -> ViewQuery:
    """The query of a decoded JSON object. Raises InvalidInput."""
    unknown = sorted(document.keys() - _KEYS)
    if unknown:
        raise InvalidInput(f"it has an unknown key {unknown[0]!r}")
    source = document.get("source")
    if not isinstance(source, list) or not all(isinstance(segment, str) for segment in source):
        raise InvalidInput("its 'source' is not a list of the names of a table")
    filter_ = document.get("filter")
    if filter_ is not None and not isinstance(filter_, str):
        raise InvalidInput("its 'filter' is not a text")
    for key in ("limit", "version"):
        number = document.get(key)
        if number is not None and (type(number) is not int or not 0 <= number < 2**63):
            raise InvalidInput(f"its {key!r} is not a number from 0")
    return ViewQuery(
        source=_table(source),
        columns=_columns(document.get("columns")),
        filter=_filter(filter_),
        limit=document.get("limit"),
        version=document.get("version"),
    )


def quoted(name: str) -> str:
    """A name quoted for Lance SQL."""
    return f"`{name.replace('`', '``')}`"


def _table(source: list[str]) -> Identifier:
    table = tuple(source)
    check_table(table)
    return table


def _columns(columns: Any) -> tuple[tuple[str, str], ...] | None:
    if columns is None:
        return None
    items = list(columns.items()) if isinstance(columns, dict) else columns
    if not isinstance(items, list):
        raise InvalidInput("its 'columns' are neither a list nor an object")
    pairs = []
    for item in items:
        pair = (item, quoted(item)) if isinstance(item, str) and item else item
        if not (
            isinstance(pair, list | tuple) and [type(element) for element in pair] == [str, str]
        ):
            raise InvalidInput(
                f"its column {item!r} is neither a name nor a name with an expression"
            )
        pairs.append((pair[0], pair[1]))
    return _checked(pairs)


def _checked(pairs: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    if not pairs:
        raise InvalidInput("it has no columns")
    names = [name for name, _ in pairs]
    for name, text in pairs:
        if not name or "." in name:
            raise InvalidInput(f"a column cannot be named {name!r}")
        if names.count(name) > 1:
            raise InvalidInput(f"it has two columns named {name!r}")
        # Lance would silently read only the first of several expressions.
        if len(list(_split(_tokens(text), ","))) != 1 or not text.strip():
            raise InvalidInput(f"{text!r} is not one expression")
    return tuple(pairs)


def _filter(text: str | None) -> str | None:
    return text.strip() if text and text.strip() else None


# -- SQL

_Tokens = list[tuple[str, str]]


def _tokens(text: str) -> _Tokens:
    tokens, position = [], 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise InvalidInput(f"there is a quote without an end at position {position}")
        tokens.append((str(token.lastgroup), token[0]))
        position = token.end()
    return tokens


def _from_sql(text: str) -> ViewQuery:
    clauses = _clauses(_tokens(text.strip().removesuffix(";")))
    if "FROM" not in clauses:
        raise InvalidInput("it has no FROM")
    limit = _text(clauses["LIMIT"]) if "LIMIT" in clauses else None
    if limit is not None and not (limit.isascii() and limit.isdigit() and int(limit) < 2**63):
        raise InvalidInput(f"its LIMIT {limit!r} is not a number")
    if "WHERE" in clauses and not _text(clauses["WHERE"]):
        raise InvalidInput("its WHERE is empty")
    return ViewQuery(
        source=_table(_names(clauses["FROM"])),
        columns=_selected(clauses["SELECT"]),
        filter=_text(clauses["WHERE"]) if "WHERE" in clauses else None,
        limit=None if limit is None else int(limit),
    )


def _clauses(tokens: _Tokens) -> dict[str, _Tokens]:
    """The tokens of each clause; clauses must be in order."""
    tokens = tokens[next((i for i, (kind, _) in enumerate(tokens) if kind != "space"), 0) :]
    if not tokens or tokens[0][1].upper() != "SELECT":
        raise InvalidInput("it is neither a JSON object nor a SELECT")
    clauses: dict[str, _Tokens] = {"SELECT": []}
    current, expected, depth = "SELECT", list(_CLAUSES), 0
    for kind, text in tokens[1:]:
        depth += (text in ("(", "[")) - (text in (")", "]")) if kind == "sign" else 0
        if kind == "word" and depth == 0:
            word = text.upper()
            if word in _OTHERS:
                raise InvalidInput(f"{word} is not supported")
            if word in _CLAUSES:
                if word not in expected:
                    raise InvalidInput(f"{word} is not where it belongs")
                expected = expected[expected.index(word) + 1 :]
                current = word
                clauses[word] = []
                continue
        if kind == "sign" and text == ";":
            raise InvalidInput("it has more than one statement")
        clauses[current].append((kind, text))
    if depth:
        raise InvalidInput("its parentheses do not match")
    return clauses


def _selected(tokens: _Tokens) -> tuple[tuple[str, str], ...] | None:
    if _text(tokens) == "*":
        return None
    return _checked([_item(item) for item in _split(tokens, ",")])


def _item(tokens: _Tokens) -> tuple[str, str]:
    """The name and expression of ``expression AS name`` or of a plain column name."""
    words = [(index, text) for index, (kind, text) in enumerate(tokens) if kind != "space"]
    if not words:
        raise InvalidInput("it has an empty column")
    if len(words) == 1 and tokens[words[0][0]][0] in {"word", "name"}:
        name = _unquoted(words[0][1])
        return name, quoted(name)
    if len(words) > 2 and words[-2][1].upper() == "AS":
        kind, text = tokens[words[-1][0]]
        if kind in {"word", "name"}:
            return _unquoted(text), _text(tokens[: words[-2][0]])
    raise InvalidInput(f"the expression {_text(tokens)!r} has no name; write 'expression AS name'")


def _names(tokens: _Tokens) -> list[str]:
    names = []
    for name_tokens in _split(tokens, "."):
        words = [(kind, text) for kind, text in name_tokens if kind != "space"]
        if len(words) != 1 or words[0][0] not in {"word", "name", "number"}:
            raise InvalidInput(f"its FROM {_text(tokens)!r} is not the name of one table")
        names.append(_unquoted(words[0][1]))
    return names


def _split(tokens: _Tokens, separator: str) -> Iterator[_Tokens]:
    piece: _Tokens = []
    depth = 0
    for kind, text in tokens:
        if kind == "sign":
            depth += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
            if text == separator and depth == 0:
                yield piece
                piece = []
                continue
        piece.append((kind, text))
    yield piece


def _text(tokens: _Tokens) -> str:
    return "".join(text for _, text in tokens).strip()


def _unquoted(text: str) -> str:
    quote = text[0]
    if quote not in '"`':
        return text
    return text[1:-1].replace(quote * 2, quote)
