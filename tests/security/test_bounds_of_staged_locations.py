"""Reservations of staged creations: how many a principal may have, and how long they last."""

import time
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from catalog.access import SYSTEM
from catalog.errors import LocationTaken
from catalog.models import AuditEvent, StagedLocation
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.storage import credentials
from catalog.services.storage.client_sessions import staged_locations, token_services
from catalog.services.storage.client_sessions.token_services import Session
from tests.api.iceberg.client import Iceberg
from tests.factories import ICEBERG_SCHEMA, make_namespace, unchanged
from tests.security.test_staged_locations import Lake, expire, lake
from tests.vending import DELEGATED

__all__ = ["lake"]

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(staged_locations, "MAX_UNUSED", 3)
    return 3


def test_a_principal_reserves_a_limited_number_of_locations(lake: Lake, bound: int):
    for number in range(bound):
        assert lake.stage(f"{lake.base}/{number}").status_code == 200
    issued = AuditEvent.objects.filter(action="credentials.issue").count()
    with unchanged((StagedLocation,)):
        answer = lake.stage(f"{lake.base}/more")
    assert answer.status_code == 400, answer.content
    message = answer.json()["error"]["message"]
    assert message.startswith("Principal 'ann' has staged the creation of 3 tables that do not")
    until = StagedLocation.objects.earliest("until").until
    assert f"{until:%Y-%m-%dT%H:%M:%S}+00:00" in message
    assert b"storage-credentials" not in answer.content
    assert AuditEvent.objects.filter(action="credentials.issue").count() == issued
    credentials.discard_cache()
    assert lake.stage(f"{lake.base}/0").status_code == 200  # renews them
    assert lake.stage(f"{lake.base}/of-bob", lake.bob).status_code == 200
    expire()
    assert lake.stage(f"{lake.base}/more").status_code == 200
    assert sorted(StagedLocation.objects.values_list("location", flat=True)) == [
        f"{lake.base}/more"
    ]


def test_tables_that_were_created_do_not_count(lake: Lake, bound: int):
    """Nor those that were dropped again: engines create temporary tables in this way."""
    for number in range(2 * bound):
        location = f"{lake.base}/{number}"
        assert lake.stage(location).status_code == 200
        body = {"name": f"t{number}", "schema": ICEBERG_SCHEMA, "location": location}
        Iceberg(lake.ann).post("namespaces/ns/tables", body)
        if number % 2:
            iceberg_tables.drop_table(actor=SYSTEM, table=("ns", f"t{number}"), purge=True)


@pytest.mark.parametrize("at", ["dir/child", "dir", "dir/child/x"])
def test_no_location_of_a_namespace_is_reserved(lake: Lake, at: str):
    """Another request may set it between the check of a location and its reservation."""
    ann = lake.principal(lake.ann)
    make_namespace("else", properties={"location": f"{lake.base}/dir/child"})
    with unchanged((StagedLocation,)), pytest.raises(LocationTaken):
        staged_locations.reserve(ann, f"{lake.base}/{at}", HOUR)
    staged_locations.reserve(ann, f"{lake.base}/dir/child2", HOUR)


def answer_with(
    monkeypatch: pytest.MonkeyPatch, meanwhile: Any, *, lifetime: float = 3600.0
) -> None:
    """Let the token service answer after something else has happened."""
    open_session = token_services.open_session

    def slow(*arguments: Any, **options: Any) -> Session:
        session = open_session(*arguments, **options)
        meanwhile()
        return Session(session.key, time.time() + lifetime, session.directories)

    monkeypatch.setattr(token_services, "open_session", slow)


def test_credentials_that_begin_late_extend_the_reservation(lake: Lake, monkeypatch):
    answer_with(monkeypatch, lambda: None, lifetime=7200)
    assert lake.stage(f"{lake.base}/orders").status_code == 200
    assert StagedLocation.objects.get().until > timezone.now() + timedelta(minutes=119)


def test_no_credentials_are_given_out_when_others_got_the_location(lake: Lake, monkeypatch):
    """The request was suspended for longer than its reservation."""
    location = f"{lake.base}/orders"

    def take() -> None:
        expire()
        body = {"name": "orders", "schema": ICEBERG_SCHEMA, "location": location}
        Iceberg(lake.bob).post("namespaces/ns/tables", body)

    answer_with(monkeypatch, take, lifetime=7200)
    answer = lake.stage(location)
    assert answer.status_code == 409, answer.content
    assert b"storage-credentials" not in answer.content
    assert not AuditEvent.objects.filter(action="credentials.issue").exists()


def test_no_credentials_are_given_out_for_a_table_that_was_dropped_meanwhile(
    lake: Lake, monkeypatch
):
    """Its purge looks for the records of credentials, and frees the location if there are none."""
    body = {"name": "t", "schema": ICEBERG_SCHEMA, "location": f"{lake.base}/orders"}
    Iceberg(lake.ann).post("namespaces/ns/tables", body)

    def drop() -> None:
        iceberg_tables.drop_table(actor=SYSTEM, table=("ns", "t"), purge=True)

    answer_with(monkeypatch, drop)
    answer = Iceberg(lake.ann).call("GET", "namespaces/ns/tables/t", headers=DELEGATED)
    assert answer.status_code == 404, answer.content
    assert b"storage-credentials" not in answer.content
    assert not AuditEvent.objects.filter(action="credentials.issue").exists()
