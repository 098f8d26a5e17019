"""Tests of storage profiles as rows: requesting, running and reading them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from django.utils import timezone

from catalog.access import SYSTEM, Principal
from catalog.errors import (
    Conflict,
    PermissionDenied,
    StorageProfileNotFound,
    StorageTestNotFound,
)
from catalog.models import AuditEvent, StorageProfile, StorageTest, StorageTestStatus
from catalog.privileges import READ_ONLY
from catalog.services.storage.profile_checks import tests as profile_tests
from catalog.services.storage.profile_checks.results import CheckResult
from tasks import maintenance as tasks
from tests.ports import free_port

pytestmark = pytest.mark.django_db


@pytest.fixture
def sent(monkeypatch) -> list[list[Any]]:
    """The arguments of the tasks that were sent to the workers."""
    sent: list[list[Any]] = []

    def send_task(_name: str, args: list[Any], **_options: Any) -> None:
        sent.append(args)

    monkeypatch.setattr("celery.current_app.send_task", send_task)
    return sent


@pytest.fixture
def closed(make_profile) -> StorageProfile:
    """A profile whose store does not run."""
    row: StorageProfile = make_profile(
        name="lake",
        roots=["s3://bucket/root"],
        endpoint=f"http://127.0.0.1:{free_port()}",
        path_style=True,
        identity="key",
        key_id="id",
        secret="the-secret-key",
    )
    return row


def test_a_worker_runs_a_test_and_stores_each_result(
    s3_profile, sent, django_capture_on_commit_callbacks
):
    with django_capture_on_commit_callbacks(execute=True):
        row = profile_tests.start_test(actor=SYSTEM, name="lake")
    assert sent == [[row.pk]]
    assert (row.status, row.checks, row.profile_version) == (StorageTestStatus.QUEUED, [], 1)

    tasks.test_storage_profile(row.pk)
    row.refresh_from_db()
    assert row.status == StorageTestStatus.PASSED
    assert row.checks[0]["key"] == "endpoint"
    assert row.checks[-1]["key"] == "cleanup"
    assert row.created_at <= row.started_at <= row.finished_at
    event = AuditEvent.objects.get(action="storage_profile.test")
    assert (event.target, event.after) == ("lake", {"test": row.pk})


def test_a_failed_check_fails_the_test(closed, sent):
    row = profile_tests.start_test(actor=SYSTEM, name="lake")
    tasks.test_storage_profile(row.pk)
    row.refresh_from_db()
    assert row.status == StorageTestStatus.FAILED
    assert [check["status"] for check in row.checks].count("failed") == 1
    assert "the-secret-key" not in str(row.checks)


def test_a_test_runs_once(closed, sent):
    row = profile_tests.start_test(actor=SYSTEM, name="lake")
    tasks.test_storage_profile(row.pk)
    before = StorageTest.objects.values().get()
    tasks.test_storage_profile(row.pk)
    assert StorageTest.objects.values().get() == before


@pytest.mark.django_db(transaction=True)
def test_workers_run_one_test_at_a_time(closed, sent, monkeypatch):
    """Otherwise tests could occupy every process of the short tasks for minutes."""
    first = profile_tests.start_test(actor=SYSTEM, name="lake")
    closed.pk, closed.name, closed.roots = None, "other", ["s3://other/root"]
    closed.save()
    second = profile_tests.start_test(actor=SYSTEM, name="other")
    statuses = []

    def checks(row: StorageTest) -> Iterator[CheckResult]:
        if row.pk == first.pk:
            with ThreadPoolExecutor(1, initializer=connections.close_all) as threads:
                threads.submit(tasks.test_storage_profile, second.pk).result(20)
                threads.submit(connections.close_all).result(20)
            statuses.append(StorageTest.objects.get(pk=second.pk).status)
        return iter(())

    monkeypatch.setattr(profile_tests, "_checks", checks)
    tasks.test_storage_profile(first.pk)
    assert statuses == [StorageTestStatus.QUEUED]
    assert profile_tests.send_waiting_tests() == 1
    tasks.test_storage_profile(second.pk)
    assert set(StorageTest.objects.values_list("status", flat=True)) == {StorageTestStatus.PASSED}


def test_a_second_request_returns_the_active_test(closed, sent):
    first = profile_tests.start_test(actor=SYSTEM, name="lake")
    assert profile_tests.start_test(actor=SYSTEM, name="lake") == first
    with pytest.raises(Conflict, match="already running"):
        list(profile_tests.run_at_once(actor=SYSTEM, name="lake"))
    assert StorageTest.objects.count() == 1
    assert AuditEvent.objects.filter(action="storage_profile.test").count() == 1


def test_an_unreadable_secret_fails_the_test(closed, sent):
    StorageProfile.objects.update(secret=b"encrypted with another key")
    row = profile_tests.start_test(actor=SYSTEM, name="lake")
    tasks.test_storage_profile(row.pk)
    row.refresh_from_db()
    assert row.status == StorageTestStatus.FAILED
    assert "MONODON_SECRET_KEY has changed" in row.checks[0]["cause"]
    assert "Enter the key" in row.checks[0]["remedy"]


def test_beat_sends_waiting_tests_and_ends_those_of_dead_workers(closed, sent):
    row = profile_tests.start_test(actor=SYSTEM, name="lake")
    assert tasks.send_waiting_storage_tests() == 1
    assert sent == [[row.pk]]

    long_ago = timezone.now() - timedelta(minutes=6)
    StorageTest.objects.update(status=StorageTestStatus.RUNNING, started_at=long_ago)
    assert tasks.send_waiting_storage_tests() == 0
    row.refresh_from_db()
    assert row.status == StorageTestStatus.INTERRUPTED
    assert row.finished_at is not None
    assert profile_tests.start_test(actor=SYSTEM, name="lake") != row


def test_a_test_that_nobody_takes_is_given_up(closed, sent):
    profile_tests.start_test(actor=SYSTEM, name="lake")
    StorageTest.objects.update(created_at=timezone.now() - timedelta(minutes=31))
    assert tasks.send_waiting_storage_tests() == 0
    assert StorageTest.objects.get().status == StorageTestStatus.INTERRUPTED


def test_only_the_newest_tests_are_kept(closed, sent):
    StorageTest.objects.bulk_create(
        StorageTest(profile=closed, profile_version=1, status=StorageTestStatus.PASSED)
        for _ in range(profile_tests.KEPT)
    )
    oldest = StorageTest.objects.order_by("pk")[0]
    newest = profile_tests.start_test(actor=SYSTEM, name="lake")
    assert StorageTest.objects.count() == profile_tests.KEPT
    assert not StorageTest.objects.filter(pk=oldest.pk).exists()
    assert StorageTest.objects.filter(pk=newest.pk).exists()


def test_tests_are_listed_newest_first_page_by_page(closed):
    rows = [
        StorageTest.objects.create(profile=closed, profile_version=1, status="passed")
        for _ in range(3)
    ]
    page, token = profile_tests.list_tests(actor=SYSTEM, name="lake", limit=2)
    assert page == [rows[2], rows[1]]
    assert profile_tests.list_tests(actor=SYSTEM, name="lake", limit=2, page_token=token) == (
        [rows[0]],
        None,
    )


def test_only_administrators_test_and_read_tests(closed, sent):
    reader = Principal("reader", READ_ONLY)
    row = StorageTest.objects.create(profile=closed, profile_version=1, status="passed")
    for call in (
        lambda: profile_tests.start_test(actor=reader, name="lake"),
        lambda: list(profile_tests.run_at_once(actor=reader, name="lake")),
        lambda: profile_tests.list_tests(actor=reader, name="lake"),
        lambda: profile_tests.find_test(actor=reader, name="lake", test=row.pk),
    ):
        with pytest.raises(PermissionDenied):
            call()
    assert StorageTest.objects.count() == 1


def test_unknown_profiles_and_tests(closed, make_profile):
    other = make_profile(name="other", roots=["s3://other/root"])
    row = StorageTest.objects.create(profile=other, profile_version=1, status="passed")
    with pytest.raises(StorageProfileNotFound):
        profile_tests.start_test(actor=SYSTEM, name="nowhere")
    with pytest.raises(StorageTestNotFound):
        profile_tests.find_test(actor=SYSTEM, name="lake", test=row.pk)
    assert profile_tests.find_test(actor=SYSTEM, name="other", test=row.pk) == row


def test_the_command_prints_the_checks(s3_profile):
    output = StringIO()
    call_command("storage", "test", "lake", stdout=output)
    lines = output.getvalue().splitlines()
    assert lines[0].startswith("passed   Endpoint reachable")
    assert any(line.startswith("warning  Access of clients") for line in lines)
    assert StorageTest.objects.get().status == StorageTestStatus.PASSED


def test_the_command_fails_with_a_failed_check(closed):
    output = StringIO()
    with pytest.raises(CommandError, match="1 checks of storage profile 'lake' failed"):
        call_command("storage", "test", "lake", stdout=output)
    assert "failed   Endpoint reachable" in output.getvalue()
    assert "remedy: Check that the store runs" in output.getvalue()
