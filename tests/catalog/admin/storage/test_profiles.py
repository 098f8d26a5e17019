"""The pages of storage profiles: the list, the form with its presets, changes, tests and deletion."""

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from catalog import encryption
from catalog.access import SYSTEM
from catalog.models import (
    AuditEvent,
    Namespace,
    StorageProfile,
    StorageTest,
    TableHealth,
)
from catalog.services.storage import profile_bindings
from catalog.services.storage.profile_checks import tests as profile_tests
from tests.cases import shared_cases
from tests.factories import make_namespace, make_table
from tests.ports import free_port

LIST = "/admin/catalog/storageprofile/"
SECRET = "a-secret-that-nobody-sees"
FIELDS = {
    "kind": "s3",
    "roots": "s3://lake/tables",
    "region": "eu-central-1",
    "endpoint": "",
    "sts_endpoint": "",
    "conditional_writes": "on",
    "kms_key": "",
    "identity": "key",
    "key_id": "AKIA1",
    "secret": "",
    "token": "",
    "role": "",
    "external_id": "",
    "client_access": "none",
    "lifetime_seconds": "3600",
}


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch) -> None:
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)


@pytest.fixture
def lake(make_profile) -> StorageProfile:
    row: StorageProfile = make_profile(
        name="lake",
        roots=["s3://lake/tables"],
        region="eu-central-1",
        identity="key",
        key_id="AKIA1",
        secret=SECRET,
    )
    return row


def page_of(row: StorageProfile, query: str = "") -> str:
    return f"{LIST}{row.pk}/change/{query}"


def text_of(browser: Client, url: str) -> str:
    return browser.get(url).content.decode()


def press(browser: Client, row: StorageProfile, name: str, **data: str):
    return browser.post(f"{LIST}{row.pk}/{name}/", data, follow=True)


def table_below(row: StorageProfile, name: str):
    return make_table("prod", name, location=f"{row.roots[0]}/{name}")


# --- the list


def test_the_empty_list_points_to_the_documentation(browser):
    text = text_of(browser, LIST)
    assert "No storage profiles" in text
    assert "docs/storage-profiles.md" in text


def test_the_list_shows_what_is_stored_and_costs_a_fixed_number_of_statements(
    browser, lake, make_profile
):
    make_namespace("prod")
    profile_bindings.bind_namespace(actor=SYSTEM, namespace=("prod",), profile="lake")
    for name in ("a", "b"):
        table = table_below(lake, name)
        TableHealth.objects.create(table=table, score=90, statistics={"bytes": 512 * 1024})
    StorageTest.objects.create(profile=lake, profile_version=1, status="passed")
    StorageTest.objects.create(profile=lake, profile_version=1, status="failed")
    with CaptureQueriesContext(connection) as first:
        text = text_of(browser, LIST)
    row = re.search(r"<tr.*?field-name.*?</tr>", text, re.DOTALL)
    assert row is not None
    cells = re.sub(r"<[^>]+>|\s+", " ", row[0]).replace("\xa0", " ")
    assert "S3 and compatible stores" in cells
    assert "s3://lake/tables" in cells
    assert re.search(r"tables\s+1\s+2\s+1\.0 MB\s+failed", cells)
    assert "passed" not in cells

    for number in range(3):
        other = make_profile(name=f"other{number}", roots=[f"s3://other{number}/tables"])
        StorageTest.objects.create(profile=other, profile_version=1, status="passed")
    with CaptureQueriesContext(connection) as second:
        browser.get(LIST)
    assert len(first) == len(second)


def test_a_static_key_has_a_warning(browser, lake):
    StorageProfile.objects.update(client_access="static")
    assert '<span class="m-badge m-warning">static key</span>' in text_of(browser, LIST)
    assert "get the server&#x27;s own key" in text_of(browser, page_of(lake))


def test_a_result_of_an_older_version_says_so(browser, lake):
    StorageTest.objects.create(profile=lake, profile_version=1, status="passed")
    assert "before the last change" not in text_of(browser, LIST)
    StorageProfile.objects.update(version=2)
    assert "before the last change" in text_of(browser, LIST)


# --- creating


def test_a_profile_is_created_and_its_secret_is_encrypted(browser):
    answer = browser.post(LIST + "add/", {**FIELDS, "name": "lake", "secret": SECRET}, follow=True)
    row = StorageProfile.objects.get()
    assert row.name == "lake"
    assert row.roots == ["s3://lake/tables"]
    assert (row.key_id, row.created_by) == ("AKIA1", "user:ada")
    assert SECRET in encryption.decrypt(bytes(row.secret))
    assert SECRET not in answer.content.decode()
    assert "was created" in answer.content.decode()
    event = AuditEvent.objects.get(action="storage_profile.create")
    assert SECRET not in str(event.after)


@shared_cases(
    ("data", "field", "message"),
    [
        ({"roots": "/srv/tables"}, "roots", "s3://bucket/tables"),
        ({"roots": ""}, "roots", "required"),
        ({"region": ""}, "region", "is empty"),
        ({"endpoint": "http://169.254.169.254"}, "endpoint", "169.254.169.254"),
        ({"client_access": "sts"}, "role", "is empty"),
        ({"secret": ""}, "secret", "Enter the secret that belongs to the key id"),
        ({"lifetime_seconds": "1"}, "lifetime_seconds", "is not between"),
        ({"name": "a b"}, "name", "has other characters"),
    ],
)
def test_a_refusal_is_shown_at_its_field_and_nothing_is_created(browser, data, field, message):
    answer = browser.post(LIST + "add/", {**FIELDS, "name": "lake", "secret": SECRET, **data})
    assert answer.status_code == 200
    errors = answer.context["form"].errors
    assert message in str(errors[field])
    assert "The profile was not saved" in answer.content.decode()
    assert SECRET not in answer.content.decode()
    assert not StorageProfile.objects.exists()
    assert not AuditEvent.objects.filter(action="storage_profile.create").exists()


def test_overlapping_roots_are_refused(browser, lake):
    data = {**FIELDS, "name": "inner", "roots": "s3://lake/tables/inner", "secret": SECRET}
    answer = browser.post(LIST + "add/", data)
    assert "overlaps root" in str(answer.context["form"].errors["roots"])
    assert StorageProfile.objects.count() == 1


@pytest.mark.parametrize(
    ("preset", "field", "value"),
    [
        ("aws", "client_access", "sts"),
        ("minio", "path_style", True),
        ("r2", "region", "auto"),
        ("ceph", "region", "default"),
        ("seaweedfs", "client_access", "signing"),
        ("gcs", "kind", "gcs"),
        ("azure", "kind", "adls"),
    ],
)
def test_a_preset_fills_the_form_without_javascript(browser, preset, field, value):
    answer = browser.get(f"{LIST}add/?preset={preset}")
    assert answer.context["form"][field].value() == value
    assert 'id="preset-hints"><li>Roots: ' in answer.content.decode()


def test_the_presets_of_the_script_set_the_same_fields(browser):
    data = browser.get(LIST + "add/").context["preset_data"]
    assert len(data) == 7
    names = {frozenset(preset["values"]) for preset in data.values()}
    assert len(names) == 1
    assert not any("secret" in preset["values"] for preset in data.values())


# --- changing


def test_the_form_never_contains_the_secret(browser, lake):
    text = text_of(browser, f"{LIST}{lake.pk}/edit/")
    assert SECRET not in text
    assert 'placeholder="unchanged"' in text
    assert SECRET not in text_of(browser, page_of(lake))


def test_a_change_keeps_the_secret(browser, lake):
    before = bytes(lake.secret)
    answer = press(browser, lake, "edit", **FIELDS | {"kms_key": "alias/lake"})
    assert "was updated" in answer.content.decode()
    lake.refresh_from_db()
    assert (lake.kms_key, lake.version) == ("alias/lake", 2)
    assert bytes(lake.secret) == before


def test_a_new_secret_replaces_the_key(browser, lake):
    press(browser, lake, "edit", **FIELDS | {"key_id": "AKIA2", "secret": "another-secret"})
    lake.refresh_from_db()
    assert lake.key_id == "AKIA2"
    assert "another-secret" in encryption.decrypt(bytes(lake.secret))


def test_a_new_key_id_needs_its_secret(browser, lake):
    answer = press(browser, lake, "edit", **FIELDS | {"key_id": "AKIA2"})
    assert "Enter the secret" in str(answer.context["form"].errors["secret"])
    lake.refresh_from_db()
    assert (lake.key_id, lake.version) == ("AKIA1", 1)


def test_a_preview_changes_nothing(browser, lake):
    table_below(lake, "t")
    data = FIELDS | {"region": "eu-west-1", "preview": ""}
    answer = press(browser, lake, "edit", **data)
    assert "region decide" in answer.content.decode()
    lake.refresh_from_db()
    assert (lake.region, lake.version) == ("eu-central-1", 1)


def test_a_change_that_affects_tables_is_confirmed(browser, lake):
    table_below(lake, "t")
    data = FIELDS | {"region": "eu-west-1"}
    answer = press(browser, lake, "edit", **data)
    assert "Save anyway" in answer.content.decode()
    assert StorageProfile.objects.get().region == "eu-central-1"

    press(browser, lake, "edit", **data, confirm="on")  # not what was shown
    assert StorageProfile.objects.get().region == "eu-central-1"

    press(browser, lake, "edit", **data, confirm=answer.context["confirmation"])
    assert StorageProfile.objects.get().region == "eu-west-1"


def test_a_change_that_would_lose_tables_is_impossible(browser, lake):
    table_below(lake, "t")
    answer = press(browser, lake, "edit", **FIELDS | {"roots": "s3://lake/elsewhere"})
    text = answer.content.decode()
    assert "This change is not possible" in text
    assert "Save anyway" not in text
    assert StorageProfile.objects.get().roots == ["s3://lake/tables"]


# --- deleting


def test_a_profile_in_use_is_not_deleted(browser, lake):
    table_below(lake, "t")
    assert "It is in use" in text_of(browser, f"{LIST}{lake.pk}/remove/")
    answer = press(browser, lake, "remove")
    assert "tables are below its roots" in answer.content.decode()
    assert StorageProfile.objects.exists()


def test_a_profile_is_deleted_with_its_tests(browser, lake):
    StorageTest.objects.create(profile=lake, profile_version=1, status="passed")
    answer = press(browser, lake, "remove")
    assert "was deleted" in answer.content.decode()
    assert not StorageProfile.objects.exists()
    assert not StorageTest.objects.exists()


# --- testing


def test_a_test_is_started_and_shown_live(browser, lake):
    answer = press(browser, lake, "test")
    row = StorageTest.objects.get()
    assert row.requested_by == "user:ada"
    text = answer.content.decode()
    assert "waiting for a worker" in text
    poll = re.search(r'data-poll="([^"]+)" data-interval="1000"', text)
    assert poll is not None
    assert "Reload the page" in text  # for browsers without JavaScript

    fragment = browser.get(poll[1]).content.decode()
    assert "data-active" in fragment
    StorageTest.objects.update(
        status="failed",
        checks=[
            {
                "key": "write",
                "title": "Write",
                "status": "failed",
                "seconds": 0.25,
                "cause": "Access denied <here>",
                "remedy": "Grant s3:PutObject.",
            }
        ],
    )
    fragment = browser.get(poll[1]).content.decode()
    assert "data-active" not in fragment
    for part in ("Access denied &lt;here&gt;", "Grant s3:PutObject.", "250 ms", ">failed<"):
        assert part in fragment


def test_the_results_of_a_run_are_on_the_page(browser, lake):
    StorageProfile.objects.update(endpoint=f"http://127.0.0.1:{free_port()}", path_style=True)
    press(browser, lake, "test")
    profile_tests.run_test(StorageTest.objects.get().pk)
    text = text_of(browser, page_of(lake))
    assert "refuses the connection" in text
    assert "1 failed, " in text
    assert "data-poll" not in text


def test_older_tests_stay_readable(browser, lake):
    older = StorageTest.objects.create(profile=lake, profile_version=1, status="interrupted")
    StorageTest.objects.create(profile=lake, profile_version=1, status="passed")
    text = text_of(browser, page_of(lake))
    assert f"?test={older.pk}" in text
    assert "The worker ended before" not in text
    assert "The worker ended before" in text_of(browser, page_of(lake, f"?test={older.pk}"))


def test_a_test_of_another_profile_is_not_shown(browser, lake, make_profile):
    other = make_profile(name="other", roots=["s3://other/tables"])
    row = StorageTest.objects.create(profile=other, profile_version=1, status="passed")
    assert browser.get(f"{LIST}{lake.pk}/results/{row.pk}/").status_code == 404
    assert browser.get(f"{LIST}{other.pk}/results/{row.pk}/").status_code == 200


# --- permissions


def test_only_administrators_see_profiles(sign_in, lake):
    row = StorageTest.objects.create(profile=lake, profile_version=1, status="passed")
    client = sign_in("manage", "grant")
    for url in (
        LIST,
        LIST + "add/",
        page_of(lake),
        f"{LIST}{lake.pk}/results/{row.pk}/",
        f"{LIST}{lake.pk}/edit/",
        f"{LIST}{lake.pk}/test/",
        f"{LIST}{lake.pk}/remove/",
    ):
        answer = client.get(url)
        assert answer.status_code in {403, 404}, url
        assert "lake" not in answer.content.decode().replace(str(url), "")
    for name in ("edit", "test", "remove"):
        assert client.post(f"{LIST}{lake.pk}/{name}/", FIELDS).status_code in {403, 404}
    assert StorageProfile.objects.get().version == 1
    assert StorageTest.objects.count() == 1
    assert "Storage profiles" not in client.get("/admin/").content.decode()


# --- namespaces


def test_a_namespace_is_bound_and_shows_where_its_storage_is_from(browser, lake):
    parent, child = make_namespace("prod"), make_namespace("prod", "raw")
    url = "/admin/catalog/namespace/{}/"
    assert "local warehouse" in text_of(browser, url.format(parent.pk) + "change/")
    answer = browser.post(url.format(parent.pk) + "storage/", {"profile": "lake"}, follow=True)
    text = answer.content.decode()
    assert "is bound to storage profile" in text
    assert "bound here" in text
    assert Namespace.objects.get(pk=parent.pk).storage_profile == lake
    assert "inherited from" in text_of(browser, url.format(child.pk) + "change/")
    assert "prod" in text_of(browser, page_of(lake))

    browser.post(url.format(parent.pk) + "storage/", {"profile": ""})
    assert Namespace.objects.get(pk=parent.pk).storage_profile is None
    actions = AuditEvent.objects.filter(action="namespace.set_storage_profile")
    assert actions.filter(actor="user:ada").count() == 2


def test_only_administrators_bind_namespaces(sign_in, lake):
    row = make_namespace("prod")
    client = sign_in("manage", "read")
    url = f"/admin/catalog/namespace/{row.pk}/"
    assert "local warehouse" in client.get(url + "change/").content.decode()
    assert client.post(url + "storage/", {"profile": "lake"}).status_code == 403
    assert Namespace.objects.get(pk=row.pk).storage_profile is None


def test_an_unreadable_key_is_shown(browser, lake):
    assert "unreadable key" not in browser.get(LIST).content.decode()
    StorageProfile.objects.update(secret=b"encrypted with another key")
    assert "unreadable key" in browser.get(LIST).content.decode()
    page = browser.get(f"{LIST}{lake.pk}/change/").content.decode()
    assert "Enter the key of the profile again" in page
    assert "stored, encrypted" not in page
