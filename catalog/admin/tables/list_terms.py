"""The filters and the search of the list of tables as terms, by which an index is read.

Each part is equivalent to the filter of the same parameter (``catalog.admin.tables.list_filters``).
"""

from collections.abc import Callable

from django.contrib.admin.views.main import ORDER_VAR, PAGE_VAR, SEARCH_VAR
from django.http import HttpRequest

from catalog.admin.tables.list_filters import BOUNDS
from catalog.identifiers import lookup
from catalog.models import Namespace, TableState
from catalog.services.tables import terms
from catalog.services.tables.candidates import Terms

_SEARCHED = "_monodon_searched_name"
_WITHOUT_EFFECT = {ORDER_VAR, PAGE_VAR, SEARCH_VAR, "cols", "export"}

_Groups = list[list[str]]


def set_searched_name(request: HttpRequest, part: str) -> None:
    """Note that the search of the request is for tables with this part in their name."""
    setattr(request, _SEARCHED, part)


def of(request: HttpRequest) -> Terms | None:
    """The terms of the list; None if its filters or its search have no equivalent.

    One statement at most.
    """
    groups: _Groups = []
    for parameter, values in request.GET.lists():
        if parameter in _WITHOUT_EFFECT:
            continue
        build = _FILTERS.get(parameter)
        text = values[-1].replace("\x00", "").strip()
        built = build(text) if build is not None and len(values) == 1 else None
        if built is None:
            return None
        groups += built
    name: str = getattr(request, _SEARCHED, "")
    if request.GET.get(SEARCH_VAR, "").strip() and not name:
        return None
    return Terms(
        all_of=[group[0] for group in groups if len(group) == 1],
        one_of_each=[group for group in groups if len(group) != 1],
        name=name,
    )


def _state(text: str) -> _Groups | None:
    if text in {TableState.DROPPED, "all"}:
        return None  # dropped tables have no terms
    return [[terms.of_state(text)]] if text in TableState.values else []


def _namespace(text: str) -> _Groups:
    if not text:
        return []
    rows = Namespace.objects.filter(digest=lookup(text))
    return [[terms.directly_in(pk) for pk in rows.values_list("pk", flat=True)]]


def _owner(text: str) -> _Groups:
    return [[terms.of_owner(text)]] if text else []


def _health(text: str) -> _Groups:
    if text == "unknown":
        return [[terms.NOT_MEASURED]]
    if text not in BOUNDS:
        return []
    low, high = BOUNDS[text]
    return [[terms.of_score(score) for score in range(low, high, terms.SCORES)]]


def _label(text: str) -> _Groups:
    if not text:
        return []
    key, has_value, value = text.partition("=")
    if has_value:
        return [[terms.of_label_value(key.strip(), value.strip())]]
    return [[terms.of_label(key.strip())]]


_FILTERS: dict[str, Callable[[str], _Groups | None]] = {
    "format__exact": lambda text: [[terms.of_format(text)]],
    "kind__exact": lambda text: [[terms.of_kind(text)]],
    "state": _state,
    "in": _namespace,
    "owner": _owner,
    "health": _health,
    "label": _label,
}
