"""The unique key in PostgreSQL's error, whatever its language."""

from types import SimpleNamespace

import pytest
from django.db import IntegrityError

from catalog.services.engine import taken_keys


def violation(constraint: str | None = None, detail: str | None = None) -> IntegrityError:
    error = IntegrityError()
    cause = Exception()
    cause.diag = SimpleNamespace(constraint_name=constraint, message_detail=detail)  # type: ignore[attr-defined]
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("detail", "key"),
    [
        ("Key (table_id, branch, version)=(12, dev, 7) already exists.", ("12", "dev, 7")),
        ("Schlüssel »(table_id, branch, version)=(3, , 1)« existiert bereits.", ("3", ", 1")),
        ("Key (table_id, branch, version)=(12, a)=(b\n, 7) already exists.", ("12", "a)=(b\n, 7")),
        ("Key (name)=(x) already exists.", None),
        ("", None),
        (None, None),
    ],
)
def test_the_key_of_a_version_is_read(detail, key):
    assert taken_keys.read(violation(detail=detail)) == key


def test_the_constraint_is_named():
    assert taken_keys.constraint(violation("table_version_unique")) == taken_keys.OF_VERSIONS


def test_an_error_without_details_names_nothing():
    without_details = IntegrityError()
    without_details.__cause__ = ValueError()
    for error in (violation(), IntegrityError(), without_details):
        assert (taken_keys.constraint(error), taken_keys.read(error)) == ("", None)
