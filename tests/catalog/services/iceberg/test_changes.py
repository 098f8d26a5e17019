"""Steps of a commit: what each one requires of the current table, and what a process remembers of it."""

from dataclasses import replace
from typing import Any

import pytest

from catalog.access import SYSTEM, IdempotencyKey
from catalog.errors import (
    CatalogError,
    NamespaceNotFound,
    RequirementFailed,
    TableAlreadyExists,
    TableNotFound,
    ViewAlreadyExists,
)
from catalog.identifiers import digest
from catalog.models import Table
from catalog.services.engine import table_cache
from catalog.services.iceberg import changes, commits, metadata_operations, views
from catalog.services.iceberg.changes import TableChange
from catalog.services.storage import namespace_locations
from tests.api.iceberg.test_views import make_view
from tests.catalog.services.iceberg.test_commits import updates_of
from tests.catalog.services.iceberg.test_snapshots import FIRST, SECOND, T, commit, load, table
from tests.factories import (
    ICEBERG_SCHEMA,
    make_iceberg_table,
    make_namespace,
    make_table,
    make_version,
    unchanged,
)

__all__ = ["table"]
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
CREATE = {"type": "assert-create"}
JOB = replace(SYSTEM, job_kind="clean_up")


def change(*identifier: str, requirements: Any = (), **properties: str) -> TableChange:
    updates = [{"action": "set-properties", "updates": properties}] if properties else []
    return TableChange(table=identifier, requirements=list(requirements), updates=updates)


@pytest.mark.parametrize(
    ("requirements", "is_creation"),
    [
        ([], False),
        ([CREATE], True),
        ([{"type": "assert-table-uuid", "uuid": "x"}, CREATE], True),
        ([{"type": "assert-table-uuid", "uuid": "x"}], False),
        (["assert-create", 5, None, {}], False),
    ],
)
def test_a_change_that_asserts_creation_creates(requirements, is_creation):
    assert change("ns", "t", requirements=requirements).is_creation is is_creation


@pytest.mark.parametrize(
    ("name", "requirements", "error"),
    [
        (("gone", "t"), [CREATE], NamespaceNotFound),
        (("gone", "t"), [], TableNotFound),
        (("ns", "new"), [], TableNotFound),
        (("ns", "v"), [CREATE], ViewAlreadyExists),
        (("ns", "v"), [], TableNotFound),
        (("ns", "lance"), [], TableNotFound),
        (("ns", "t"), [CREATE], RequirementFailed),
    ],
)
def test_a_change_depends_on_the_object_with_the_name(name, requirements, error):
    make_iceberg_table("ns", "t")
    make_iceberg_table("ns", "other")
    make_view("ns", "v")
    make_table("ns", "lance")
    make_version(("ns", "lance"), 1)
    steps = [change("ns", "other", a="b"), change(*name, requirements=requirements, a="b")]
    with unchanged(), pytest.raises(CatalogError) as refused:
        changes.prepare_steps(SYSTEM, steps)
    assert type(refused.value) is error
    assert refused.value.operation == 1


def test_a_name_that_was_taken_meanwhile_is_refused_with_what_has_it(monkeypatch):
    """After the name was looked up, and before the commit."""
    make_iceberg_table("ns", "t")
    make_view("ns", "v")
    namespaces = namespace_locations.line(("ns",))
    for module in (commits, views):
        monkeypatch.setattr(module, "require_free", lambda *_: namespaces)
    table_cache.unplaced_namespaces.clear()
    for name, error in (("t", TableAlreadyExists), ("v", ViewAlreadyExists)):
        for kind, create in (("table", make_iceberg_table), ("view", make_view)):
            with unchanged(), pytest.raises(error) as refused:
                create("ns", name)
            assert refused.value.requested == kind


def test_a_step_that_changes_nothing_writes_nothing():
    base = make_iceberg_table("ns", "t", properties={"a": "b"})
    (step,) = changes.prepare_steps(SYSTEM, [change("ns", "t", a="b")])
    assert (step.operation, step.file) == (None, None)
    assert step.result.metadata_location == base.metadata_location
    changes.cache_metadata(step)
    cached = changes.cached_table(("ns", "t"))
    assert cached is None or cached.metadata_location == base.metadata_location


def test_a_process_remembers_its_last_commit_to_a_table():
    make_iceberg_table("ns", "t")
    assert changes.cached_table(("ns", "t")) is None
    committed = commits.commit_table(actor=SYSTEM, change=change("ns", "t", a="b"))
    assert changes.cached_table(("ns", "t")) is committed
    document = table_cache.documents.get(digest(("ns", "t")))
    assert document is not None
    assert (document.etag, document.document) == (committed.etag, committed.document)


def test_a_table_that_a_commit_created_is_read_before_the_next_commit():
    """Its key is not known to the process that created it by a commit."""
    staged = make_iceberg_table("ns", "t", stage=True)
    updates = updates_of(staged.document)
    created = TableChange(table=("ns", "t"), requirements=[CREATE], updates=updates)
    commits.commit_table(actor=SYSTEM, change=created)
    assert changes.cached_table(("ns", "t")) is None
    committed = commits.commit_table(actor=SYSTEM, change=change("ns", "t", a="b"))
    assert (committed.sequence, committed.pk) == (1, Table.objects.get(name="t").pk)


# --- jobs --------------------------------------------------------------------------------------


def remove(*updates: dict[str, Any]) -> TableChange:
    removal = {"action": "remove-snapshots", "snapshot-ids": [FIRST]}
    return TableChange(table=T, requirements=[], updates=[*updates, removal])


def tag(snapshot_id: int) -> None:
    reference = {"ref-name": "v1", "type": "tag", "snapshot-id": snapshot_id}
    commit({"action": "set-snapshot-ref", **reference})


def snapshots() -> list[int]:
    return [snapshot["snapshot-id"] for snapshot in load()["snapshots"]]


def test_a_job_removes_no_snapshot_to_which_a_reference_was_added(table):
    tag(FIRST)
    with unchanged(), pytest.raises(RequirementFailed) as refused:
        commits.commit_table(actor=JOB, change=remove())
    assert refused.value.message.endswith(
        f"snapshot {FIRST} is referenced by 'v1' and cannot be removed"
    )
    assert snapshots() == [FIRST, SECOND]


@pytest.mark.parametrize("case", ["removed with its reference", "another one is tagged", "person"])
def test_other_snapshots_are_removed(table, case):
    tag(SECOND if case == "another one is tagged" else FIRST)
    updates = [{"action": "remove-snapshot-ref", "ref-name": "v1"}] if "with its" in case else []
    actor = SYSTEM if case == "person" else JOB
    commits.commit_table(actor=actor, change=remove(*updates))
    assert snapshots() == [SECOND]
    assert set(load()["refs"]) == ({"main", "v1"} if "another" in case else {"main"})


def test_only_a_location_that_a_client_has_chosen_is_claimed(warehouse, monkeypatch):
    """Also where the commit takes locks."""
    make_namespace("ns")
    key = IdempotencyKey(digest(T), lambda: "fingerprint")
    claimed: list[str] = []
    claim = metadata_operations.claim_location

    def record(batch: Any, location: str, *arguments: Any, **options: Any) -> None:
        claimed.append(location)
        claim(batch, location, *arguments, **options)

    monkeypatch.setattr(metadata_operations, "claim_location", record)
    for name, location, expected in (
        ("a", None, []),
        ("b", f"file://{warehouse}/chosen", [f"{warehouse}/chosen"]),
    ):
        commits.create_table(
            actor=replace(SYSTEM, idempotency=replace(key, key=digest(("ns", name)))),
            table=("ns", name),
            schema=ICEBERG_SCHEMA,
            location=location,
        )
        assert claimed == expected
