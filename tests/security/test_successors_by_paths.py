"""References to files of a dropped table keep them also if another table gets a path of it, and not its location."""

from pathlib import Path

import pytest

from catalog.access import SYSTEM
from catalog.models import FileReference, JobStatus, Principal, Table
from catalog.privileges import Privilege, closure
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.maintenance import job_runner
from catalog.services.maintenance import scheduler as maintenance_scheduler
from catalog.services.storage import recorded_references
from catalog.services.storage.table_files import TableFiles
from catalog.services.tables import dependents
from tests.api.iceberg.client import Iceberg
from tests.factories import make_iceberg_table
from tests.security.foreign import COMMIT, World, snapshot, updates, write_table
from tests.security.test_unread_references import NoSpark

pytestmark = pytest.mark.django_db
SOURCE, NEXT = ("secret", "source"), ("secret", "next")


def refer_to(attacker: Iceberg, path: Path) -> str:
    """A table refers to a file in a path of another one, which is deregistered then; returns the file."""
    files = write_table(*SOURCE, properties={"write.data.path": f"file://{path}"})
    assert path in files.data.parents
    source = Table.objects.named(SOURCE).get()
    mask = closure(Privilege.READ).value
    Principal.objects.get(name="who").grants.create(mask=mask, namespace=source.namespace)
    added = updates(snapshot("data", f"file://{files.data}"))
    answer = attacker.call("POST", COMMIT, {"requirements": [], "updates": added})
    assert answer.status_code == 200, answer.content
    iceberg_tables.unregister_table(actor=SYSTEM, table=SOURCE)
    return str(files.data)


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
    assert not FileReference.objects.exists()


def test_a_stranger_with_a_path_around_the_table_is_no_dependent(world: World, attacker: Iceberg):
    path = world.mine.parent / "shared" / "data"
    make_iceberg_table(*NEXT, location=f"file://{path}/table")
    refer_to(attacker, path)
    following = Table.objects.named(NEXT).get()
    recorded_references.record_claimed(following)
    assert not FileReference.objects.filter(source=following).exists()
