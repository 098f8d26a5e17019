"""Tests of storage profiles over HTTP."""

import pytest

from catalog.models import StorageProfile, StorageTest
from catalog.services.storage.profile_checks import tests as profile_tests
from tests.factories import make_root, unchanged
from tests.ports import free_port

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]


@pytest.fixture(autouse=True)
def _root(monkeypatch):
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    make_root()


@pytest.fixture
def lake(make_profile) -> StorageProfile:
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


@pytest.mark.operation("TestStorageProfile")
def test_a_test_is_requested_and_grows(management, reader, lake):
    started = management.post("storage-profiles/lake/test", status=202)
    row = StorageTest.objects.get()
    assert (started["id"], started["profile"], started["status"]) == (row.pk, "lake", "queued")
    assert (started["checks"], started["profile_version"]) == ([], 1)
    assert management.post("storage-profiles/lake/test", status=202)["id"] == row.pk

    profile_tests.run_test(row.pk)
    ended = management.get(f"storage-profiles/lake/tests/{row.pk}")
    assert ended["status"] == "failed"
    assert ended["checks"][0]["key"] == "endpoint"
    assert "refuses the connection" in ended["checks"][0]["cause"]
    assert ended["finished_at"] is not None
    assert "the-secret-key" not in str(ended)
    with unchanged():
        reader.refused(403, "permission-denied", "", "POST storage-profiles/lake/test")
        management.refused(404, "storage-profile-not-found", "no", "POST storage-profiles/no/test")


@pytest.mark.operation("ListStorageTests")
def test_tests_are_listed_newest_first(management, reader, lake):
    rows = [
        StorageTest.objects.create(profile=lake, profile_version=1, status="passed")
        for _ in range(3)
    ]
    page = management.get("storage-profiles/lake/tests?limit=2")
    assert [test["id"] for test in page["tests"]] == [rows[2].pk, rows[1].pk]
    rest = management.get(
        f"storage-profiles/lake/tests?limit=2&page_token={page['next_page_token']}"
    )
    assert [test["id"] for test in rest["tests"]] == [rows[0].pk]
    assert rest["next_page_token"] is None
    with unchanged():
        reader.refused(403, "permission-denied", "", "GET storage-profiles/lake/tests")
        management.refused(404, "storage-profile-not-found", "no", "GET storage-profiles/no/tests")


@pytest.mark.operation("GetStorageTest")
def test_one_test(management, reader, lake, make_profile):
    other = make_profile(name="other", roots=["s3://other/root"])
    row = StorageTest.objects.create(profile=other, profile_version=1, status="passed")
    assert management.get(f"storage-profiles/other/tests/{row.pk}")["status"] == "passed"
    with unchanged():
        for path in (f"lake/tests/{row.pk}", "lake/tests/x", "lake/tests/0"):
            management.refused(
                404, "storage-test-not-found", "Test", f"GET storage-profiles/{path}"
            )
        reader.refused(403, "permission-denied", "", f"GET storage-profiles/other/tests/{row.pk}")
