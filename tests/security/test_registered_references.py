"""An administrator registers tables whose files somebody else wrote.

The files of a table that the catalog has, or had, may be those that its writers put there. So a registration opens
only references that this table has committed before.
"""

from pathlib import Path

import lance
import pytest
from lance.dataset import DatasetBasePath

from catalog.access import SYSTEM
from catalog.models import FileReference, Table
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import files as iceberg_files
from catalog.services.iceberg import references as iceberg_references
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.changes import TableChange
from tests.access.protocols import KEY
from tests.api.client import Lance
from tests.api.iceberg.client import Iceberg
from tests.security import foreign
from tests.security import lance_attacks as attacks
from tests.security.conftest import world as iceberg_world
from tests.security.foreign import COMMIT, local, snapshot, updates
from tests.security.inotify import watched
from tests.security.test_continued_lance_versions import (
    CREATE,
    _copy,
    _manifest,
    _stage,
    admin,
)
from tests.security.test_foreign_files_lance import NEXT, World, world
from tests.security.watching import untouched

__all__ = ["admin", "iceberg_world", "world"]

pytestmark = pytest.mark.django_db
NAME = "/v1/table/mine$t"


# --- Lance -------------------------------------------------------------------------------------


def _forge(world: World) -> None:
    """The newest version in storage leads to the hidden table."""
    evil = attacks.clone_of(world.victims["hidden"], NEXT, world.clones / "evil")
    _manifest(Path(world.mine.location), NEXT).write_bytes(evil)


def _require_closed(world: World) -> None:
    assert not any(FileReference.objects.values_list("directories", flat=True))
    with watched(*world.canaries) as touched:
        answer = Lance(KEY).call("POST", f"{NAME}/query", {"k": 10, "vector": {}})
    assert answer.status_code == 400, answer.content
    assert touched.events == []


def test_a_lance_table_that_is_registered_again_opens_no_forged_references(
    world: World, admin: Lance
):
    _forge(world)
    admin.post(f"{NAME}/register", {"location": world.mine.location, "mode": "overwrite"})
    _require_closed(world)


def test_a_lance_table_that_was_deregistered_opens_no_forged_references(world: World, admin: Lance):
    _forge(world)
    Lance(KEY).post(f"{NAME}/deregister", {})
    admin.post(f"{NAME}/register", {"location": world.mine.location})
    _require_closed(world)


def test_the_first_version_of_a_table_declared_again_continues_from_no_forged_one(
    world: World, admin: Lance
):
    """The client of an administrator has the table open meanwhile."""
    _forge(world)
    copy = _copy(world)
    Lance(KEY).post(f"{NAME}/deregister", {})
    Lance(KEY).post(f"{NAME}/declare", {"location": world.mine.location})
    lance.dataset(str(copy)).delete("false")
    answer = admin.call("POST", CREATE, _stage(world, _manifest(copy, NEXT + 1)))
    assert answer.status_code == 400, answer.content
    assert not FileReference.objects.exists()


def test_lance_references_that_were_committed_stay_open(world: World, admin: Lance):
    hidden = world.victims["hidden"].location
    copy = _copy(world)
    lance.dataset(str(copy)).add_bases([DatasetBasePath(hidden, name="h", is_dataset_root=True)])
    admin.post(CREATE, _stage(world, _manifest(copy, NEXT)))
    (committed,) = FileReference.objects.values_list("directories", flat=True)
    for _ in range(2):
        Lance(KEY).post(f"{NAME}/deregister", {})
        admin.post(f"{NAME}/register", {"location": world.mine.location})
    row = Table.objects.named(("mine", "t")).get()
    assert FileReference.objects.get(table=row).directories == committed


def _clone(world: World, admin: Lance) -> dict[str, object]:
    """The client of an administrator clones the attacker's table; returns the request of its commit."""
    answer = admin.post("/v1/table/mine$clone/declare", {})
    target = Path(str(answer["location"]))
    lance.dataset(world.mine.location).shallow_clone(str(target), NEXT)
    written = _manifest(target, NEXT)
    staged = written.rename(f"{written}-client")
    return {"version": NEXT, "manifest_path": str(staged), "naming_scheme": "V2"}


def test_a_clone_opens_no_forged_references_of_its_source(world: World, admin: Lance):
    _forge(world)
    body = _clone(world, admin)
    admin.post("/v1/table/mine$clone/version/create", body)
    opened = FileReference.objects.exclude(directories=[])
    assert {row.source for row in opened} == {world.mine}
    with watched(*world.canaries) as touched:
        answer = Lance(KEY).call("POST", "/v1/table/mine$clone/query", {"k": 10, "vector": {}})
    assert answer.status_code == 400, answer.content
    assert touched.events == []


def test_a_clone_opens_references_that_its_source_has_committed(world: World, admin: Lance):
    staged = world.stage(attacks.clone_of(world.victims["hidden"], NEXT, world.clones / "evil"))
    admin.post(CREATE, {"version": NEXT, "manifest_path": str(staged), "naming_scheme": "V2"})
    admin.post("/v1/table/mine$clone/version/create", _clone(world, admin))
    clone = Table.objects.named(("mine", "clone")).get()
    opened = FileReference.objects.exclude(directories=[]).filter(table=clone)
    assert {row.source for row in opened} == {world.mine, world.victims["hidden"]}
    answer = Lance(KEY).call("POST", "/v1/table/mine$clone/count_rows", {})
    assert answer.status_code == 200, answer.content


# --- Iceberg -----------------------------------------------------------------------------------


@pytest.fixture(params=[None, "_MAX_LIST_BYTES", "_MAX_MANIFEST_BYTES"])
def limit(
    request: pytest.FixtureRequest, iceberg_world: foreign.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the registration read everything, or leave it to the periodic task.

    It follows ``iceberg_world``, which later tests copy with what its own commits left unread.
    """
    if request.param is not None:
        monkeypatch.setattr(iceberg_files, request.param, 0)


def _register(location: str, *, overwrite: bool = False) -> None:
    iceberg_commits.register_table(
        actor=SYSTEM, table=foreign.MINE, metadata_location=location, overwrite=overwrite
    )
    iceberg_references.read_unread()


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("overwrite", [True, False])
def test_an_iceberg_table_that_is_registered_again_opens_no_forged_references(
    iceberg_world: foreign.World, attacker: Iceberg, overwrite: bool
):
    path = iceberg_world.path("hidden", "data")
    attacker.post(COMMIT, {"requirements": [], "updates": updates(snapshot("data", path))})
    iceberg_references.read_unread()
    assert not FileReference.objects.exists()
    location = attacker.get(COMMIT)["metadata-location"]
    if not overwrite:
        iceberg_tables.unregister_table(actor=SYSTEM, table=foreign.MINE)
    _register(location, overwrite=overwrite)
    assert not any(FileReference.objects.values_list("directories", flat=True))
    with untouched(iceberg_world.canaries()):
        answer = attacker.call("POST", f"{COMMIT}/plan", {})
    assert foreign.message_of(answer) == foreign.refusal(path)


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("overwrite", [True, False])
def test_iceberg_references_that_were_committed_stay_open(
    iceberg_world: foreign.World, attacker: Iceberg, overwrite: bool
):
    path = iceberg_world.path("hidden", "data")
    change = TableChange(
        table=foreign.MINE, requirements=[], updates=updates(snapshot("data", path))
    )
    iceberg_commits.commit_table(actor=SYSTEM, change=change)
    iceberg_references.read_unread()
    location = attacker.get(COMMIT)["metadata-location"]
    for _ in range(2):
        if not overwrite:
            iceberg_tables.unregister_table(actor=SYSTEM, table=foreign.MINE)
        _register(location, overwrite=overwrite)
    directory = str(local(path).parent)
    assert FileReference.objects.get(table=foreign.row()).directories == [directory]
    tasks = attacker.post(f"{COMMIT}/plan", {})["file-scan-tasks"]
    assert {task["data-file"]["file-path"] for task in tasks} == {path}
