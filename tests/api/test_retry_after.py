"""Every 429 and 503 has the header Retry-After."""

import pytest

from api.errors import TooManyRequests
from api.iceberg import errors as iceberg
from api.lance import errors as lance
from api.management import errors as management
from catalog.errors import CatalogError, TooManyAttempts

TRANSIENT = {429, 503}


def make(kind: type[CatalogError]) -> CatalogError:
    if kind is TooManyRequests:
        return TooManyRequests("this address", 256, 7)
    return TooManyAttempts(7) if kind is TooManyAttempts else kind("passes")


@pytest.mark.parametrize(
    ("table", "answer"),
    [
        (lance.STATUS_AND_CODE, lambda error: lance.answer(error, "/")),
        (iceberg.STATUS_AND_TYPE, lambda error: iceberg.answer(error, error.message, {})),
        (management.STATUS_AND_TITLE, lambda error: management.answer(error, "/")),
    ],
    ids=["lance", "iceberg", "management"],
)
def test_transient_errors_have_retry_after(table, answer):
    transient = {kind.__name__ for kind, (status, *_) in table.items() if status in TRANSIENT}
    assert transient == {"TooManyAttempts", "TooManyRequests", "ServiceUnavailable", "Busy"}
    for kind, (status, *_) in table.items():
        if status in TRANSIENT:
            _, _, headers = answer(make(kind))
            has_seconds = kind in {TooManyAttempts, TooManyRequests}
            assert headers["Retry-After"] == ("7" if has_seconds else "1")
