"""Files of an attacker's table that are replaced between their check and their use, nested tables, and external blobs."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from catalog.access import SYSTEM
from catalog.models import FileReference, Principal, Table
from catalog.privileges import Privilege, closure
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.ledger import needed_files, version_operations
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.recovery import lance_repair
from tests.access.protocols import KEY
from tests.api.client import Lance, stream
from tests.api.iceberg.client import Iceberg
from tests.factories import files, make_iceberg_table, snapshot
from tests.security import lance_attacks as attacks
from tests.security.inotify import watched
from tests.security.test_foreign_files_lance import (
    ATTACKS,
    NEXT,
    USES,
    World,
    _body,
    _clone,
    _real,
    _run_jobs,
    world,
)

__all__ = ["world"]

pytestmark = pytest.mark.django_db
CREATE = "/v1/table/mine$t/version/create"


# --- staged manifests ---------------------------------------------------------------------------


def _replaced(world: World, staged: Path) -> None:
    staged.write_bytes(_clone("hidden")(world))


def _renamed_over(world: World, staged: Path) -> None:
    other = staged.with_name("other")
    other.write_bytes(ATTACKS["base path of plain files"](world))
    other.rename(staged)


def _symbolic(world: World, staged: Path) -> None:
    target = world.secret.with_name("manifest")
    target.write_bytes(_clone("hidden")(world))
    staged.unlink()
    staged.symlink_to(target)


def _hard(world: World, staged: Path) -> None:
    (manifest,) = Path(f"{world.victims['hidden'].location}/_versions").glob("*.manifest")
    staged.unlink()
    os.link(manifest, staged)


def _directory(world: World, staged: Path) -> None:
    """The directory of the manifests is a link to that of a hidden table."""
    staged.parent.rename(f"{staged.parent}.away")
    staged.parent.symlink_to(f"{world.victims['hidden'].location}/_versions")


def _gone(world: World, staged: Path) -> None:
    staged.unlink()


def _pipe(world: World, staged: Path) -> None:
    staged.unlink()
    os.mkfifo(staged)


SWAPS: list[Callable[[World, Path], None]] = [
    _replaced,
    _renamed_over,
    _symbolic,
    _hard,
    _directory,
    _gone,
    _pipe,
]


@pytest.mark.parametrize("moment", ["before the move", "after the move"])
@pytest.mark.parametrize("swap", SWAPS)
def test_a_staged_manifest_that_is_replaced_after_its_check_opens_nothing(
    world, monkeypatch, swap, moment
):
    staged = world.stage(_real(world))
    move = version_operations.versions.move_committed

    def move_later(rows: Any) -> None:
        if moment == "before the move":
            swap(world, staged)
        move(rows)

    monkeypatch.setattr(version_operations.versions, "move_committed", move_later)
    Lance(KEY).call("POST", CREATE, _body(str(staged)))
    monkeypatch.undo()
    if moment == "after the move":
        final = min(Path(f"{world.mine.location}/_versions").glob("*.manifest"))
        swap(world, final)
    lance_datasets.clear_caches()
    canaries = [path for path in world.canaries if path != str(world.secret.parent)]
    before = [files(canary) for canary in canaries]
    faults = []
    with watched(*(f"{canary}/data" for canary in canaries)) as touched:
        for name, (path, body) in USES.items():
            content = {"raw": body} if isinstance(body, bytes) else {"body": body}
            answer = Lance(KEY).call("POST", f"/v1/table/mine$t/{path}", **content)
            if answer.status_code >= 500 or b"secret" in answer.content.replace(b"secretive", b""):
                faults.append((name, answer.status_code, answer.content[:300]))
        _run_jobs(world)
        lance_versions.settle_pending()
        lance_repair.repair(actor=SYSTEM, table=("mine", "t"), is_dry_run=True)
    assert faults == []
    assert touched.events == []
    assert [files(canary) for canary in canaries] == before
    assert not FileReference.objects.exists()


def test_the_number_of_a_base_path_leads_elsewhere_in_a_later_version(world):
    """Version 3 brings in a directory that its writer may read; version 4 gives its number to another one."""
    twin, hidden = world.victims["twin"], world.victims["hidden"]
    requester = Principal.objects.get(name="who")
    requester.grants.create(mask=closure(Privilege.READ).value, table=twin)
    content = attacks.with_added_base(_real(world), twin.location)
    Lance(KEY).post(CREATE, _body(str(world.stage(content))))
    lance_versions.settle_pending()
    before = snapshot()
    for base in (
        attacks.base_path(hidden.location, 0),
        attacks.base_path(f"{twin.location}/../{Path(hidden.location).name}", 0),
        attacks.base_path(f"file://{twin.location}/%2e%2e/{Path(hidden.location).name}", 0),
        attacks.base_path(twin.location, 0, is_root=False),  # all of the table's directory
        attacks.base_path(f"{twin.location}/_versions", 0, is_root=False),
    ):
        later = attacks.lance_manifest.with_version(_real(world), NEXT + 1)
        later = attacks.with_field(later, [], base)
        with watched(*world.canaries) as touched:
            answer = Lance(KEY).call("POST", CREATE, _body(str(world.stage(later)), NEXT + 1))
        assert (answer.status_code, answer.json()["code"]) == (400, 13), answer.content
        assert touched.events == []
        assert snapshot() == before


# --- tables in the directories of others --------------------------------------------------------


def _attempts(directory: str, n: str = "n") -> list[tuple[str, Callable[[], Any]]]:
    lance_client, iceberg = Lance(KEY), Iceberg(KEY)
    field = {"id": 1, "name": "id", "required": False, "type": "long"}
    schema = {"type": "struct", "schema-id": 0, "fields": [field]}
    create = {"name": f"{n}2", "location": f"file://{directory}", "schema": schema}
    return [
        (
            "register",
            lambda: lance_client.call(
                "POST", f"/v1/table/mine${n}0/register", {"location": directory}
            ),
        ),
        (
            "declare",
            lambda: lance_client.call(
                "POST", f"/v1/table/mine${n}1/declare", {"location": directory}
            ),
        ),
        ("iceberg", lambda: iceberg.call("POST", "namespaces/mine/tables", create)),
        (
            "data path",
            lambda: iceberg.call(
                "POST",
                "namespaces/mine/tables",
                {
                    "name": f"{n}3",
                    "schema": schema,
                    "properties": {"write.data.path": f"file://{directory}"},
                },
            ),
        ),
        (
            "metadata path",
            lambda: iceberg.call(
                "POST",
                "namespaces/mine/tables",
                {
                    "name": f"{n}4",
                    "schema": schema,
                    "properties": {"write.metadata.path": f"file://{directory}"},
                },
            ),
        ),
    ]


@pytest.mark.parametrize("format", ["lance", "iceberg"])
@pytest.mark.parametrize("owner", ["hidden", "mine"])
def test_no_table_lies_in_the_directory_of_another_one(world, format, owner):
    if format == "lance":
        location = world.victims["hidden"].location if owner == "hidden" else world.mine.location
    else:
        namespace = "secretive" if owner == "hidden" else "mine"
        make_iceberg_table(namespace, "ice")
        location = Table.objects.named((namespace, "ice")).get().location
    above = location.rpartition("/")[0]
    for number in range(5):  # elsewhere, each of them succeeds
        free = f"{above}/free{number}"
        name, attempt = _attempts(free, f"free{number}")[number]
        if name == "register":
            lance.write_dataset(pa.table({"id": [1]}), free)
        assert attempt().status_code == 200, name
    before = snapshot()
    places = [
        location,
        f"{location}/data",
        f"{location}/data/inside",
        f"{location}/tree/dev",
        f"{location}/_indices/inside",
        above,
    ]
    faults = []
    with watched(*world.canaries) as touched:
        for place in places:
            for name, attempt in _attempts(place):
                answer = attempt()
                if not 400 <= answer.status_code < 500:
                    faults.append((place, name, answer.status_code, answer.content[:200]))
    assert faults == []
    assert owner == "mine" or touched.events == []
    assert snapshot() == before


def test_orphans_of_a_lance_table_with_files_of_an_iceberg_table_stay(world):
    table = make_iceberg_table("mine", "ice")
    FileReference.objects.create(
        table_id=table.pk, source=world.mine, principal="who", directories=[]
    )
    needed = needed_files.NeededFiles(world.mine)
    needed.update()
    assert needed.has_others
    assert needed.needs(f"{world.mine.location}/_indices/a/b.parquet")


# --- external blobs -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spell",
    [
        lambda path: path.as_uri(),
        str,
        lambda path: f"file:{path}",
        lambda path: f"file://localhost{path}",
        lambda path: os.path.relpath(path, "/"),
        lambda path: f"../../outside/{path.name}",
        lambda path: f"data/../../outside/{path.name}",
        lambda path: f"file://{path.parent}/%2e%2e/outside/{path.name}",
        lambda path: f"FILE://{path}",
    ],
)
def test_no_spelling_of_an_external_blob_is_opened(world, spell):
    rows = pa.table({"id": [1], "b": lance.blob_array([spell(world.secret)])})
    with watched(*world.canaries) as touched:
        for path in ("mine$b/create", "mine$t/insert"):
            refused = Lance(KEY).call("POST", f"/v1/table/{path}", raw=stream(rows))
            assert 400 <= refused.status_code < 500, refused.content
    assert touched.events == []
    location = Path(world.mine.location).parent / "blobs"
    try:
        lance.write_dataset(
            rows,
            str(location),
            data_storage_version="2.2",
            allow_external_blob_outside_bases=True,
        )
    except (OSError, ValueError):  # pylance itself does not write it
        return
    Lance(KEY).post("/v1/table/mine$b/register", {"location": str(location)})
    with watched(*world.canaries) as touched:
        for name, (path, body) in USES.items():
            content = {"raw": body} if isinstance(body, bytes) else {"body": body}
            answer = Lance(KEY).call("POST", f"/v1/table/mine$b/{path}", **content)
            assert answer.status_code < 500, (name, answer.content)
            assert b"not for you" not in answer.content
        _run_jobs(world, table=("mine", "b"))
    assert touched.events == []
