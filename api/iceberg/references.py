"""The query parameter ``referenced-by``: the views through which a table or a view is loaded."""

from urllib.parse import unquote, unquote_plus

from api.iceberg.prefixes import SEPARATOR
from catalog import identifiers
from catalog.errors import InvalidInput
from catalog.identifiers import Identifier

_NAME = "referenced-by"
_MAX_VIEWS = 100


def read(query: str) -> list[Identifier]:
    """The views that the parameter names, outermost first; none without it. Raises InvalidInput.

    It grants no privilege: the caller must have the privilege to read the loaded object. Some clients
    quote each name and then the whole, so both forms are accepted.
    """
    texts = [
        parameter.partition("=")[2]
        for parameter in query.split("&")
        if parameter.partition("=")[0] == _NAME
    ]
    if not texts:
        return []
    text = texts[-1]
    if not text:
        return []
    parts = text.split(",") if "," in text else unquote_plus(text).split(",")
    if len(parts) > _MAX_VIEWS:
        raise InvalidInput(f"Query parameter '{_NAME}' names more than {_MAX_VIEWS} views")
    return [_view(text) for text in parts]


def _view(part: str) -> Identifier:
    text = unquote_plus(part)
    if SEPARATOR not in text:
        text = unquote(text)
    levels = text.split(SEPARATOR)
    if len(levels) < 2:
        raise InvalidInput(
            f"Query parameter '{_NAME}' names {text!r}; give each view with its namespace, joined by"
            " 0x1F, and commas between views"
        )
    return identifiers.check(levels)
