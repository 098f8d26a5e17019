"""The readiness check names each component that is not ready."""

import pytest
from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from django.test.utils import CaptureQueriesContext

from api import health

pytestmark = pytest.mark.django_db
LAST = (
    "catalog",
    max(name for app, name in MigrationLoader(None).graph.nodes if app == "catalog"),
)


def migrations() -> str:
    answer: str = Client().get("/health/ready").json()["checks"]["migrations"]
    return answer


def test_a_ready_server_reports_all_checks():
    response = Client().get("/health/ready")
    assert response.status_code == 200
    assert response.json() == {
        "status": "ok",
        "checks": {"database": "ok", "migrations": "ok", "broker": "ok"},
    }


def test_the_check_of_migrations_takes_one_query_and_no_file(monkeypatch):
    assert migrations() == "ok"
    monkeypatch.setattr(health, "MigrationLoader", None)
    with CaptureQueriesContext(connection) as captured:
        assert migrations() == "ok"
    statements = [query["sql"] for query in captured.captured_queries]
    assert [sql for sql in statements if "django_migrations" in sql] == statements[1:]
    assert len(statements) == 2  # the first checks the connection to the database


def test_a_missing_migration_is_named_until_it_is_applied():
    recorder = MigrationRecorder(connection)
    recorder.record_unapplied(*LAST)
    response = Client().get("/health/ready")
    assert response.status_code == 503
    assert response.json()["checks"]["migrations"] == (
        f"migrations are not applied up to {'.'.join(LAST)}: run manage.py bootstrap"
    )
    recorder.record_applied(*LAST)
    assert migrations() == "ok"


def test_a_database_of_newer_code_is_ready():
    """During a rolling update, servers of the old release continue."""
    MigrationRecorder(connection).record_applied("catalog", "9999_future")
    assert migrations() == "ok"


@pytest.mark.django_db(transaction=True)
def test_a_database_without_migrations_is_not_ready():
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_migrations RENAME TO elsewhere")
    try:
        status = migrations()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO django_migrations")
    assert status.startswith("migrations are not applied up to ")
    assert ".".join(LAST) in status
    assert migrations() == "ok"


def test_an_unreachable_database_is_reported_without_details(monkeypatch):
    monkeypatch.setattr(
        health,
        "MigrationRecorder",
        lambda connection: type("R", (), {"migration_qs": _Unreachable()}),
    )
    monkeypatch.setattr(connection, "close", lambda: None)
    assert migrations() == "the database 'default' cannot be read"


class _Unreachable:
    def values_list(self, *names: str):
        return self

    def __iter__(self):
        raise DatabaseError("connection refused: host=secret")
