"""What keeps the directories of a purged table taken: reviews miss no file, and decide once."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from django.db.models import F

from catalog.models import Job, JobStatus, RemainingFiles, Table
from catalog.services.maintenance import job_runner
from catalog.services.recovery import remaining_files
from tests.factories import make_iceberg_table, unchanged
from tests.security.test_locations_of_purged_tables import (
    Stranger,
    _purge_at_once,
    _review,
    make_victim,
    purge,
    status_of,
    stranger,
)
from tests.stores.s3 import Moto, S3Store

__all__ = ["_purge_at_once", "stranger"]

pytestmark = pytest.mark.django_db


@pytest.fixture
def s3(moto_s3: Moto) -> S3Store:
    """A store whose keys may hold any text."""
    return moto_s3


@pytest.mark.parametrize("storage", ["s3"], indirect=True)
@pytest.mark.parametrize("name", ["data//1", "./1", "a/../b", "/", "data/.."])
@pytest.mark.parametrize("is_later", [True, False])
def test_objects_with_names_that_no_file_has_keep_it_taken(stranger, name, is_later):
    """Credentials for the location would open them."""
    table = make_victim(stranger)
    if is_later:
        stranger.storage.write(f"{table.location}/data/orphan", b"rows")
    else:
        stranger.storage.write(f"{table.location}/{name}", b"rows")
    purge(table)
    if is_later:
        stranger.storage.write(f"{table.location}/{name}", b"rows")
        stranger.storage.remove(f"{table.location}/data/orphan")
        _review(later=True)
    assert RemainingFiles.objects.filter(table=table).exists()
    with unchanged():
        assert status_of(stranger, "createTable", "place/t") == 409
    stranger.storage.remove(f"{table.location}/{name}")
    _review(later=True)
    assert status_of(stranger, "createTable", "place/t") == 200


@pytest.mark.parametrize("storage", ["s3"], indirect=True)
def test_marks_of_directories_do_not_keep_it_taken(stranger):
    table = make_victim(stranger)
    for mark in ("data/", "data//"):
        stranger.storage.write(f"{table.location}/{mark}", b"")
    purge(table)
    assert not RemainingFiles.objects.exists()


@pytest.mark.parametrize("storage", ["local"], indirect=True)
def test_a_file_with_a_time_in_the_future_keeps_it_taken(stranger):
    """The owner of a file can set its time to any value."""
    table = make_victim(stranger)
    orphan = Path(f"{table.location}/data/orphan.parquet")
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"rows")
    os.utime(orphan, times=(time.time() + 1e7,) * 2)
    purge(table)
    _review(later=True)
    with unchanged():
        assert status_of(stranger, "createTable", "place/t") == 409
    orphan.unlink()
    _review(later=True)
    assert status_of(stranger, "createTable", "place/t") == 200


def test_a_worker_that_has_lost_its_job_frees_nothing(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch
):
    """It was suspended after it had listed the directories."""
    table = make_victim(stranger)
    listing = remaining_files._has_files
    results: list[bool] = []

    def overtaken(row: Table, *arguments: Any, **options: Any) -> bool:
        has_files = listing(row, *arguments, **options)
        results.append(has_files)
        if len(results) == 1:
            stranger.storage.write(f"{row.location}/data/late", b"rows")
            jobs = Job.objects.filter(table=row, status=JobStatus.RUNNING)
            assert jobs.update(attempts=F("attempts") + 1)
            other = Job.objects.select_related("table__namespace").get(table=row)
            job_runner._purge_table(other, lambda done, total=None: None)
            jobs.update(status=JobStatus.SUCCEEDED)
        return has_files

    monkeypatch.setattr(remaining_files, "_has_files", overtaken)
    purge(table)
    assert results == [False, True]
    assert RemainingFiles.objects.filter(table=table).exists()
    with unchanged():
        assert status_of(stranger, "createTable", "place/t") == 409


def test_a_review_lists_a_limited_number_of_files(stranger, monkeypatch):
    """Others may have a large table at a path of the purged one."""
    table = make_victim(stranger)
    properties = {"write.data.path": stranger.uri("apart/data")}
    stranger.storage.write(f"{table.location}/data/orphan", b"rows")
    purge(table)
    make_iceberg_table("secret", "second", properties=properties)
    for number in range(5):
        path = stranger.storage.location(f"apart/data/{number}.parquet")
        stranger.storage.write(path, b"rows")
    stranger.storage.remove(f"{table.location}/data/orphan")
    Job.objects.filter(table=table).update(finished_at="2020-01-01T00:00Z")
    Table.objects.filter(pk=table.pk).update(dropped_at="2020-01-01T00:00Z")
    monkeypatch.setattr(remaining_files, "_MAX_LISTED", 3)
    _review(later=True)
    assert RemainingFiles.objects.filter(table=table).exists()
    monkeypatch.setattr(remaining_files, "_MAX_LISTED", 30)
    _review(later=True)
    assert not RemainingFiles.objects.filter(table=table).exists()
