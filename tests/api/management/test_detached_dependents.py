"""An owner ends the references to a table whose principals may not read it any more."""

import pytest

from catalog.access import SYSTEM, credentials
from catalog.models import (
    ApiKey,
    AuditEvent,
    FileReference,
    FreeDirectory,
    Grant,
    JobStatus,
    Table,
    Transaction,
)
from catalog.models import Principal as PrincipalRow
from catalog.privileges import Privilege, closure
from catalog.services.lance import datasets as lance_datasets
from catalog.services.storage import file_references, recorded_references
from tests.api.client import Lance
from tests.api.conftest import warehouse
from tests.api.management.client import Management
from tests.factories import files, make_iceberg_table, unchanged
from tests.security.test_needed_by_clones import (
    SOURCE,
    client_cleanup,
    find,
    make_clone,
    newest,
    read,
    run,
    source,
    versions,
)

__all__ = ["source", "warehouse"]

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.usefixtures("warehouse"),
    pytest.mark.operation("DetachDependents"),
]
DETACH = "tables/b$t/dependents/detach"


def make_key(name: str, privileges: Privilege, *tables: Table) -> str:
    key = f"mnd_{name}"
    principal = PrincipalRow.objects.create(name=name, kind="user")
    ApiKey.objects.create(name=name, principal=principal, digest=credentials.key_digest(key))
    for table in tables:
        mask = closure(privileges).value
        Grant.objects.create(principal=principal, table=table, mask=mask)
    return key


@pytest.fixture
def owner(source: Table) -> Management:
    return Management(make_key("owner", Privilege.MANAGE, source))


@pytest.fixture
def clone(source: Table) -> Table:
    """A clone of version 2, by a principal that may read the source."""
    make_key("reader", Privilege.READ, source)
    row = make_clone(2)
    FileReference.objects.filter(table=row).update(principal="reader")
    return row


def revoke() -> None:
    Grant.objects.filter(principal__name="reader").delete()


def test_an_unreadable_clone_prevents_the_clean_up_until_its_owner_detaches_it(
    source, owner, clone
):
    newest(clone.location).write_bytes(b"no manifest")
    assert run("clean_up").error.startswith("nothing removed: ")
    revoke()
    assert run("clean_up").error.startswith("nothing removed: ")
    assert versions() == [1, 2, 3, 4]
    assert owner.post(DETACH, {}) == {"detached": 1, "remaining": 0}
    assert run("clean_up").status == JobStatus.SUCCEEDED
    assert versions() == [4]
    assert run("remove_orphans").status == JobStatus.SUCCEEDED
    assert read(SOURCE) == [4]


def test_a_clone_whose_principal_may_read_the_source_stays(source, owner, clone):
    newest(clone.location).write_bytes(b"no manifest")
    PrincipalRow.objects.filter(name="reader").update(is_active=False)  # for the moment
    before = files(source.location)
    assert owner.post(DETACH, {}) == {"detached": 0, "remaining": 1}
    assert run("clean_up").error.startswith("nothing removed: ")
    assert files(source.location) == before
    assert FileReference.objects.get(table=clone).source_id == source.pk


def test_a_clone_of_the_catalog_itself_stays(source, owner):
    clone = make_clone(2)
    FileReference.objects.filter(table=clone).update(principal=SYSTEM.name)
    assert owner.post(DETACH, {}) == {"detached": 0, "remaining": 1}
    assert run("clean_up").status == JobStatus.SUCCEEDED
    assert read() == [2]


def test_only_lapsed_references_end(source, owner, clone):
    other = make_clone(3, ("a", "u"))
    revoke()
    with unchanged():
        assert owner.post(DETACH, {"dry_run": True}) == {"detached": 1, "remaining": 1}
    assert owner.post(DETACH, {}) == {"detached": 1, "remaining": 1}
    assert owner.post(DETACH, {}) == {"detached": 0, "remaining": 1}
    assert [row.pk for row in file_references.dependents(source)] == [other.pk]
    assert run("clean_up").status == JobStatus.SUCCEEDED
    assert versions() == [3, 4]
    assert read(("a", "u")) == [3]


def test_a_detached_clone_is_read_by_nobody_without_rights_on_the_source(source, owner, clone):
    key = make_key("other", Privilege.WRITE, clone)
    assert Lance(key).call("POST", "/v1/table/a$t/count_rows", {}).status_code == 200
    revoke()
    lance_datasets.clear_caches()
    refused = Lance(key).call("POST", "/v1/table/a$t/count_rows", {})
    assert refused.status_code in {400, 404}
    owner.post(DETACH, {})
    again = Lance(key).call("POST", "/v1/table/a$t/count_rows", {})
    assert (again.status_code, again.json()["code"]) == (
        refused.status_code,
        refused.json()["code"],
    )


def test_new_clones_count(source, owner, clone):
    revoke()
    owner.post(DETACH, {})
    make_clone(3, ("a", "again"))
    assert run("clean_up").status == JobStatus.SUCCEEDED
    assert versions() == [3, 4]
    assert read(("a", "again")) == [3]


def test_references_do_not_come_back(source, owner, clone):
    """Those to directories that belonged to no table, and to a former table at the location."""
    make_iceberg_table("b", "former")
    former = Table.objects.named(("b", "former")).get()
    Table.objects.filter(pk=former.pk).update(location=source.location, state="dropped")
    FileReference.objects.create(table=clone, source=former, principal="reader")
    FreeDirectory.objects.create(
        table=clone, path=f"{source.location}/data", is_prefix=False, principal="reader"
    )
    recorded_references.record_claimed(source)
    revoke()
    assert owner.post(DETACH, {}) == {"detached": 1, "remaining": 0}
    recorded_references.record_claimed(source)
    assert not file_references.dependents(source).exists()
    assert not FileReference.objects.attached().filter(table=clone, source=source).exists()


def test_lapsed_references_to_iceberg_tables_end(source, owner):
    make_iceberg_table("b", "i")
    row = Table.objects.named(("b", "i")).get()
    Grant.objects.create(
        principal=PrincipalRow.objects.get(name="owner"),
        table=row,
        mask=closure(Privilege.MANAGE).value,
    )
    FileReference.objects.create(table=source, source=row, principal="nobody")
    assert owner.post("tables/b$i/dependents/detach", {}) == {"detached": 1, "remaining": 0}


def test_it_is_recorded_for_both_tables_without_the_name_of_the_other(source, owner, clone):
    revoke()
    answer = owner.call("POST", DETACH, {})
    events = AuditEvent.objects.filter(action__startswith="table.detach").order_by("pk")
    assert [(event.action, event.actor, event.table_uuid, event.target) for event in events] == [
        ("table.detach_dependents", "owner", source.uuid, "b.t"),
        ("table.detach", "owner", clone.uuid, "a.t"),
    ]
    assert events[0].after == {"detached": 1}
    (operation,) = Transaction.objects.get(pk=events[0].transaction_id).operations
    assert operation == {"operation": "DetachDependents", "target": "b.t", "detached": 1}
    assert "a.t" not in answer.content.decode()


@pytest.mark.parametrize("privileges", [Privilege.WRITE, Privilege.MAINTAIN, Privilege.GRANT])
def test_it_requires_to_manage_the_source(source, clone, privileges):
    revoke()
    other = Management(make_key("other", privileges | Privilege.READ, source))
    with unchanged():
        assert other.call("POST", DETACH, {}).status_code == 403
    assert FileReference.objects.get(table=clone).principal == "reader"


def test_the_owner_of_the_clone_cannot_detach_it(source, clone):
    revoke()
    of_clone = Management(make_key("other", Privilege.MANAGE, clone))
    with unchanged():
        assert of_clone.call("POST", DETACH, {}).status_code == 404
    assert FileReference.objects.filter(table=clone).exists()
    client_cleanup(source)
    assert find(SOURCE).pk == source.pk
