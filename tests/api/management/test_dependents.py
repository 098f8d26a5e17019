"""A drop of a table reports the tables that refer to its files, if the caller may browse them."""

import pytest
from django.db import InterfaceError, OperationalError

from catalog.access import SYSTEM, credentials
from catalog.admin.governance import impact
from catalog.models import ApiKey, FileReference, Grant, Job, JobKind, JobStatus, Table
from catalog.models import Principal as PrincipalRow
from catalog.privileges import Privilege, closure
from catalog.services.access import api_keys
from catalog.services.maintenance import job_runner
from tests.api.client import Lance
from tests.api.conftest import warehouse
from tests.api.iceberg.client import Iceberg
from tests.api.management.client import Management
from tests.catalog.admin.conftest import _plain_static_files, browser
from tests.factories import files, make_iceberg_table, make_lance_table, snapshot

__all__ = ["_plain_static_files", "browser", "warehouse"]

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
KEY = "mnd_dropper"
REFERS = "These files are kept as long as the references exist."


@pytest.fixture
def sources() -> dict[str, Table]:
    """A table of each format with three dependents. 'dropper' may browse two of them."""
    tables = {"lance": make_lance_table(("ns", "lance"))}
    make_iceberg_table("ns", "iceberg")
    tables["iceberg"] = Table.objects.named(("ns", "iceberg")).get()
    dropper = PrincipalRow.objects.create(name="dropper", kind="user")
    ApiKey.objects.create(name="dropper", principal=dropper, digest=credentials.key_digest(KEY))
    for row in tables.values():
        Grant.objects.create(principal=dropper, mask=closure(Privilege.ALL).value, table=row)
    for number in range(3):
        dependent = make_lance_table(("other", f"d{number}"))
        if number < 2:
            mask = closure(Privilege.BROWSE).value
            Grant.objects.create(principal=dropper, mask=mask, table=dependent)
        for row in tables.values():
            FileReference.objects.create(table=dependent, source=row, principal="tester")
    return tables


VISIBLE = {"tables": [["other", "d0"], ["other", "d1"]], "others": 1}


@pytest.mark.operation("GetTableDependents")
@pytest.mark.parametrize("format_", ["lance", "iceberg"])
def test_a_drop_reports_the_number_of_dependents(sources, format_, settings):
    settings.MONODON_TRASH_SECONDS = 0
    row = sources[format_]
    on_disk = files(row.location)
    management = Management(KEY)
    assert management.get(f"tables/ns${format_}/dependents") == {**VISIBLE, "views": []}
    if format_ == "lance":
        dropped = Lance(KEY).call("POST", "/v1/table/ns$lance/drop")
        assert dropped.status_code == 200
    else:
        dropped = Iceberg(KEY).call("DELETE", "namespaces/ns/tables/iceberg?purgeRequested=true")
        assert dropped.status_code == 204
    assert dropped["Monodon-Dependents"] == "3"
    job = Job.objects.get(kind=JobKind.PURGE_TABLE)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (job.status, job.error) == (JobStatus.CANCELED, "other tables refer to its files")
    assert files(row.location) == on_disk
    (item,) = management.get("trash")["items"]
    assert item["dependents"] == VISIBLE
    assert management.get(f"trash/{item['id']}")["dependents"] == VISIBLE


@pytest.mark.parametrize("privilege", [Privilege.READ, Privilege.WRITE, Privilege.GRANT])
def test_hidden_dependents_count_only_for_who_may_maintain_the_table(sources, privilege):
    """A number that grows would reveal that somebody made a hidden table of its files."""
    row = sources["lance"]
    grants = Grant.objects.filter(principal__name="dropper", table=row)
    grants.update(mask=closure(privilege | Privilege.READ).value)
    path = "tables/ns$lance/dependents"
    assert Management(KEY).get(path) == {**VISIBLE, "others": 0, "views": []}
    grants.update(mask=closure(Privilege.MAINTAIN | Privilege.READ).value)
    assert Management(KEY).get(path) == {**VISIBLE, "views": []}


@pytest.mark.parametrize("format_", ["lance", "iceberg"])
@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_a_committed_drop_succeeds_although_the_database_fails_afterwards(
    sources, monkeypatch, format_, error
):
    def fail(table: Table) -> None:
        raise error("the connection is closed")

    monkeypatch.setattr("catalog.services.storage.file_references.count_dependents", fail)
    if format_ == "lance":
        dropped = Lance(KEY).call("POST", "/v1/table/ns$lance/drop")
    else:
        dropped = Iceberg(KEY).call("DELETE", "namespaces/ns/tables/iceberg")
    assert dropped.status_code == (200 if format_ == "lance" else 204)
    assert "Monodon-Dependents" not in dropped
    assert not Table.objects.present().filter(pk=sources[format_].pk).exists()


def test_a_drop_without_dependents_reports_none(sources):
    FileReference.objects.all().delete()
    assert "Monodon-Dependents" not in Lance(KEY).call("POST", "/v1/table/ns$lance/drop")
    nobody = {"tables": [], "others": 0}
    assert Management(KEY).get("tables/ns$iceberg/dependents") == {**nobody, "views": []}
    assert [item["dependents"] for item in Management(KEY).get("trash")["items"]] == [nobody]


def test_dependents_are_visible_only_to_readers_of_the_table(sources):
    Grant.objects.filter(table__in=sources.values()).update(mask=closure(Privilege.BROWSE).value)
    before = snapshot()
    assert Management(KEY).call("GET", "tables/ns$lance/dependents").status_code == 403
    assert Management(KEY).call("GET", "tables/ns$none/dependents").status_code == 404
    assert snapshot() == before
    _, key = api_keys.create_api_key(actor=SYSTEM, name="everybody")
    Lance(key).post("/v1/table/ns$lance/drop")
    (item,) = Management(KEY).get("trash")["items"]
    assert (item["location"], item["dependents"]) == (None, {"tables": [], "others": 0})


def test_the_admin_names_dependents_before_a_drop(sources, browser):
    row = sources["lance"]
    before = snapshot()
    page = browser.get(f"/admin/catalog/table/{row.pk}/drop/").content.decode()
    names = "&#x27;other.d0&#x27;, &#x27;other.d1&#x27;, &#x27;other.d2&#x27;"
    assert f"Other tables refer to files of &#x27;ns.lance&#x27;: {names}. {REFERS}" in page
    chosen = {"action": "drop_many", "_selected_action": [row.pk, sources["iceberg"].pk]}
    page = browser.post("/admin/catalog/table/", chosen).content.decode()
    assert f"files of &#x27;ns.iceberg&#x27;: {names}. {REFERS}" in page
    assert snapshot() == before
    FileReference.objects.all().delete()
    page = browser.get(f"/admin/catalog/table/{row.pk}/drop/").content.decode()
    assert "refer to" not in page


def test_the_admin_names_dependents_before_a_namespace_is_dropped(sources, browser):
    """The page lists the dependents of all tables below the namespace."""
    namespace = sources["lance"].namespace
    before = snapshot()
    page = browser.get(f"/admin/catalog/namespace/{namespace.pk}/drop/").content.decode()
    names = "&#x27;other.d0&#x27;, &#x27;other.d1&#x27;, &#x27;other.d2&#x27;"
    for format_ in sources:
        assert f"refer to files of &#x27;ns.{format_}&#x27;: {names}." in page
    assert page.count(REFERS) == 1
    other = Table.objects.filter(namespace__path=["other"]).first().namespace
    page = browser.get(f"/admin/catalog/namespace/{other.pk}/drop/").content.decode()
    assert "refer to" not in page
    assert snapshot() == before


def test_the_admin_names_dependents_of_a_limited_number_of_tables(sources, browser, monkeypatch):
    monkeypatch.setattr(impact, "_MAX_SOURCES", 1)
    namespace = sources["lance"].namespace
    page = browser.get(f"/admin/catalog/namespace/{namespace.pk}/drop/").content.decode()
    assert "refer to files of &#x27;ns.iceberg&#x27;" in page
    assert "refer to files of &#x27;ns.lance&#x27;" not in page
    assert f" 1 more table has dependents. {REFERS}" in page
