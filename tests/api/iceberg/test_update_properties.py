from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.db import connection

from catalog.access import SYSTEM
from catalog.models import AuditEvent, Namespace
from catalog.services.access import api_keys
from tests.api.iceberg.client import Iceberg
from tests.cases import shared_cases
from tests.factories import make_namespace, make_root, unchanged

pytestmark = pytest.mark.operation("updateProperties")
PATH = "namespaces/a/properties"


def test_sets_and_removes(iceberg: Iceberg):
    make_namespace("a", properties={"keep": "1", "change": "2", "drop": "3"})
    answer = iceberg.post(
        PATH, {"removals": ["none", "drop"], "updates": {"new": "4", "change": "5"}}
    )
    assert answer == {"updated": ["new", "change"], "removed": ["drop"], "missing": ["none"]}
    after = {"keep": "1", "change": "5", "new": "4"}
    assert Namespace.objects.get(name="a").properties == after
    event = AuditEvent.objects.latest("pk")
    assert (event.actor, event.action, event.target) == ("tester", "namespace.update", "a")
    assert event.before == {"properties": {"keep": "1", "change": "2", "drop": "3"}}
    assert event.after == {"properties": after}


def test_in_a_warehouse(iceberg: Iceberg):
    make_namespace("x", "a")
    answer = iceberg.at("x").post(PATH, {"updates": {"k": "v"}})
    assert answer == {"updated": ["k"], "removed": [], "missing": []}
    assert Namespace.objects.get(name="a").properties == {"k": "v"}


@pytest.mark.parametrize("body", [{}, {"removals": [], "updates": {}}, {"removals": None}])
def test_nothing(iceberg: Iceberg, body):
    make_namespace("a", properties={"k": "v"})
    with unchanged():
        assert iceberg.post(PATH, body) == {"updated": [], "removed": [], "missing": []}


def test_a_no_op_update(iceberg: Iceberg):
    make_namespace("a", properties={"k": "v"})
    with unchanged():
        answer = iceberg.post(PATH, {"removals": ["x"], "updates": {"k": "v"}})
    assert answer == {"updated": ["k"], "removed": [], "missing": ["x"]}


@pytest.mark.parametrize(
    "raw",
    [
        b'{"removals": ["k", "x"], "updates": {"k": "1"}}',
        b'{"removals": ["k", "k"]}',
        b'{"updates": {"k": "1", "k": "2"}}',
        b'{"updates": {}, "updates": {}}',
    ],
)
def test_a_key_twice(iceberg: Iceberg, raw):
    make_namespace("a", properties={"k": "v"})
    iceberg.refused(422, "UnprocessableEntityException", "more than once", f"POST {PATH}", raw=raw)


@shared_cases(
    ("body", "error"),
    [
        ({"updates": {"n": 1}}, "updates.n: Input should be a valid string"),
        ({"updates": {"n": None}}, "updates.n: Input should be a valid string"),
        ({"updates": ["n"]}, "updates: Input should be a valid dictionary"),
        ({"removals": "n"}, "removals: Input should be a valid list"),
        ({"removals": [1]}, "removals.0: Input should be a valid string"),
        ({"updates": {"n": "\0"}}, "NUL character"),
    ],
)
def test_invalid_bodies_are_refused(iceberg: Iceberg, body, error):
    make_namespace("a")
    iceberg.refused(400, "BadRequestException", error, f"POST {PATH}", body)


def test_a_missing_namespace(iceberg: Iceberg):
    body = {"updates": {"k": "v"}}
    iceberg.refused(
        404, "NoSuchNamespaceException", "Namespace does not exist: a", f"POST {PATH}", body
    )


def test_a_reader_is_refused(reader: Iceberg):
    make_namespace("a")
    body = {"updates": {"k": "v"}}
    error = "'reader' may not manage 'a'"
    reader.refused(403, "NotAuthorizedException", error, f"POST {PATH}", body)


@pytest.mark.django_db(transaction=True)
def test_concurrent_updates_are_all_applied():
    make_root()
    make_namespace("a", properties={f"old{n}": "x" for n in range(8)})
    _, key = api_keys.create_api_key(actor=SYSTEM, name="rivals")
    barrier = Barrier(8)

    def update(number: int) -> dict:
        try:
            client = Iceberg(key)
            client.get("namespaces")  # connect first
            barrier.wait(timeout=30)
            body = {"removals": [f"old{number}"], "updates": {f"new{number}": "y"}}
            return client.post(PATH, body)
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(update, range(8)))
    for number, answer in enumerate(answers):
        expected = {"updated": [f"new{number}"], "removed": [f"old{number}"], "missing": []}
        assert answer == expected
    assert Namespace.objects.get(name="a").properties == {f"new{n}": "y" for n in range(8)}
    assert AuditEvent.objects.filter(action="namespace.update").count() == 8
