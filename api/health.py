"""Liveness and readiness of the server."""

from functools import cache

from celery import current_app
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, Error, ProgrammingError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.http import HttpRequest, JsonResponse
from kombu.exceptions import OperationalError

from api.front import draining
from catalog.postgresql import limits
from catalog.services.engine import processes

_BROKER_SECONDS = {"socket_connect_timeout": 1, "socket_timeout": 1}
"""A broker that hangs must not let probes of the server's readiness time out."""


def live(_: HttpRequest) -> JsonResponse:
    """200 as long as the process answers, without other checks."""
    return JsonResponse({"status": "ok"})


def ready(_: HttpRequest) -> JsonResponse:
    """200 if database and migrations are ready; otherwise, and while draining, 503 with the reason.

    ``background`` reports the broker, workers and beat, which requests do not need: without them, the
    server is ready, and jobs and periodic tasks wait.
    """
    checks = {"database": _database, "migrations": _migrations, "draining": _draining}
    with limits.fail_fast():
        faults = {name: check() for name, check in checks.items()}
        background = {"broker": _broker() or "ok"}
        if faults["database"] is faults["migrations"] is None:
            background |= _background()
    failed = any(fault is not None for fault in faults.values())
    return JsonResponse(
        {
            "status": "failing" if failed else "ok",
            "checks": {name: fault or "ok" for name, fault in faults.items()},
            "background": background,
        },
        status=503 if failed else 200,
        headers={"Retry-After": "1"} if failed else None,
    )


def _database() -> str | None:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except Error:
        connection.close()
        return "the database does not answer"
    return None


def _migrations() -> str | None:
    recorded = MigrationRecorder(connection).migration_qs.values_list("app", "name")
    try:
        missing = _last_migrations() - set(recorded)
    except ProgrammingError:  # an empty database does not even have the table of migrations
        missing = _last_migrations()
    except Error:
        connection.close()
        return f"the database '{DEFAULT_DB_ALIAS}' cannot be read"
    if missing:
        names = ", ".join(".".join(migration) for migration in sorted(missing))
        return f"migrations are not applied up to {names}: run manage.py bootstrap"
    return None


@cache
def _last_migrations() -> frozenset[tuple[str, str]]:
    """The last migration of each application in the code of this process.

    They cannot change while the process runs. Reading them at each call took 2.1 of 2.3 ms.
    """
    return frozenset(MigrationLoader(None).graph.leaf_nodes())


def _draining() -> str | None:
    return "the server is about to stop" if draining.is_requested() else None


def _background() -> dict[str, str]:
    try:
        return processes.background()
    except Error:
        connection.close()
        return {}


def _broker() -> str | None:
    options = {**settings.CELERY_BROKER_TRANSPORT_OPTIONS, **_BROKER_SECONDS}
    try:
        with current_app.connection_for_write(transport_options=options) as broker:
            broker.ensure_connection(max_retries=0)
    except (OperationalError, OSError):
        return "the broker does not answer"
    return None
