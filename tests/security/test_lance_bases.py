"""Links created in directories that a version of a Lance table needs, and that are not its table's or its branch's."""

import os
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from catalog import access
from catalog.formats.lance import manifest as lance_manifest
from catalog.formats.lance.naming import NamingScheme, final_manifest_path
from catalog.models import Principal, Table, TableVersion
from catalog.privileges import Privilege, closure
from catalog.services.access import known_keys
from catalog.services.lance import data as lance_data
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.lance.ledger_namespace import LedgerNamespace
from tests.access.protocols import KEY
from tests.api.client import Lance, stream
from tests.security import lance_attacks as attacks
from tests.security.inotify import watched
from tests.security.test_foreign_files_lance import (
    ATTACKS,
    MINE,
    NEXT,
    World,
    _body,
    _hidden_file,
    world,
)

__all__ = ["world"]

pytestmark = pytest.mark.django_db
ROWS = stream(pa.table({"id": [5], "name": ["e"]}))


def _insert(table: str, query: str = "") -> None:
    answer = Lance(KEY).call("POST", f"/v1/table/{table}/insert{query}", raw=ROWS)
    assert answer.status_code == 200, answer.content


def _clone(world: World) -> tuple[str, str, Path]:
    """A shallow clone of another table of the attacker."""
    Lance(KEY).call("POST", "/v1/table/mine$u/create", raw=ROWS)
    _insert("mine$u")
    lance_versions.settle_pending()
    source = Path(Table.objects.named(("mine", "u")).get().location)
    target = world.clones / "own"
    lance.dataset(str(source)).shallow_clone(str(target), 2)
    clone = Path(world.mine.location).parent / "clone"
    target.rename(clone)
    Lance(KEY).post("/v1/table/mine$c/register", {"location": str(clone)})
    return "mine$c", "", source / "data"


def _nested_branch(world: World) -> tuple[str, str, Path]:
    """A branch of a branch, whose directory has its files."""
    Lance(KEY).post("/v1/table/mine$t/branches/create", {"name": "a"})
    for _ in range(2):
        _insert("mine$t", "?branch=a")
    body = {"name": "b", "from_branch": "a"}
    Lance(KEY).post("/v1/table/mine$t/branches/create", body)
    lance_versions.settle_pending()
    return "mine$t", "b", Path(world.mine.location) / "tree" / "a" / "data"


@pytest.mark.parametrize("place", [_clone, _nested_branch])
def test_a_link_created_after_a_read_is_not_followed(world, place):
    table, branch, directory = place(world)
    on = {"branch": branch} if branch else {}
    _insert(table, f"?branch={branch}" if branch else "")  # a writer has it open
    count = Lance(KEY).call("POST", f"/v1/table/{table}/count_rows", on)
    assert count.status_code == 200
    paths = list(directory.iterdir())
    assert len(paths) == 2
    for path in paths:
        path.unlink()
        path.symlink_to(_hidden_file(world))
    with watched(*world.canaries) as touched:
        for operation, body in (
            ("query", {"k": 10, "vector": {}}),
            ("count_rows", {"predicate": "id > 0"}),
            ("update", {"updates": [["name", "'q'"]]}),
            ("delete", {"predicate": "name = 'e'"}),
        ):
            answer = Lance(KEY).call("POST", f"/v1/table/{table}/{operation}", body | on)
            assert answer.status_code == 400, operation
            assert b"does not belong to table" in answer.content, operation
    assert touched.events == []


def test_a_writer_that_continued_from_a_replaced_version_does_not_stay_open(world, monkeypatch):
    """The attacker may no longer read the source of a clone, and an administrator inserts rows meanwhile."""
    Principal.objects.create(name="admin", kind="user", level="admin")
    hidden, directory = world.victims["hidden"], Path(world.mine.location)
    requester = Principal.objects.get(name="who")
    grant = requester.grants.create(mask=closure(Privilege.READ).value, namespace=hidden.namespace)
    clone = ATTACKS["clone of a hidden table"](world)
    Lance(KEY).post("/v1/table/mine$t/version/create", _body(str(world.stage(clone))))
    Lance(KEY).post("/v1/table/mine$t/restore", {"version": 2})
    lance_versions.settle_pending()
    grant.delete()
    known_keys.forget_keys()
    run = LedgerNamespace.run

    def run_later(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(LedgerNamespace, "run", run)
        staged = world.stage(lance_manifest.with_version(attacks.manifest_in(directory), 5))
        Lance(KEY).post("/v1/table/mine$t/version/create", _body(str(staged), 5))
        lance_versions.settle_pending()
        min((directory / "_versions").glob("*.manifest")).write_bytes(
            lance_manifest.with_version(clone, 5)
        )
        return run(*arguments, **options)

    monkeypatch.setattr(LedgerNamespace, "run", run_later)
    rows = pa.table({"id": [5], "name": ["e"]}).to_reader()
    lance_data.insert(actor=access.named("admin"), table=MINE, data=rows)
    with watched(*world.canaries) as touched:
        update = {"updates": [["name", "concat(name, 'q')"]]}
        answer = Lance(KEY).call("POST", "/v1/table/mine$t/update", update)
    assert touched.events == []
    assert answer.status_code == 400
    assert b"does not belong to table" in answer.content


# --- files that no version names ------------------------------------------------------------------

WRITES: dict[str, tuple[str, Any]] = {
    "insert": ("insert", ROWS),
    "update": ("update", {"updates": [["name", "'q'"]]}),
    "restore": ("restore", {"version": 1}),
    "index": ("create_scalar_index", {"column": "id", "index_type": "BTREE"}),
    "tag": ("tags/create", {"tag": "v", "version": 1}),
    "branch": ("branches/create", {"name": "b"}),
}


@pytest.mark.parametrize("scheme", NamingScheme)
@pytest.mark.parametrize("kind", ["manifest", "file", "pipe"])
def test_a_write_opens_no_link_in_the_place_of_the_next_manifest(world, kind, scheme):
    """Lance looks for later versions in storage, too."""
    lance_versions.settle_pending()
    (hidden,) = Path(f"{world.victims['hidden'].location}/_versions").glob("*.manifest")
    manifest = Path(world.mine.location, final_manifest_path("", NEXT, scheme))
    if kind == "pipe":
        os.mkfifo(manifest)
    else:
        manifest.symlink_to(hidden if kind == "manifest" else world.secret)
    with watched(*world.canaries) as touched:
        for operation, (path, body) in WRITES.items():
            content = {"raw": body} if isinstance(body, bytes) else {"body": body}
            answer = Lance(KEY).call("POST", f"/v1/table/mine$t/{path}", **content)
            assert answer.status_code == 400, (operation, answer.content)
            assert b"may not be written for it" in answer.content, operation
    assert touched.events == []
    assert TableVersion.objects.filter(table=world.mine).latest("version").version == NEXT - 1
    manifest.unlink()
    assert Lance(KEY).call("POST", "/v1/table/mine$t/insert", raw=ROWS).status_code == 200


def test_a_write_to_a_branch_opens_no_link_beside_the_manifests_of_main(world):
    Lance(KEY).post("/v1/table/mine$t/branches/create", {"name": "b"})
    lance_versions.settle_pending()
    manifest = Path(world.mine.location, final_manifest_path("", NEXT, NamingScheme.V2))
    manifest.symlink_to(world.secret)
    with watched(*world.canaries) as touched:
        _insert("mine$t", "?branch=b")
    assert touched.events == []
