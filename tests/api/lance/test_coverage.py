"""Every operation has a test, and every error of the catalog has a status and a code."""

import re
from pathlib import Path

from lance_namespace_urllib3_client.api.materialized_view_api import MaterializedViewApi
from lance_namespace_urllib3_client.api.namespace_api import NamespaceApi
from lance_namespace_urllib3_client.api.table_api import TableApi
from lance_namespace_urllib3_client.api.transaction_api import TransactionApi

from api.errors import (
    BodyTooLarge,
    BodyTooSlow,
    MethodNotAllowed,
    RouteNotFound,
    UnsupportedEncoding,
)
from api.lance import errors, urls
from catalog.errors import CatalogError, DataTooLarge

_MARK = re.compile(r'mark\.operation\("(\w+)"\)')


def operations() -> dict[str, type]:
    """The operations of the routes, by name."""
    return {operation.__name__: operation for operation in urls.ROUTES.values()}


def marked() -> set[str]:
    """The operations whose tests are marked, in files that have tests."""
    operation_ids = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        text = path.read_text()
        if "\ndef test_" in text:
            operation_ids.update(_MARK.findall(text))
    return operation_ids


def test_every_operation_of_the_published_client_is_served():
    published = {
        "".join(word.capitalize() for word in name.split("_"))
        for api in (MaterializedViewApi, NamespaceApi, TableApi, TransactionApi)
        for name in vars(api)
        if not name.startswith("_") and not name.endswith(("_http_info", "_preload_content"))
    }
    assert set(operations()) == published


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
    """The specification's table of statuses and codes."""
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
