"""Locations in requests cannot leave the roots of storage profiles, in either protocol.

Every form is sent to every operation, by a client with all privileges. Each is refused in the protocol's
form, and the store gets no request.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from catalog.models import Namespace
from tests.api.client import Lance
from tests.api.iceberg.client import Iceberg
from tests.catalog.storage.answering_server import Answer, AnsweringServer, Request, missing
from tests.factories import make_iceberg_table, make_namespace, make_table, snapshot
from tests.hostile_locations import DIRECTORIES, FILES_AND_DIRECTORIES, OUTSIDE, ROOT
from tests.security.location_operations import (
    ICEBERG,
    LANCE,
    MANIFESTS,
    Send,
    iceberg_operations,
    is_iceberg,
    is_lance,
    lance_operations,
    manifest_operations,
    view_body,
)
from tests.stores.fixtures import MakeProfile

pytestmark = pytest.mark.django_db

FILES = [*FILES_AND_DIRECTORIES, *OUTSIDE]
LOCATIONS = [*FILES, *DIRECTORIES]


class Objects:
    """What was put into the store, by path, and is got from it."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}

    def answer(self, request: Request) -> Answer:
        path = request.path.partition("?")[0]
        if request.method == "PUT":
            self._contents[path] = request.body
        if path not in self._contents:
            return missing(request)
        body = b"" if request.method == "PUT" else self._contents[path]
        return Answer(200, body, {"ETag": '"1"', "Last-Modified": "Mon, 02 Nov 2026 10:00:00 GMT"})


@pytest.fixture
def store(
    make_profile: MakeProfile, warehouse: object, iceberg: Iceberg, settings: Any
) -> Iterator[AnsweringServer]:
    """The store of the namespace, which records requests; a table of each format and a view are in it."""
    settings.MONODON_MANIFEST_PATHS = []
    with AnsweringServer() as store:
        store.answer = Objects().answer
        profile = make_profile(
            name="lake",
            roots=[ROOT],
            region="eu-central-1",
            endpoint=store.url,
            path_style=True,
            identity="key",
            key_id="AKIDPROFILE",
            secret="profile-secret",
            client_access="none",
        )
        make_namespace("ns")
        Namespace.objects.filter(path=["ns"]).update(storage_profile=profile)
        make_table("ns", "t", location=f"{ROOT}/lance")
        make_iceberg_table("ns", "i", location=f"{ROOT}/iceberg")
        iceberg.post("namespaces/ns/views", view_body("v", location=f"{ROOT}/view"))
        assert {request.method for request in store.requests} >= {"PUT"}
        store.requests.clear()
        yield store


def all_refused(
    send: Send, forms: list[str], store: AnsweringServer, is_form: Callable[[Any], bool]
) -> None:
    before = snapshot()
    faults = []
    for form in forms:
        answer = send(form)
        if not (400 <= answer.status_code < 500 and is_form(json.loads(answer.content))):
            faults.append((form, answer.status_code, answer.content[:300]))
        if store.requests:
            faults.append((form, [(request.method, request.path) for request in store.requests]))
            store.requests.clear()
    assert faults == []
    assert snapshot() == before


def test_each_operation_gets_many_forms():
    assert len(set(FILES)) >= 300


@pytest.mark.parametrize("operation", LANCE)
def test_no_lance_operation_leaves_the_roots(store, lance: Lance, operation):
    all_refused(lance_operations(lance)[operation], LOCATIONS, store, is_lance)


@pytest.mark.parametrize("operation", MANIFESTS)
def test_manifests_outside_the_table_are_refused(store, lance: Lance, operation):
    all_refused(manifest_operations(lance)[operation], LOCATIONS, store, is_lance)


@pytest.mark.parametrize("operation", ICEBERG)
def test_no_iceberg_operation_leaves_the_roots(store, iceberg: Iceberg, operation):
    if operation.startswith(
        "register"
    ):  # a metadata file may have characters that no directory has
        forms = FILES
    elif " write." in operation:
        forms = LOCATIONS
    else:  # Iceberg removes slashes at the end of a location
        forms = [form for form in LOCATIONS if not form.endswith("t//")]
    all_refused(iceberg_operations(iceberg)[operation], forms, store, is_iceberg)


def test_the_store_is_read_for_locations_that_are_allowed(store, lance: Lance, iceberg: Iceberg):
    for send in (
        lance_operations(lance)["RegisterTable"],
        iceberg_operations(iceberg)["registerTable"],
    ):
        assert send(f"{ROOT}/other/metadata/1.metadata.json").status_code >= 400  # no such object
        assert store.requests != []
        store.requests.clear()
