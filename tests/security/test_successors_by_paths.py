"""References to files of a dropped table keep them also if another table gets a path of it, and not its location."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models import F

from catalog.access import SYSTEM
from catalog.errors import LocationTaken
from catalog.models import (
    FileReference,
    Job,
    JobKind,
    JobStatus,
    Principal,
    Table,
    TrashItem,
)
from catalog.privileges import Privilege, closure
from catalog.services.engine.commit import commit
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.changes import TableChange
from catalog.services.lance.ledger import registration_operations
from catalog.services.maintenance import job_runner
from catalog.services.maintenance import scheduler as maintenance_scheduler
from catalog.services.recovery.undrop_operations import UndropTable
from catalog.services.storage import file_references, recorded_references
from catalog.services.storage.table_files import TableFiles
from catalog.services.tables import dependents
from catalog.services.tables.table_operations import DropTable
from tests.api.iceberg.client import Iceberg
from tests.catalog.services.iceberg.writing import open_table
from tests.factories import make_iceberg_table, make_namespace, make_table, unchanged
from tests.security.foreign import COMMIT, World, snapshot, updates, write_table
from tests.security.test_unread_references import NoSpark

pytestmark = pytest.mark.django_db
SOURCE, NEXT = ("secret", "source"), ("secret", "next")


def refer_to(attacker: Iceberg, path: Path, data: Path | None = None) -> str:
    """A table refers to a file in a path of another one, which is deregistered then; returns the file."""
    data = data or write_table(*SOURCE, properties={"write.data.path": f"file://{path}"}).data
    assert path in data.parents
    source = Table.objects.named(SOURCE).get()
    mask = closure(Privilege.READ).value
    Principal.objects.get(name="who").grants.create(mask=mask, namespace=source.namespace)
    added = updates(snapshot("data", f"file://{data}"))
    answer = attacker.call("POST", COMMIT, {"requirements": [], "updates": added})
    assert answer.status_code == 200, answer.content
    iceberg_tables.unregister_table(actor=SYSTEM, table=SOURCE)
    return str(data)


@pytest.mark.parametrize("place", ["path", "location"])
def test_a_clean_up_of_a_table_with_the_path_knows_the_dependents(
    world: World, attacker: Iceberg, place: str
):
    path = world.mine.parent / "shared" / "data"
    data = refer_to(attacker, path)
    if place == "path":
        make_iceberg_table(*NEXT, properties={"write.data.path": f"file://{path}"})
    else:
        make_iceberg_table(*NEXT, location=f"file://{path}")
    following = Table.objects.named(NEXT).get()
    assert TableFiles(following).may_change(data)
    job = maintenance_scheduler.start(actor=SYSTEM, table=NEXT, kind="clean_up")
    job_runner.run_job(job.pk, spark=NoSpark())
    job.refresh_from_db()
    assert job.status == JobStatus.FAILED, job.error
    assert "1 other table refers to files" in job.error


def test_an_owner_detaches_dependents_of_the_former_table(world: World, attacker: Iceberg):
    path = world.mine.parent / "shared" / "data"
    refer_to(attacker, path)
    make_iceberg_table(*NEXT, properties={"write.data.path": f"file://{path}"})
    following = Table.objects.named(NEXT).get()
    recorded_references.record_claimed(following)
    assert dependents.detach_dependents(actor=SYSTEM, table=NEXT) == dependents.Detachment(0, 1)
    Principal.objects.get(name="who").grants.filter(namespace=following.namespace).delete()
    assert dependents.detach_dependents(actor=SYSTEM, table=NEXT) == dependents.Detachment(1, 0)
    recorded_references.record_claimed(following)
    assert not file_references.dependents(following).exists()


def test_an_owner_detaches_dependents_of_a_present_table_around(world: World, attacker: Iceberg):
    """They stay dependents of that table, until a principal that may read the table commits a reference again."""
    data = refer_into(attacker, world.mine.parent / "shared", is_dropped=False)
    make_iceberg_table("other", "next", location=f"file://{data.parent}")
    following = Table.objects.named(("other", "next")).get()
    source = Table.objects.named(SOURCE).get()
    answer = dependents.detach_dependents(actor=SYSTEM, table=("other", "next"))
    assert answer == dependents.Detachment(1, 0)
    recorded_references.record_claimed(following)
    assert not file_references.dependents(following).exists()
    assert [row.name for row in file_references.dependents(source)] == ["t"]
    mask = closure(Privilege.READ).value
    who = Principal.objects.get(name="who")
    who.grants.create(mask=mask, table=following)
    recorded_references.record_claimed(following)
    assert [row.name for row in file_references.dependents(following)] == ["t"]
    who.grants.filter(table=following).delete()
    answer = dependents.detach_dependents(actor=SYSTEM, table=("other", "next"))
    assert answer == dependents.Detachment(1, 0)
    who.grants.create(mask=mask, table=following)
    added = updates(snapshot("data", f"file://{data}"))
    response = attacker.call("POST", COMMIT, {"requirements": [], "updates": added})
    assert response.status_code == 200, response.content
    assert [row.name for row in file_references.dependents(following)] == ["t"]


def test_a_reference_of_another_principal_to_the_former_table_stays(
    world: World, attacker: Iceberg
):
    """The first reference is of a principal that may not read the table, and another one is of one that may."""
    data = refer_into(attacker, world.mine.parent / "shared")
    make_iceberg_table(*NEXT, location=f"file://{data.parent}")
    following, source = Table.objects.named(NEXT).get(), Table.objects.get(name="source")
    Principal.objects.create(name="user:reader", kind="user", level="admin")
    Principal.objects.get(name="who").grants.filter(namespace=following.namespace).delete()
    assert dependents.detach_dependents(actor=SYSTEM, table=NEXT) == dependents.Detachment(1, 0)
    FileReference.objects.filter(source=source).update(principal="user:reader")
    recorded_references.record_claimed(following)
    (reference,) = FileReference.objects.attached().filter(source=following)
    assert (reference.principal, reference.directories) == ("user:reader", [str(data.parent)])


@pytest.mark.parametrize("change", ["nothing", "path", "location", "and back"])
def test_a_stranger_with_a_path_around_the_table_is_no_dependent(
    world: World, attacker: Iceberg, change: str
):
    """Also if the table gets other directories later."""
    path = world.mine.parent / "shared" / "data"
    make_iceberg_table(*NEXT, location=f"file://{path}/table")
    refer_to(attacker, path)
    later = f"file://{world.mine.parent}/later"
    if change == "path":
        properties = {"write.data.path": later}
        change_table({"action": "set-properties", "updates": properties})
    elif change != "nothing":
        change_table({"action": "set-location", "location": later})
    if change == "and back":
        change_table({"action": "set-location", "location": f"file://{path}/table"})
    following = Table.objects.named(NEXT).get()
    assert following.paths.count() == {"nothing": 0, "and back": 2}.get(change, 1)
    recorded_references.record_claimed(following)
    assert not FileReference.objects.filter(source=following).exists()


def change_table(*updates: dict[str, Any]) -> None:
    change = TableChange(table=NEXT, requirements=[], updates=list(updates))
    iceberg_commits.commit_table(actor=SYSTEM, change=change)


def refer_into(attacker: Iceberg, path: Path, *, is_dropped: bool = True) -> Path:
    """The same with a file below the path; returns the file."""
    files = write_table(*SOURCE, properties={"write.data.path": f"file://{path}"})
    source = Table.objects.named(SOURCE).get()
    mask = closure(Privilege.READ).value
    Principal.objects.get(name="who").grants.create(mask=mask, namespace=source.namespace)
    data = path / "part" / files.data.name
    data.parent.mkdir()
    files.data.rename(data)
    added = updates(snapshot("data", f"file://{data}"))
    answer = attacker.call("POST", COMMIT, {"requirements": [], "updates": added})
    assert answer.status_code == 200, answer.content
    if is_dropped:
        iceberg_tables.unregister_table(actor=SYSTEM, table=SOURCE)
    return data


@pytest.mark.parametrize("is_dropped", [True, False])
@pytest.mark.parametrize("place", ["path", "location", "moved"])
def test_a_clean_up_of_a_table_inside_the_path_knows_the_dependents(
    world: World, attacker: Iceberg, place: str, is_dropped: bool
):
    data = refer_into(attacker, world.mine.parent / "shared", is_dropped=is_dropped)
    inside = f"file://{data.parent}"
    if place == "moved":
        make_iceberg_table(*NEXT)
        change_table({"action": "set-location", "location": inside})
    elif place == "path":
        make_iceberg_table(*NEXT, properties={"write.data.path": inside})
    else:
        make_iceberg_table(*NEXT, location=inside)
    assert TableFiles(Table.objects.named(NEXT).get()).may_change(str(data))
    job = maintenance_scheduler.start(actor=SYSTEM, table=NEXT, kind="clean_up")
    job_runner.run_job(job.pk, spark=NoSpark())
    job.refresh_from_db()
    assert job.status == JobStatus.FAILED, job.error
    assert "1 other table refers to files" in job.error


@pytest.mark.parametrize("named", ["part", "path"])
def test_a_reference_opens_nothing_more_of_a_table_inside_the_path(
    world: World, attacker: Iceberg, named: str
):
    """What it named in the directory of the other table: nothing, if it named files beside that."""
    path = world.mine.parent / "shared"
    if named == "part":
        data = refer_into(attacker, path)
    else:
        data = path / "part" / Path(refer_to(attacker, path)).name
    make_iceberg_table(*NEXT, location=f"file://{data.parent}")
    following = Table.objects.named(NEXT).get()
    recorded_references.record_claimed(following)
    reference = FileReference.objects.get(source=following)
    assert reference.directories == ([str(data.parent)] if named == "part" else [])


def test_later_references_to_other_files_of_the_table_around_do_not_count(
    world: World, attacker: Iceberg
):
    """So whoever has the table around cannot prevent removals from a table inside it."""
    path = world.mine.parent / "shared"
    files = write_table(*SOURCE, properties={"write.data.path": f"file://{path}"})
    make_iceberg_table(*NEXT, location=f"file://{path}/table")
    refer_to(attacker, path, files.data)
    following = Table.objects.named(NEXT).get()
    FileReference.objects.update(created_at=F("created_at") + timedelta(minutes=2))
    recorded_references.record_claimed(following)
    assert not FileReference.objects.filter(source=following).exists()
    change_table({"action": "set-properties", "updates": {"write.data.path": f"file://{path}-2"}})
    recorded_references.record_claimed(following)
    assert not FileReference.objects.filter(source=following).exists()


def test_a_purge_of_a_lance_table_inside_the_path_keeps_what_others_need(
    world: World, attacker: Iceberg, settings: Any
):
    settings.MONODON_TRASH_SECONDS = 0
    data = refer_into(attacker, world.mine.parent / "shared")
    make_table(*NEXT, location=str(data.parent))
    commit([DropTable(table=NEXT)], actor=SYSTEM)
    job = Job.objects.get(kind=JobKind.PURGE_TABLE)
    job_runner.run_job(job.pk, spark=NoSpark())
    job.refresh_from_db()
    assert (job.status, job.error) == (JobStatus.CANCELED, "other tables refer to its files")
    assert data.exists()


@pytest.mark.parametrize("place", ["at", "around"])
def test_no_lance_table_gets_a_location_around_a_path_of_a_table_that_can_be_restored(
    world: World, place: str
):
    """Its drop would remove the whole directory."""
    path = world.mine.parent / "shared" / "data"
    files = write_table(*SOURCE, properties={"write.data.path": f"file://{path}"})
    iceberg_tables.unregister_table(actor=SYSTEM, table=SOURCE)
    make_namespace("other")
    declare = registration_operations.DeclareTable(
        table=("other", "t"), location=str(path if place == "at" else path.parent)
    )
    with unchanged(), pytest.raises(LocationTaken):
        commit([declare], actor=SYSTEM)
    item = TrashItem.objects.get(table__name="source")
    commit([UndropTable(item=item.pk)], actor=SYSTEM)
    assert len(open_table(*SOURCE).scan().to_arrow()) == 3
    assert files.data.exists()
