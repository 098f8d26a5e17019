"""Rows of an old release after all migrations, in one test: each way through the migrations takes five seconds."""

from datetime import UTC

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from catalog.access import SYSTEM
from catalog.models import ApiKey, AuditEvent, Principal, PrincipalLevel
from catalog.services.engine import audit_records
from tests.catalog.services.audit.test_partitions import (
    _same_partitions_afterwards,
    partition_of,
    query,
)

__all__ = ["_same_partitions_afterwards"]

pytestmark = pytest.mark.django_db(transaction=True)
_COLUMNS = "id, at, actor, action, target, request_id, after, transaction_id"


def migrate(name: str = "") -> None:
    executor = MigrationExecutor(connection)
    executor.migrate([("catalog", name)] if name else executor.loader.graph.leaf_nodes())


def test_old_keys_and_audit_events_survive_the_migrations():
    migrate("0012_job_indexes")
    try:
        add_keys("system", "system-key", "anonymous", "etl")
        before = add_events()
        migrate()
        check_keys()
        check_partitions(before)
        for table in ("catalog_apikey", "catalog_principal", "auth_user"):
            query(f"DELETE FROM {table}")
        # The partitions become one table again.
        migrate("0013_principals")
        events = query(f"SELECT {_COLUMNS} FROM catalog_auditevent ORDER BY id")
        assert events[:-1] == before
        query(
            "INSERT INTO catalog_auditevent (actor, action, target, request_id)"
            " VALUES ('a', 'b', 'c', '')"
        )
        assert query("SELECT max(id) FROM catalog_auditevent") == [(before[-1][0] + 2,)]
        query("TRUNCATE catalog_auditevent")
    finally:
        migrate()


def add_keys(*names: str) -> None:
    for name in names:
        query(
            "INSERT INTO catalog_apikey (name, digest, prefix, access) VALUES (%s, %s, '', 'read')",
            name,
            name,
        )
    query(
        "INSERT INTO auth_user (password, is_superuser, username, first_name, last_name,"
        " email, is_staff, is_active, date_joined)"
        " VALUES ('', true, 'ada', '', '', '', true, true, now())"
    )


def add_events() -> list[tuple]:
    """Events of several months, and one of a wrong clock."""
    query(
        "INSERT INTO catalog_auditevent"
        " (at, actor, action, target, request_id, after, transaction_id)"
        " SELECT now() - i * interval '40 days', 'a', 'tag.create', 't' || i, 'r', '{\"a\": 1}',"
        " gen_random_uuid() FROM generate_series(0, 5) i"
    )
    query(
        "INSERT INTO catalog_auditevent (at, actor, action, target, request_id)"
        " VALUES ('1970-01-01', 'a', 'tag.create', 'wrong clock', '')"
    )
    return query(f"SELECT {_COLUMNS} FROM catalog_auditevent ORDER BY id")


def check_keys() -> None:
    """Older releases allowed keys with the name of the system principal."""
    assert dict(ApiKey.objects.values_list("name", "principal__name")) == {
        "system": "system-key-key",
        "system-key": "system-key",
        "anonymous": "anonymous-key",
        "etl": "etl",
    }
    levels = dict(Principal.objects.values_list("name", "level"))
    # In addition to the level of a superuser.
    assert levels.pop("user:ada") == PrincipalLevel.GRANTED
    assert set(levels.values()) == {PrincipalLevel.READ}


def check_partitions(before: list[tuple]) -> None:
    assert query(f"SELECT {_COLUMNS} FROM catalog_auditevent ORDER BY id") == before
    assert {row.outcome for row in AuditEvent.objects.all()} == {"done"}
    assert partition_of(before[-1][0]) == "catalog_auditevent_default"
    for pk, at, *_ in before[:-1]:
        assert partition_of(pk) == f"catalog_auditevent_{at.astimezone(UTC):%Y_%m}"
    audit_records.record(SYSTEM, "tag.create", "next")
    assert AuditEvent.objects.latest("pk").pk == before[-1][0] + 1
