"""Every operation has a test, and every refusal of the catalog has a place in the Lance form."""

import re
from pathlib import Path

from api.errors import (
    BodyTooLarge,
    BodyTooSlow,
    MethodNotAllowed,
    RouteNotFound,
    UnsupportedEncoding,
)
from api.lance import errors, urls
from api.lance.views import fallback
from catalog.errors import CatalogError, DataTooLarge

_MARK = re.compile(r'mark\.operation\("(\w+)"\)')


def operations() -> dict[str, type]:
    """The operations that the routes serve, by name."""
    operations_by_name = {}
    for pattern in urls.urlpatterns:
        view = pattern.callback.view_class
        if view not in {fallback.NotServed, fallback.NoRoute}:
            operations_by_name[view.__name__] = view
    return operations_by_name


def marked() -> set[str]:
    """The operations whose tests are marked, in files that have tests."""
    operation_ids = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        text = path.read_text()
        if "\ndef test_" in text:
            operation_ids.update(_MARK.findall(text))
    return operation_ids


def test_all_54_operations_are_served():
    assert len(operations()) == 54


def test_every_operation_has_a_test():
    assert set(operations()) - marked() == set()


def test_every_mark_names_an_existing_operation():
    assert marked() - set(operations()) == set()


def _subclasses(base: type) -> set[type]:
    direct = set(base.__subclasses__())
    return direct.union(*(_subclasses(subclass) for subclass in direct))


def test_every_refusal_has_a_status_and_a_code():
    refusals = {
        c
        for c in _subclasses(CatalogError)
        if c.__module__.startswith(("catalog.errors.", "api.errors"))
    }
    assert refusals - set(errors.STATUS_AND_CODE) == set()
    assert {BodyTooLarge, MethodNotAllowed, RouteNotFound} <= refusals


def test_statuses_agree_with_codes():
    """The specification's table: which status goes with which code."""
    by_code = {
        **dict.fromkeys((1, 4, 6, 8, 10, 11, 12, 22), 404),
        **dict.fromkeys((2, 3, 5, 7, 9, 14, 19, 23), 409),
        **dict.fromkeys((13, 20), 400),
        15: 403,
        16: 401,
        17: 503,
        18: 500,
        21: 429,
    }
    own = {
        RouteNotFound: (404, 0),
        MethodNotAllowed: (405, 0),
        BodyTooLarge: (413, 13),
        BodyTooSlow: (408, 13),
        UnsupportedEncoding: (415, 13),
        DataTooLarge: (413, 13),
    }
    for refusal, (status, code) in errors.STATUS_AND_CODE.items():
        expected = own.get(refusal, (by_code.get(code, 406), code))
        assert (status, code) == expected, refusal
    assert errors.INTERNAL == (500, 18)
