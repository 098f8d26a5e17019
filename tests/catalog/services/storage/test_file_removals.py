"""Commits that refer to files of other tables, and jobs that remove such files, exclude each other."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from catalog.errors import CommitConflict
from catalog.models import Job, JobStatus, Table
from catalog.services.engine import locks
from catalog.services.storage import file_references
from tests.factories import make_iceberg_table, make_table

pytestmark = pytest.mark.django_db


@pytest.fixture
def source() -> Table:
    return Table.objects.get(pk=make_iceberg_table("prod", "source").pk)


@pytest.fixture
def other_session() -> Iterator[psycopg.Connection]:
    parameters = connection.get_connection_params()
    names = ("host", "port", "user", "password", "dbname", "passfile")
    with psycopg.connect(**{n: parameters[n] for n in names if n in parameters}) as session:
        yield session


def running(table: Table, lease: timedelta = timedelta(minutes=1), **changes: Any) -> Job:
    values = {
        "kind": "clean_up",
        "status": JobStatus.RUNNING,
        "lease_until": timezone.now() + lease,
    }
    return Job.objects.create(table=table, **values | changes)


@pytest.mark.parametrize("kind", ["clean_up", "remove_orphans", "purge_table"])
def test_no_commit_refers_to_files_that_a_job_removes(source, kind):
    job = running(source, kind=kind)
    with pytest.raises(CommitConflict, match="A job is removing files of another table"):
        file_references.require_no_removal({source.pk})
    Job.objects.filter(pk=job.pk).update(status=JobStatus.SUCCEEDED)
    file_references.require_no_removal({source.pk})


@pytest.mark.parametrize("changes", [{"result": {"retired": {"": [1]}}}, {"kind": "purge_table"}])
def test_no_commit_refers_to_files_that_a_job_removes_from_a_lance_table(changes):
    source = make_table("prod", "lance")
    job = running(source, **changes)
    with pytest.raises(CommitConflict, match="A job is removing files of another table"):
        file_references.require_no_removal({source.pk})
    Job.objects.filter(pk=job.pk).update(status=JobStatus.SUCCEEDED)
    file_references.require_no_removal({source.pk})


@pytest.mark.parametrize(
    "changes",
    [
        {"status": JobStatus.QUEUED},
        {"is_dry_run": True},
        {"kind": "compact"},
        {"lease": timedelta(minutes=-1)},
    ],
)
def test_other_jobs_do_not_hinder_commits(source, changes):
    running(source, **changes)
    running(make_table("prod", "lance"))  # it looks for dependents again before it removes files
    file_references.require_no_removal(Table.objects.values_list("pk", flat=True))


def test_a_job_waits_for_commits_that_refer_to_its_table(source, other_session):
    other_session.execute(
        "SELECT pg_advisory_xact_lock_shared(%s, %s::int)", [locks._SOURCES, source.pk]
    )
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '50ms'")
    with pytest.raises(OperationalError, match="lock timeout"), transaction.atomic():
        locks.await_commits(source.pk)
    other_session.rollback()
    locks.await_commits(source.pk)


def test_a_commit_keeps_the_lock_of_its_sources(source, other_session):
    file_references.require_no_removal({source.pk})
    free = "SELECT pg_try_advisory_xact_lock(%s, %s::int)"
    keys = [(source.pk, False), (source.pk + 1, True)]
    for key, expected in keys:
        row = other_session.execute(free, [locks._SOURCES, key]).fetchone()
        assert row == (expected,)
