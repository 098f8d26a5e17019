"""No Lance manifest makes the server touch a file that is not its table's.

The attacker has all privileges on one table, and may write to its directory like Lance clients. The
attacker commits manifests that refer to a hidden table, a dropped table, a table whose location has the same
prefix, and a file of the system. Each is refused when it is committed or, if an older release accepted it,
at every use. The operating system reports no foreign file that is opened, linked, changed or removed.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import lance
import pyarrow as pa
import pytest

from catalog import access
from catalog.access import SYSTEM, credentials
from catalog.errors import ForeignFile, InvalidInput, InvalidManifestPath
from catalog.models import (
    ApiKey,
    FileReference,
    Job,
    JobStatus,
    Principal,
    Table,
    TableVersion,
)
from catalog.privileges import Privilege, closure
from catalog.services.access import known_keys
from catalog.services.engine.commit import commit
from catalog.services.lance import data as lance_data
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.ledger import files as lance_files
from catalog.services.lance.ledger import registration_operations
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.lance.ledger import versions as lance_versions_module
from catalog.services.lance.ledger.needed_files import NeededFiles
from catalog.services.lance.ledger_namespace import LedgerNamespace
from catalog.services.lance.materialized_views import materialized_views
from catalog.services.maintenance import job_runner, measurements
from catalog.services.maintenance import job_runner as maintenance_job_runner
from catalog.services.recovery import lance_repair
from catalog.services.tables import job_operations, table_operations
from tasks.jobs import lance_compact
from tests.access.protocols import KEY, give, make_requester, principal
from tests.api.client import Lance, encoded_schema, stream
from tests.cases import shared_cases
from tests.factories import files, make_lance_table, make_namespace, make_root, snapshot
from tests.recall import recall
from tests.security import lance_attacks as attacks
from tests.security.inotify import watched

pytestmark = pytest.mark.django_db

MINE = ("mine", "t")
NEXT = 3
"""The next version of the attacker's table."""


@dataclass
class World:
    mine: Table
    victims: dict[str, Table]
    secret: Path
    clones: Path

    @property
    def canaries(self) -> list[str]:
        return [*(table.location for table in self.victims.values()), str(self.secret.parent)]

    def stage(self, content: bytes) -> Path:
        path = Path(f"{self.mine.location}/_versions/{2**64 - 1 - NEXT:020d}.manifest-evil")
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        return path


@pytest.fixture
def world(db, recalled_warehouse: Path, settings) -> Iterator[World]:
    settings.MONODON_MANIFEST_PATHS = []
    yield recall("foreign files of Lance", lambda: _make_world(recalled_warehouse.parent))
    lance_datasets.clear_caches()
    lance_files._checked.clear()  # the next copy has the same tables


def _make_world(directory: Path) -> World:
    make_root()
    requester = make_requester()
    make_namespace("secretive")
    rows = pa.table({"id": [7, 8], "name": ["secret", "secret"]})
    victims = {
        "hidden": make_lance_table(("secretive", "hidden"), rows),
        "dropped": make_lance_table(("secretive", "dropped"), rows),
    }
    give(requester, Privilege.ALL, make_namespace("mine"))
    mine = make_lance_table(MINE)
    Lance(KEY).call(
        "POST", "/v1/table/mine$t/insert", raw=stream(pa.table({"id": [4], "name": ["d"]}))
    )
    # A table whose location has the attacker's as a prefix.
    twin = make_lance_table(("secretive", "twin"), rows)
    Path(twin.location).rename(f"{mine.location}x")
    Table.objects.filter(pk=twin.pk).update(location=f"{mine.location}x")
    twin.refresh_from_db()
    victims["twin"] = twin
    lance_versions.settle_pending()
    commit([table_operations.DropTable(table=("secretive", "dropped"))], actor=SYSTEM)
    secret = directory / "outside" / "secret.lance"
    secret.parent.mkdir()
    secret.write_bytes(b"not for you")
    lance_datasets.clear_caches()
    return World(mine, victims, secret, directory / "clones")


# --- manifests with foreign references -----------------------------------------------------------

Attack = Callable[[World], bytes]


def _real(world: World) -> bytes:
    """A manifest of the attacker's own table with the next number."""
    return attacks.lance_manifest.with_version(attacks.manifest_of(world.mine), NEXT)


def _clone(victim: str) -> Attack:
    return lambda world: attacks.clone_of(world.victims[victim], NEXT, world.clones / victim)


def _rebased(where: Callable[[World], str], *, is_root: bool = True) -> Attack:
    """Own data files with a base path in another directory."""

    def make(world: World) -> bytes:
        manifest = attacks.with_field(_real(world), [2, 2], attacks.number_field(7, 0))
        return attacks.with_field(manifest, [], attacks.base_path(where(world), is_root=is_root))

    return make


def _data_file(where: Callable[[World], str]) -> Attack:
    return lambda world: attacks.edited(_real(world), [2, 2, 1], attacks.always(where(world)))


def _hidden_file(world: World) -> str:
    (path,) = Path(f"{world.victims['hidden'].location}/data").iterdir()
    return str(path)


def _climb(world: World) -> str:
    return "../../" + os.path.relpath(_hidden_file(world), Path(world.mine.location).parent)


def _linked(name: str) -> Callable[[World], str]:
    """A link in the attacker's table to a hidden table, under another spelling of its name."""

    def make(world: World) -> str:
        link = Path(world.mine.location) / "elsewhere"
        if not link.is_symlink():
            link.symlink_to(world.victims["hidden"].location)
        return f"file://{world.mine.location}/{name}"

    return make


def _encoded_data_file(world: World) -> bytes:
    """An own data file with a name that Lance encodes, and a link with the encoded name."""
    directory = Path(world.mine.location) / "data"
    own = next(path for path in directory.iterdir() if not path.is_symlink())
    shutil.copyfile(own, directory / "x~y.lance")
    link = directory / "x%7Ey.lance"
    if not link.is_symlink():
        link.symlink_to(_hidden_file(world))
    return _data_file(lambda _: "x~y.lance")(world)


def _wide_number(world: World) -> bytes:
    """Two base paths whose numbers differ only in bits that Lance drops; Lance uses the last one."""
    manifest = attacks.with_field(_real(world), [2, 2], attacks.number_field(7, 1))
    own = attacks.base_path(world.mine.location, 1)
    hidden = attacks.base_path(world.victims["hidden"].location, 2**32 + 1)
    return attacks.with_field(attacks.with_field(manifest, [], own), [], hidden)


def _wide_type(world: World) -> bytes:
    """A deletion file of a type that Lance interprets as another one, and a link with that name."""
    link = Path(world.mine.location) / "_deletions" / "0-1-78.arrow"
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(_hidden_file(world))
    deletion = (
        attacks.number_field(1, 2**32)
        + attacks.number_field(2, 1)
        + attacks.number_field(3, 78)
        + attacks.number_field(4, 1)
    )
    return attacks.with_field(_real(world), [2], attacks.bytes_field(3, deletion))


def _hidden_rows(world: World) -> bytes:
    """The data file of a hidden table instead of the table's own."""
    manifest = _rebased(lambda w: w.victims["hidden"].location)(world)
    return attacks.edited(manifest, [2, 2, 1], attacks.always(Path(_hidden_file(world)).name))


def _deletion(world: World) -> bytes:
    deletion = attacks.number_field(4, 1) + attacks.number_field(7, 0)
    manifest = attacks.with_field(_real(world), [2], attacks.bytes_field(3, deletion))
    base = attacks.base_path(world.victims["hidden"].location)
    return attacks.with_field(manifest, [], base)


def _row_ids(world: World) -> bytes:
    external = attacks.text_field(1, _climb(world)) + attacks.number_field(3, 8)
    return attacks.with_field(_real(world), [2], attacks.bytes_field(6, external))


def _transaction(world: World) -> bytes:
    name = attacks.text_field(12, "../../" + os.path.relpath(world.secret, world.mine.location))
    return attacks.edited(_real(world), [12], lambda _: name[2:])


def _index(path: Callable[[World], Path], change: attacks.Change = lambda index: index) -> Attack:
    """An index of an own column whose files are in another directory, with a changed entry."""

    def make(world: World) -> bytes:
        manifest, directory = attacks.indexed(world.mine, NEXT, world.clones / "indexed")
        target = path(world) / "_indices" / directory.name
        shutil.copytree(directory, target, dirs_exist_ok=True)
        return attacks.edited(manifest, [1], change, index=True)

    return make


def _index_elsewhere(change: attacks.Change) -> Attack:
    """The same index with the base path of a hidden table."""
    make = _index(lambda world: Path(world.victims["hidden"].location), change)
    return lambda world: attacks.with_field(
        make(world), [], attacks.base_path(world.victims["hidden"].location)
    )


def _in_base(index: bytes) -> bytes:
    return index + attacks.number_field(9, 0)


def _naming(path: Callable[[World], str]) -> Attack:
    """An own index, with an additional file."""

    def make(world: World) -> bytes:
        file = attacks.bytes_field(10, attacks.text_field(1, path(world)))
        return _index(_own, lambda index: index + file)(world)

    return make


def _own(world: World) -> Path:
    return Path(world.mine.location)


def _index_linked(world: World) -> bytes:
    """An own index without the names of its files, which are links to another table's files."""
    manifest = _index(_own, attacks.without_field(10))(world)
    hidden = Path(world.victims["hidden"].location) / "_indices"
    (directory,) = (_own(world) / "_indices").iterdir()
    directory.rename(hidden / directory.name) if hidden.is_dir() else shutil.copytree(
        directory, hidden / directory.name
    )
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for path in (hidden / directory.name).iterdir():
        (directory / path.name).symlink_to(path)
    return manifest


def _deletion_linked(world: World) -> bytes:
    link = Path(world.mine.location) / "_deletions" / "0-1-77.arrow"
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(_hidden_file(world))
    deletion = attacks.number_field(2, 1) + attacks.number_field(3, 77) + attacks.number_field(4, 1)
    return attacks.with_field(_real(world), [2], attacks.bytes_field(3, deletion))


ATTACKS: dict[str, Attack] = {
    "clone of a hidden table": _clone("hidden"),
    "clone of a dropped table": _clone("dropped"),
    "clone of a twin": _clone("twin"),
    "base path of a hidden table": _rebased(lambda w: w.victims["hidden"].location),
    "base path as a URI": _rebased(lambda w: f"file://{quote(w.victims['hidden'].location)}"),
    "base path with slashes": _rebased(lambda w: w.victims["hidden"].location + "//"),
    "base path that climbs": _rebased(
        lambda w: f"{w.mine.location}/../{Path(w.victims['hidden'].location).name}"
    ),
    "base path of plain files": _rebased(
        lambda w: w.victims["hidden"].location + "/data", is_root=False
    ),
    "base path outside": _rebased(lambda w: str(w.secret.parent), is_root=False),
    "base path of the system": _rebased(lambda w: "/etc", is_root=False),
    "base path that is relative": _rebased(lambda w: "../outside", is_root=False),
    "base path of another store": _rebased(lambda w: "s3://bucket/t"),
    "base path of memory": _rebased(lambda w: "memory://t"),
    "base path with backslashes": _rebased(
        lambda w: f"file://{w.mine.location}/x\\..\\..\\{Path(w.victims['hidden'].location).name}"
    ),
    "base path with a space behind it": _rebased(_linked("elsewhere ")),
    "wide number of a base path": _wide_number,
    "absolute data file": _data_file(_hidden_file),
    "data file with an encoded name": _encoded_data_file,
    "data file that climbs": _data_file(_climb),
    "data file with encoded dots": _data_file(lambda w: _climb(w).replace("..", "%2e%2e")),
    "data file outside": _data_file(lambda w: f"../../../outside/{w.secret.name}"),
    "data file as a URI": _data_file(lambda w: f"file://{_hidden_file(w)}"),
    "deletion file": _deletion,
    "row ids": _row_ids,
    "transaction file": _transaction,
    "base path of an index": _index_elsewhere(_in_base),
    "base path of an index without names": _index_elsewhere(
        lambda index: _in_base(attacks.without_field(10)(index))
    ),
    "index file that is absolute": _naming(_hidden_file),
    "index file that climbs": _naming(lambda w: "../" + _climb(w)),
    "index file outside": _naming(lambda w: f"../../../../outside/{w.secret.name}"),
    "links as index files": _index_linked,
    "link as deletion file": _deletion_linked,
    "wide type of a deletion file": _wide_type,
}
AT_ENTRY = {name for name in ATTACKS if name.startswith(("clone", "base path", "deletion"))}
"""Attacks refused when the version is recorded; the others are detected before it is used."""


def _body(path: str, version: int = NEXT) -> dict[str, Any]:
    return {"version": version, "manifest_path": path}


WAYS: dict[str, Callable[[str], tuple[str, dict[str, Any]]]] = {
    "create": lambda path: ("/v1/table/mine$t/version/create", _body(path)),
    "batch create": lambda path: (
        "/v1/table/version/batch-create",
        {"entries": [{"id": list(MINE), **_body(path)}]},
    ),
    "batch commit": lambda path: (
        "/v1/table/batch-commit",
        {"operations": [{"create_table_version": {"id": list(MINE), **_body(path)}}]},
    ),
}


@shared_cases("way", WAYS)
@shared_cases("attack", sorted(AT_ENTRY))
def test_a_manifest_with_foreign_base_paths_is_refused(world, attack, way):
    staged = world.stage(ATTACKS[attack](world))
    before, on_disk = snapshot(), files(world.mine.location)
    path, body = WAYS[way](str(staged))
    with watched(*world.canaries) as touched:
        refused = Lance(KEY).call("POST", path, body)
    assert (refused.status_code, refused.json()["code"]) == (400, 13), refused.content
    assert (
        "does not belong to table 'mine.t', and may not be read for it" in refused.json()["error"]
    )
    assert touched.events == []
    assert (snapshot(), files(world.mine.location)) == (before, on_disk)


def test_a_base_path_that_decodes_to_another_location(world):
    """The attacker's location is the victim's with a letter encoded."""
    hidden = Path(world.victims["hidden"].location)
    location = hidden.with_name(f"%{ord(hidden.name[0]):02x}{hidden.name[1:]}")
    Path(world.mine.location).rename(location)
    Table.objects.filter(pk=world.mine.pk).update(location=str(location))
    world.mine.refresh_from_db()
    content = _rebased(lambda _: f"file://{location}")(world)
    staged, before = world.stage(content), snapshot()
    path, body = WAYS["create"](str(staged))
    with watched(*world.canaries) as touched:
        refused = Lance(KEY).call("POST", path, body)
        assert (refused.status_code, refused.json()["code"]) == (400, 13), refused.content
    assert "does not belong to table 'mine.t'" in refused.json()["error"]
    assert touched.events == []
    assert snapshot() == before


@shared_cases("way", WAYS)
@shared_cases("victim", ["hidden", "dropped", "twin", "secret", "missing"])
def test_a_manifest_outside_the_table_is_refused(world, victim, way):
    if victim == "missing":
        target = Path(world.victims["hidden"].location) / "_versions/none.manifest-x"
    elif victim == "secret":
        target = world.secret
    else:
        (target,) = Path(f"{world.victims[victim].location}/_versions").glob("*.manifest")
    on_disk = files(world.mine.location)
    for spelling in (str(target), str(target).lstrip("/"), target.as_uri()):
        path, body = WAYS[way](spelling)
        before = snapshot()
        with watched(*world.canaries) as touched:
            refused = Lance(KEY).call("POST", path, body)
        assert (refused.status_code, refused.json()["code"]) == (400, 13)
        expected = (
            f"Manifest path {spelling!r} is outside the table's location '{world.mine.location}'"
        )
        assert refused.json()["error"].removeprefix("Operation 0: ") == expected
        assert touched.events == []
        assert snapshot() == before
    assert files(world.mine.location) == on_disk


# --- manifests accepted by older releases --------------------------------------------------------


def _enter(world: World, content: bytes, version: int = NEXT) -> None:
    """Record a manifest as a former release did, without checking it."""
    path = Path(f"{world.mine.location}/_versions/{2**64 - 1 - version:020d}.manifest")
    path.write_bytes(content)
    TableVersion.objects.create(
        table=world.mine, version=version, manifest_path=str(path).lstrip("/"), manifest_size=1
    )
    lance_datasets.clear_caches()


ROWS = stream(pa.table({"id": [9], "name": ["z"]}))
USES: dict[str, tuple[str, Any]] = {
    "describe": ("describe", {"load_detailed_metadata": True}),
    "count_rows": ("count_rows", {}),
    "count_rows where": ("count_rows", {"predicate": "id > 0"}),
    "query": ("query", {"k": 10, "vector": {}}),
    "explain_plan": ("explain_plan", {"query": {"k": 1, "vector": {}}}),
    "analyze_plan": ("analyze_plan", {"query": {"k": 1, "vector": {}}}),
    "stats": ("stats", {}),
    "index list": ("index/list", {}),
    "insert": ("insert", ROWS),
    "overwrite": ("insert?mode=overwrite", ROWS),
    "merge_insert": ("merge_insert?on=id&when_matched_update_all=true", ROWS),
    "update": ("update", {"updates": [["name", "'q'"]]}),
    "delete": ("delete", {"predicate": "id = 4"}),
    "create index": ("create_scalar_index", {"column": "id", "index_type": "BTREE"}),
    "add columns": ("add_columns", {"new_columns": [{"name": "n", "expression": "id + 1"}]}),
    "drop columns": ("drop_columns", {"columns": ["name"]}),
    "restore": ("restore", {"version": NEXT}),
    "tag": ("tags/create", {"tag": "v", "version": NEXT}),
    "branch": ("branches/create", {"name": "b", "from_version": NEXT}),
    "backfill": ("backfill_column", {"column": "c"}),
    "view": (
        "../../materialized_view/mine$v/create",
        {
            "kind": "query",
            "source_query": json.dumps({"source": list(MINE), "columns": ["id"]}),
            "output_schema": encoded_schema(pa.schema([pa.field("id", pa.int64())])),
        },
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_operation_on_a_version_touches_foreign_files(world, attack):
    """Requests, then every kind of job, measurement, and repair."""
    _enter(world, ATTACKS[attack](world))
    before = [files(canary) for canary in world.canaries]
    faults = []
    with watched(*world.canaries) as touched:
        for name, (path, body) in USES.items():
            content = {"raw": body} if isinstance(body, bytes) else {"body": body}
            answer = Lance(KEY).call("POST", f"/v1/table/mine$t/{path}", **content)
            if not 400 <= answer.status_code < 500:
                faults.append((name, answer.status_code, answer.content[:300]))
        jobs = _run_jobs(world)
        with pytest.raises(InvalidInput):
            measurements.measure(actor=SYSTEM, table=MINE)
        lance_repair.repair(actor=SYSTEM, table=MINE, is_dry_run=True)
    assert faults == []
    assert touched.events == []
    assert JobStatus.SUCCEEDED not in [
        job.status for job in jobs if job.kind not in {"clean_up", "remove_orphans"}
    ]
    assert [files(canary) for canary in world.canaries] == before
    for victim in world.victims.values():
        assert FileReference.objects.filter(source=victim).count() == 0


def _run_jobs(world: World, table: tuple[str, ...] = MINE) -> list[Job]:
    jobs = []
    for kind in (
        "compact",
        "clean_up",
        "remove_orphans",
        "optimize_indexes",
        "rebuild_indexes",
        "create_indexes",
        "measure_recall",
    ):
        parameters = {"policy": {"keep_for": 0, "keep_versions": 1, "orphan_age": 0}}
        start = job_operations.StartMaintenance(
            table=table, kind_of_job=kind, parameters=parameters
        )
        job = commit([start], actor=access.on_behalf_of("who")).results[0]
        job_runner.run_job(job.pk)
        job.refresh_from_db()
        jobs.append(job)
    return jobs


# --- links in the table's own directory ----------------------------------------------------------


def _link(name: str, target: Callable[[World], str]) -> Callable[[World], None]:
    def make(world: World) -> None:
        path = Path(world.mine.location) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            path.rename(f"{path}.away")
        path.unlink(missing_ok=True)
        path.symlink_to(target(world))

    return make


def _hidden(directory: str) -> Callable[[World], str]:
    return lambda world: f"{world.victims['hidden'].location}/{directory}"


def _data_file_linked(target: Callable[[World], str]) -> Callable[[World], None]:
    def make(world: World) -> None:
        for path in list(Path(f"{world.mine.location}/data").iterdir()):
            path.unlink()
            path.symlink_to(target(world))

    return make


def _data_file_piped(world: World) -> None:
    for path in list(Path(f"{world.mine.location}/data").iterdir()):
        path.unlink()
        os.mkfifo(path)


def _newest_manifest_linked(world: World) -> None:
    path = min(Path(f"{world.mine.location}/_versions").glob("*.manifest"))
    path.unlink()
    (target,) = Path(f"{world.victims['hidden'].location}/_versions").glob("*.manifest")
    path.symlink_to(target)


LINKS: dict[str, Callable[[World], None]] = {
    "data file to a hidden one": _data_file_linked(_hidden_file),
    "data file to a secret": _data_file_linked(lambda world: str(world.secret)),
    "data file to a device": _data_file_linked(lambda _: "/dev/zero"),
    "data file is a pipe": _data_file_piped,
    "newest manifest": _newest_manifest_linked,
    "data": _link("data", _hidden("data")),
    "data/more": _link("data/more", _hidden("data")),
    "data of nobody": _link("data", lambda world: str(world.secret.parent)),
    "_versions": _link("_versions", _hidden("_versions")),
    "_deletions": _link("_deletions", _hidden("")),
    "_indices": _link("_indices", _hidden("")),
    "_indices/x": _link("_indices/x", _hidden("data")),
    "_transactions": _link("_transactions", _hidden("_transactions")),
    "_refs": _link("_refs", lambda world: str(world.secret.parent)),
    "_refs/tags": _link("_refs/tags", lambda world: str(world.secret.parent)),
    "a tag": _link("_refs/tags/v.json", lambda world: str(world.secret)),
    "a branch": _link("_refs/branches/b.json", lambda world: str(world.secret)),
    "tree": _link("tree", _hidden("")),
    "tree/b": _link("tree/b", _hidden("")),
}
MORE_USES: dict[str, tuple[str, Any]] = {
    "list tags": ("tags/list", {}),
    "tag 1": ("tags/create", {"tag": "w", "version": 1}),
    "delete tag": ("tags/delete", {"tag": "v"}),
    "list branches": ("branches/list", {}),
    "branch 1": ("branches/create", {"name": "b", "from_version": 1}),
    "delete branch": ("branches/delete", {"name": "b"}),
    "versions": ("version/list", {}),
    "version": ("version/describe", {"version": 1}),
    "delete versions": ("version/delete", {"ranges": [{"start_version": 1, "end_version": 2}]}),
}


@pytest.mark.parametrize("link", LINKS)
def test_no_link_in_a_table_is_followed(world, link):
    LINKS[link](world)
    lance_datasets.clear_caches()
    before = [files(canary) for canary in world.canaries]
    faults = []
    with watched(*world.canaries) as touched:
        for name, (path, body) in (USES | MORE_USES).items():
            content = {"raw": body} if isinstance(body, bytes) else {"body": body}
            answer = Lance(KEY).call("POST", f"/v1/table/mine$t/{path}", **content)
            if answer.status_code >= 500:
                faults.append((name, answer.status_code, answer.content[:300]))
        _run_jobs(world)
        lance_versions.settle_pending()
        lance_repair.repair(actor=SYSTEM, table=MINE, is_dry_run=True)
        Lance(KEY).call("POST", "/v1/table/mine$t/deregister", {})
        Lance(KEY).call("POST", "/v1/table/mine$u/register", {"location": world.mine.location})
    assert touched.events == []
    assert [files(canary) for canary in world.canaries] == before
    assert faults == []


def test_the_other_name_of_a_manifest_is_not_opened(world):
    """A version is recorded with its old name. Later, its new name, which Lance prefers, is a link."""
    versions = Path(f"{world.mine.location}/_versions")
    entered = versions / f"{NEXT}.manifest"
    entered.write_bytes(_real(world))
    path, body = WAYS["create"](str(entered).lstrip("/"))
    assert Lance(KEY).call("POST", path, body).status_code == 200
    lance_datasets.clear_caches()
    manifest = _hidden_rows(world)
    (versions / f"{2**64 - 1 - NEXT:020d}.manifest").write_bytes(manifest)
    with watched(*world.canaries) as touched:
        for path, body in (
            ("count_rows", {}),
            ("query", {"k": 10, "vector": {}}),
            ("update", {"updates": [["name", "'q'"]]}),
            ("restore", {"version": NEXT}),
        ):
            answer = Lance(KEY).call("POST", f"/v1/table/mine$t/{path}", body)
            assert answer.status_code == 200, (path, answer.content)
        _run_jobs(world)
    assert touched.events == []


# --- readable files of others --------------------------------------------------------------------


def _read(client: Lance) -> tuple[int, Any]:
    answer = client.call("POST", "/v1/table/mine$t/count_rows", {})
    return answer.status_code, json.loads(answer.content)


def test_a_clone_requires_that_its_writer_may_read_the_source(world):
    """Readers of the clone may read the source as long as the clone's writer may."""
    hidden = world.victims["hidden"]
    requester = Principal.objects.get(name="who")
    grant = requester.grants.create(mask=closure(Privilege.READ).value, namespace=hidden.namespace)
    staged = world.stage(ATTACKS["clone of a hidden table"](world))
    Lance(KEY).post("/v1/table/mine$t/version/create", _body(str(staged)))
    reference = FileReference.objects.get()
    assert (reference.table_id, reference.source_id) == (world.mine.pk, hidden.pk)
    assert reference.principal == "who"
    with watched(hidden.location) as touched:
        assert _read(Lance(KEY)) == (200, 2)
        answer = Lance(KEY).call("POST", "/v1/table/mine$t/query", {"k": 9, "vector": {}})
        rows = pa.ipc.open_file(answer.content).read_all()
    assert rows.column("name").to_pylist() == ["secret", "secret"]
    assert (
        "open" in {event for _, event in touched.events}
    ) is True  # the oracle detects the reads
    # Another principal may read the clone but not browse the source.
    other = principal("other-reader")
    ApiKey.objects.create(name="other", principal=other, digest=credentials.key_digest("mnd_other"))
    other.grants.create(mask=closure(Privilege.READ).value, table=world.mine)
    assert _read(Lance("mnd_other")) == (200, 2)
    # When the writer loses the privilege, all readers that depended on it lose access.
    grant.delete()
    known_keys.forget_keys()
    lance_datasets.answers.clear()
    for key in (KEY, "mnd_other"):
        with watched(hidden.location) as touched:
            status, answer = _read(Lance(key))
        assert (status, answer["code"], touched.events) == (400, 13, [])
        assert "does not belong to table 'mine.t'" in answer["error"]


def test_a_source_keeps_files_needed_by_its_clone(world):
    hidden = world.victims["hidden"]
    requester = Principal.objects.get(name="who")
    requester.grants.create(mask=closure(Privilege.READ).value, namespace=hidden.namespace)
    staged = world.stage(ATTACKS["clone of a hidden table"](world))
    Lance(KEY).post("/v1/table/mine$t/version/create", _body(str(staged)))
    name = ("secretive", "hidden")
    for number in (1, 2, 3):
        rows = pa.table({"id": [number], "name": ["new"]})
        lance_data.insert(actor=SYSTEM, table=name, data=rows.to_reader(), overwrite=True)
    lance_versions.settle_pending()
    TableVersion.objects.filter(table=hidden).update(created_at="2026-01-01T00:00Z")
    for kind in ("clean_up", "remove_orphans"):
        parameters = {"policy": {"keep_for": 0, "keep_versions": 1, "orphan_age": 0}}
        start = job_operations.StartMaintenance(table=name, kind_of_job=kind, parameters=parameters)
        job = commit([start], actor=SYSTEM).results[0]
        job_runner.run_job(job.pk)
        job.refresh_from_db()
        assert job.status == JobStatus.SUCCEEDED
        if kind == "clean_up":
            assert job.error == "1 versions retained: 1 other table refers to their files"
    versions = TableVersion.objects.visible().filter(table=hidden).values_list("version", flat=True)
    assert sorted(versions) == [1, 4]
    assert _read(Lance(KEY)) == (200, 2)


@pytest.fixture
def registered_again(world) -> Table:
    """The source of a clone, after it was deregistered and registered at the same location again."""
    hidden = world.victims["hidden"]
    requester = Principal.objects.get(name="who")
    requester.grants.create(mask=closure(Privilege.READ).value, namespace=hidden.namespace)
    staged = world.stage(ATTACKS["clone of a hidden table"](world))
    Lance(KEY).post("/v1/table/mine$t/version/create", _body(str(staged)))
    name = ("secretive", "hidden")
    commit([table_operations.DeregisterTable(table=name)], actor=SYSTEM)
    register = registration_operations.RegisterTable(table=name, location=hidden.location)
    commit([register], actor=SYSTEM)
    return Table.objects.named(name).get()


def _needed(table: Table) -> NeededFiles:
    needed = NeededFiles(table)
    needed.update()
    return needed


def test_a_source_that_is_registered_again_keeps_files_needed_by_its_clone(world, registered_again):
    needed = _needed(registered_again)
    (data,) = Path(registered_again.location).glob("data/*.lance")
    assert needed.needs(str(data))


def test_a_clone_can_be_written_after_its_source_is_registered_again(world, registered_again):
    rows = stream(pa.table({"id": [9], "name": ["i"]}))
    answer = Lance(KEY).call("POST", "/v1/table/mine$t/insert", raw=rows)
    assert answer.status_code == 200, answer.content
    assert _read(Lance(KEY)) == (200, 3)


def test_a_source_keeps_the_blobs_and_indexes_of_its_clone(world):
    """A manifest does not name the blobs beside a data file and, if it is old, the files of an
    index."""
    location = _blob_table(world)
    lance.dataset(str(location)).create_scalar_index("id", "BTREE")
    Lance(KEY).post("/v1/table/mine$b/deregister", {})
    Lance(KEY).post("/v1/table/mine$b/register", {"location": str(location)})
    source = Table.objects.named(("mine", "b")).get()
    staged = world.stage(attacks.clone_of(source, NEXT, world.clones / "blobs"))
    Lance(KEY).post("/v1/table/mine$t/version/create", _body(str(staged)))
    needed = _needed(source)
    beside = [*location.glob("data/*/*.blob"), *location.glob("_indices/*/*")]
    assert len(beside) > 2
    assert [path for path in beside if not needed.needs(str(path))] == []
    assert not needed.needs(f"{location}/data/other/1.blob")


# --- external blobs ------------------------------------------------------------------------------


def test_a_source_keeps_files_that_a_clone_names_by_a_link(world):
    hidden = world.victims["hidden"]
    requester = Principal.objects.get(name="who")
    requester.grants.create(mask=closure(Privilege.READ).value, namespace=hidden.namespace)
    link = Path(hidden.location).with_name("alias")
    link.symlink_to(hidden.location)
    manifest = attacks.edited(_clone("hidden")(world), [18, 4], attacks.always(str(link)))
    Lance(KEY).post("/v1/table/mine$t/version/create", _body(str(world.stage(manifest))))
    assert FileReference.objects.get().source_id == hidden.pk
    needed = _needed(hidden)
    (data,) = Path(hidden.location).glob("data/*.lance")
    assert needed.needs(str(data))


def test_external_blobs_are_never_opened(world):
    """This applies to blobs in a request, and to blobs that a client wrote to its own storage."""
    uri = world.secret.as_uri()
    rows = pa.table({"id": [1], "b": lance.blob_array([uri])})
    with watched(*world.canaries) as touched:
        for path in ("mine$b/create", "mine$t/insert"):
            refused = Lance(KEY).call("POST", f"/v1/table/{path}", raw=stream(rows))
            assert 400 <= refused.status_code < 500, refused.content
    assert touched.events == []
    location = Path(world.mine.location).parent / "blobs"
    for mode in ("create", "append"):
        lance.write_dataset(
            rows,
            str(location),
            mode=mode,
            data_storage_version="2.2",
            allow_external_blob_outside_bases=True,
        )
    Lance(KEY).post("/v1/table/mine$b/register", {"location": str(location)})
    with watched(*world.canaries) as touched:
        for name, (path, body) in USES.items():
            content = {"raw": body} if isinstance(body, bytes) else {"body": body}
            answer = Lance(KEY).call("POST", f"/v1/table/mine$b/{path}", **content)
            assert answer.status_code < 500, (name, answer.content)
        _run_jobs(world, table=("mine", "b"))
    assert touched.events == []


def _blob_table(world: World) -> Path:
    """A table of the attacker with blobs beside its data files, in two fragments."""
    rows = pa.table({"id": [1], "b": lance.blob_array([os.urandom(200_000)])})
    location = Path(world.mine.location).parent / "blobs"
    for mode in ("create", "append"):
        lance.write_dataset(rows, str(location), mode=mode, data_storage_version="2.2")
    Lance(KEY).post("/v1/table/mine$b/register", {"location": str(location)})
    return location


@pytest.mark.parametrize("moment", ["before the first read", "after a read"])
def test_blobs_that_are_links_are_never_opened(world, moment):
    location = _blob_table(world)
    if moment == "after a read":
        assert Lance(KEY).call("POST", "/v1/table/mine$b/count_rows", {}).status_code == 200
    blobs = list(location.glob("data/*/*.blob"))
    assert len(blobs) == 2
    for path in blobs:
        path.unlink()
        path.symlink_to(_hidden_file(world))
    before = files(str(location))
    with watched(*world.canaries) as touched:
        for name, (path, body) in USES.items():
            content = {"raw": body} if isinstance(body, bytes) else {"body": body}
            answer = Lance(KEY).call("POST", f"/v1/table/mine$b/{path}", **content)
            assert 400 <= answer.status_code < 500, name
        jobs = _run_jobs(world, table=("mine", "b"))
    assert touched.events == []
    assert {job.status for job in jobs if job.kind == "compact"} == {JobStatus.FAILED}
    assert files(str(location)) == before


LATE_LINKS = {
    name: LINKS[name] for name in ("data file to a hidden one", "data file is a pipe", "data")
}


@pytest.mark.parametrize("link", LATE_LINKS)
def test_a_link_created_after_a_read_is_not_followed(world, link):
    """A file is checked again when its directory has changed."""
    for _ in range(2):  # the second request uses the open dataset
        assert _read(Lance(KEY)) == (200, 4)
    rows = stream(pa.table({"id": [5], "name": ["e"]}))  # a writer has it open
    Lance(KEY).call("POST", "/v1/table/mine$t/insert", raw=rows)
    assert _read(Lance(KEY)) == (200, 5)
    LATE_LINKS[link](world)
    lance_datasets.answers.clear()
    ledger = snapshot()
    with watched(*world.canaries) as touched:
        for path, body in (
            ("query", {"k": 10, "vector": {}}),
            ("count_rows", {"predicate": "id > 0"}),
            ("update", {"updates": [["name", "'q'"]]}),
            ("delete", {"predicate": "name = 'd'"}),
        ):
            answer = Lance(KEY).call("POST", f"/v1/table/mine$t/{path}", body)
            assert answer.status_code == 400, (path, answer.content)
    assert touched.events == []
    assert snapshot() == ledger


# --- base paths that no file of a version is in ---------------------------------------------------


def _indexed_twice(world: World) -> tuple[bytes, bytes]:
    """Manifests that differ in the index section only: of an own index, and of one in a hidden table.

    Lance reads the section when a query needs it, as it is too far from the end of the file to be read with
    the message.
    """
    hidden = world.victims["hidden"].location
    manifest, directory = attacks.indexed(world.mine, NEXT, world.clones / "indexed")
    for location in (hidden, world.mine.location):
        shutil.copytree(directory, Path(location) / "_indices" / directory.name)
    own, evil = (
        attacks.with_field(
            attacks.padded(attacks.edited(manifest, [1], change, index=True), 200_000),
            [],
            attacks.base_path(hidden),
        )
        for change in (lambda index: index, _in_base)
    )
    return own, evil


def _replace_newest(world: World, content: bytes) -> None:
    path = min(Path(f"{world.mine.location}/_versions").glob("*.manifest"))
    path.with_suffix(".new").write_bytes(content)
    path.with_suffix(".new").rename(path)


def test_an_index_section_that_is_replaced_later_leads_to_no_hidden_index(world):
    own, evil = _indexed_twice(world)
    _enter(world, own)
    with watched(*world.canaries) as touched:
        assert Lance(KEY).call("POST", "/v1/table/mine$t/count_rows", {}).status_code == 400
        _replace_newest(world, evil)
        for path, body in (
            ("count_rows", {"predicate": "id > 0"}),
            ("query", {"k": 10, "vector": {}, "filter": "id > 0"}),
            ("update", {"updates": [["name", "'q'"]], "predicate": "id > 0"}),
        ):
            answer = Lance(KEY).call("POST", f"/v1/table/mine$t/{path}", body)
            assert answer.status_code == 400, (path, answer.content)
    assert touched.events == []
    assert not FileReference.objects.exists()


@pytest.mark.parametrize("link", ["_versions", "the manifest"])
def test_indexes_of_an_open_table_are_read_from_no_linked_manifest(world, link):
    """Lance reads the list of indexes when a query needs them, after the table was opened."""
    manifest, directory = attacks.indexed(world.mine, NEXT, world.clones / "indexed")
    shutil.copytree(directory, Path(world.mine.location) / "_indices" / directory.name)
    _enter(world, attacks.padded(manifest, 200_000))
    assert Lance(KEY).call("POST", "/v1/table/mine$t/count_rows", {}).status_code == 200
    path = min(Path(f"{world.mine.location}/_versions").glob("*.manifest"))
    foreign = Path(world.victims["hidden"].location) / "_versions" / path.name
    shutil.copyfile(path, foreign)
    replaced, target = (path, foreign) if link == "the manifest" else (path.parent, foreign.parent)
    replaced.rename(f"{replaced}.away")
    replaced.symlink_to(target)
    with watched(*world.canaries) as touched:
        for route, body in (
            ("count_rows", {"predicate": "id > 0"}),
            ("index/list", {}),
            ("query", {"k": 10, "vector": {}, "filter": "id > 0"}),
        ):
            answer = Lance(KEY).call("POST", f"/v1/table/mine$t/{route}", body)
            assert answer.status_code == 400, (route, answer.content)
    assert touched.events == []


def test_a_table_that_needs_its_source_no_longer_stays_readable_without_it(world):
    hidden = world.victims["hidden"]
    requester = Principal.objects.get(name="who")
    grant = requester.grants.create(mask=closure(Privilege.READ).value, namespace=hidden.namespace)
    manifest = attacks.with_added_base(_real(world), hidden.location)
    staged = world.stage(manifest)
    Lance(KEY).post("/v1/table/mine$t/version/create", _body(str(staged)))
    grant.delete()
    assert _read(Lance(KEY)) == (200, 4)
    commit([table_operations.DropTable(table=("secretive", "hidden"))], actor=SYSTEM)
    Job.objects.create(table=hidden, kind="purge_table", status=JobStatus.SUCCEEDED)
    lance_datasets.clear_caches()
    lance_files._checked.clear()
    assert _read(Lance(KEY)) == (200, 4)


# --- jobs of columns and views -------------------------------------------------------------------


def _lead_to_hidden(world: World) -> None:
    """Record a version, as an older release did, whose data files are in a hidden table."""
    last = TableVersion.objects.filter(table=world.mine).latest("version").version
    lance_versions_module.settle_pending()
    manifest = attacks.with_field(
        attacks.manifest_of(world.mine), [2, 2], attacks.number_field(7, 0)
    )
    base = attacks.base_path(world.victims["hidden"].location)
    manifest = attacks.lance_manifest.with_version(attacks.with_field(manifest, [], base), last + 1)
    _enter(world, manifest, last + 1)


@pytest.mark.parametrize("change", ["links", "base path"])
def test_jobs_of_columns_and_views_touch_no_foreign_files(world, change):
    """The jobs are requested while the table is valid. When they run, it refers to foreign files."""
    column = {"name": "c", "computed": "id * 2"}
    Lance(KEY).post("/v1/table/mine$t/add_columns", {"new_columns": [column]})
    body = USES["view"][1]
    Lance(KEY).post("/v1/materialized_view/mine$v/create", body, status=201)
    jobs = [
        Job.objects.get(transaction=Lance(KEY).post(path, body, status=202)["job_id"])
        for path, body in (
            ("/v1/table/mine$t/backfill_column", {"column": "c"}),
            ("/v1/table/mine$t/backfill_column", {"column": "c", "read_version": 3}),
            ("/v1/materialized_view/mine$v/refresh", {}),
        )
    ]
    if change == "links":
        _data_file_linked(_hidden_file)(world)
    else:
        _lead_to_hidden(world)
    before = list(TableVersion.objects.order_by("pk").values_list("pk", "manifest_path"))
    with watched(*world.canaries) as touched:
        for job in jobs:
            maintenance_job_runner.run_job(job.pk)
            job.refresh_from_db()
    assert [(job.kind, job.status) for job in jobs] == [
        (job.kind, JobStatus.FAILED) for job in jobs
    ]
    assert ["does not belong to table 'mine.t'" in job.error for job in jobs] == [True, True, False]
    assert (
        jobs[2].error == "The source of the view refers to files that may not be read for the view"
    )
    assert touched.events == []
    assert list(TableVersion.objects.order_by("pk").values_list("pk", "manifest_path")) == before


# --- versions that another principal committed ---------------------------------------------------


def _replace_manifest(world: World) -> None:
    """The newest version leads to the rows of a hidden table."""
    path = min(Path(f"{world.mine.location}/_versions").glob("*.manifest"))
    path.write_bytes(_clone("hidden")(world))


@pytest.mark.parametrize("change", [_replace_manifest, _data_file_linked(_hidden_file)])
def test_the_rights_of_a_committer_do_not_open_what_others_put_into_its_version(world, change):
    """An administrator commits a version of the attacker's table, and the attacker changes its files."""
    Principal.objects.create(name="admin", kind="user", level="admin")
    lance_data.insert(
        actor=access.named("admin"),
        table=MINE,
        data=pa.table({"id": [5], "name": ["e"]}).to_reader(),
    )
    lance_versions.settle_pending()
    change(world)
    lance_datasets.clear_caches()
    lance_files._checked.clear()
    with watched(*world.canaries) as touched:
        for path, body in (
            ("query", {"k": 10, "vector": {}}),
            ("update", {"updates": [["name", "'q'"]]}),
        ):
            answer = Lance(KEY).call("POST", f"/v1/table/mine$t/{path}", body)
            assert answer.status_code == 400, (path, answer.content)
    assert touched.events == []
    assert not FileReference.objects.exists()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("insert", stream(pa.table({"id": [9], "name": ["i"]}))),
        ("update", {"updates": [["name", "'q'"]], "predicate": "id = 7"}),
        ("create_scalar_index", {"column": "id", "index_type": "BTREE"}),
    ],
)
def test_a_writer_does_not_commit_references_that_others_put_into_a_version(world, path, body):
    """An administrator writes to a table whose newest version was replaced with one of a hidden table."""
    admin = principal("admin")
    Principal.objects.filter(pk=admin.pk).update(level="admin")
    ApiKey.objects.create(name="admin", principal=admin, digest=credentials.key_digest("mnd_admin"))
    _enter(world, _clone("hidden")(world))
    with watched(*world.canaries) as touched:
        content = {"raw": body} if isinstance(body, bytes) else {"body": body}
        answer = Lance("mnd_admin").call("POST", f"/v1/table/mine$t/{path}", **content)
        assert answer.status_code == 400, answer.content
    assert touched.events == []
    assert "does not belong to table 'mine.t'" in json.loads(answer.content)["error"]
    assert not FileReference.objects.exists()


def _commit_meanwhile(world: World, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Before Lance commits the next write, the attacker commits a version, and replaces its manifest."""
    run = LedgerNamespace.run

    def run_later(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(LedgerNamespace, "run", run)
        staged = world.stage(_real(world))
        Lance(KEY).post("/v1/table/mine$t/version/create", _body(str(staged)))
        lance_versions.settle_pending()
        _replace_newest(world, content)
        return run(*arguments, **options)

    monkeypatch.setattr(LedgerNamespace, "run", run_later)


def test_a_writer_does_not_commit_references_of_a_version_that_is_replaced_meanwhile(
    world, monkeypatch
):
    Principal.objects.create(name="admin", kind="user", level="admin")
    _commit_meanwhile(world, monkeypatch, _clone("hidden")(world))
    with pytest.raises(ForeignFile):
        lance_data.insert(
            actor=access.named("admin"),
            table=MINE,
            data=pa.table({"id": [5], "name": ["e"]}).to_reader(),
        )
    assert not FileReference.objects.exists()
    assert TableVersion.objects.filter(table=world.mine).latest("version").version == NEXT


READING_WRITES: dict[str, tuple[str, Any]] = {
    "update": ("update", {"updates": [["name", "concat(name, 'q')"]]}),
    "delete": ("delete", {"predicate": "name = 'd'"}),
    "merge": (
        "merge_insert?on=id&when_matched_update_all=true",
        stream(pa.table({"id": [4], "name": ["n"]})),
    ),
}


@pytest.mark.parametrize("write", READING_WRITES)
def test_work_is_not_repeated_on_an_unchecked_version(world, monkeypatch, write):
    """The version that the attacker commits meanwhile conflicts with the write, and has hidden rows."""
    copy = world.clones / "copy"
    shutil.copytree(world.mine.location, copy)
    lance.dataset(str(copy)).update({"name": "'z'"}, where="id = 4")
    shutil.copytree(
        copy / "_transactions", Path(world.mine.location) / "_transactions", dirs_exist_ok=True
    )
    manifest = attacks.lance_manifest.with_version(attacks.manifest_in(copy), NEXT)
    manifest = attacks.with_field(manifest, [2, 2], attacks.number_field(7, 0))
    manifest = attacks.edited(manifest, [2, 2, 1], attacks.always(Path(_hidden_file(world)).name))
    manifest = attacks.edited(manifest, [2, 2], attacks.without_field(6))  # the file's size
    base = attacks.base_path(world.victims["hidden"].location)
    _commit_meanwhile(world, monkeypatch, attacks.with_field(manifest, [], base))
    path, body = READING_WRITES[write]
    content = {"raw": body} if isinstance(body, bytes) else {"body": body}
    with watched(*world.canaries) as touched:
        answer = Lance(KEY).call("POST", f"/v1/table/mine$t/{path}", **content)
    assert touched.events == []
    assert answer.status_code == 400, answer.content
    assert "does not belong to table 'mine.t'" in json.loads(answer.content)["error"]


def test_a_write_of_the_server_renews_no_reference(world):
    """The writer of a clone loses access to the source, and an administrator writes to the clone."""
    Principal.objects.create(name="admin", kind="user", level="admin")
    requester = Principal.objects.get(name="who")
    grant = requester.grants.create(
        mask=closure(Privilege.READ).value, namespace=world.victims["hidden"].namespace
    )
    staged = world.stage(ATTACKS["clone of a hidden table"](world))
    Lance(KEY).post("/v1/table/mine$t/version/create", _body(str(staged)))
    grant.delete()
    assert _read(Lance(KEY))[0] == 400
    rows = pa.table({"id": [5], "name": ["e"]}).to_reader()
    lance_data.insert(actor=access.named("admin"), table=MINE, data=rows)
    assert _read(Lance(KEY))[0] == 400


VIEW = ("mine", "v")


@pytest.mark.parametrize(
    "start",
    [
        job_operations.StartMaintenance(table=MINE, kind_of_job="compact"),
        job_operations.StartRefresh(table=VIEW),
    ],
    ids=["compact", "refresh"],
)
def test_a_job_opens_no_files_that_only_its_requester_may_read(world, start):
    """The writer of a clone loses access to the source, and an administrator starts the job.

    The readers of the table would get the rows of the source in new files.
    """
    Principal.objects.create(name="admin", kind="user", level="admin")
    admin = access.named("admin")
    hidden = world.victims["hidden"]
    requester = Principal.objects.get(name="who")
    grant = requester.grants.create(mask=closure(Privilege.READ).value, namespace=hidden.namespace)
    staged = world.stage(ATTACKS["clone of a hidden table"](world))
    Lance(KEY).post("/v1/table/mine$t/version/create", _body(str(staged)))
    Lance(KEY).call(
        "POST", "/v1/table/mine$t/insert", raw=stream(pa.table({"id": [4], "name": ["d"]}))
    )
    materialized_views.create_view(
        actor=admin,
        table=VIEW,
        kind="query",
        source_query=json.dumps({"source": list(MINE), "columns": ["name"]}),
        output_schema=encoded_schema(pa.schema([pa.field("name", pa.string())])),
    )
    grant.delete()
    lance_datasets.clear_caches()
    job = commit([start], actor=admin).results[0]
    with watched(hidden.location) as touched:
        job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (job.status, touched.events) == (JobStatus.FAILED, [])
    assert "may not be read for" in job.error


def test_a_manifest_that_is_replaced_with_one_of_the_same_time_is_checked_again(world):
    """Only the base path of the version differs, by one letter."""
    own = world.mine.location.encode()
    content = attacks.with_field(_real(world), [], attacks.base_path(world.mine.location))
    staged = world.stage(content)
    Lance(KEY).post("/v1/table/mine$t/version/create", _body(str(staged)))
    lance_versions.settle_pending()
    path = min(Path(f"{world.mine.location}/_versions").glob("*.manifest"))
    snapshot = lance_datasets.find_snapshot(actor=SYSTEM, table=MINE)
    lance_files.check(snapshot)
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(own, own[:-1] + b"~"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(InvalidManifestPath):
        lance_files.check(snapshot)


class _LocalExecutors:
    """Spark's context, whose executors are this process."""

    defaultParallelism = 1  # noqa: N815 -- as Spark names it

    def __init__(self) -> None:
        self.sparkContext = self
        self._rows: list[str] = []

    def parallelize(self, rows: list[str], _partitions: int) -> "_LocalExecutors":
        executors = _LocalExecutors()
        executors._rows = rows
        return executors

    def map(self, function: Callable[[str], str]) -> "_LocalExecutors":
        return self.parallelize([function(row) for row in self._rows], 1)

    def collect(self) -> list[str]:
        return self._rows

    def broadcast(self, value: bytes) -> Any:
        return SimpleNamespace(value=value, destroy=lambda: None)


def test_executors_do_not_open_what_was_put_into_the_version_after_its_check(world, monkeypatch):
    """The files of the version have a base path, which is the table's own when the job checks it."""
    hidden = world.victims["hidden"].location
    shutil.copytree(f"{world.mine.location}/data", f"{hidden}/data", dirs_exist_ok=True)
    evil = _rebased(lambda _: hidden)(world)
    checked = _rebased(lambda _: world.mine.location)(world)
    _enter(world, checked)
    lance_versions.settle_pending()
    parts: list[Any] = []

    def run(
        _job: Job, _script: str, request: Any, _report: Any, *, on_part: Any, **_: Any
    ) -> dict[str, Any]:
        _replace_newest(world, evil)

        def emit(event: str, **facts: Any) -> None:
            if event == "part":
                parts.append(facts)
                on_part(facts["data"])

        monkeypatch.setattr(lance_compact, "emit", emit)
        return lance_compact.run(json.loads(json.dumps(request)), _LocalExecutors())

    parameters = {"policy": {"spark_above": 0}}
    start = job_operations.StartMaintenance(
        table=MINE, kind_of_job="compact", parameters=parameters
    )
    job = commit([start], actor=access.on_behalf_of("who")).results[0]
    with watched(*world.canaries) as touched:
        job_runner.run_job(job.pk, run)
    job.refresh_from_db()
    assert touched.events == []
    assert len(parts) == 1
    assert (job.status, "was replaced" in job.error) == (JobStatus.FAILED, True)


INSERT = stream(pa.table({"id": [5], "name": ["e"]}))


def test_no_figures_of_hidden_files_stay_behind_a_refused_write(world, monkeypatch):
    """Lance continues from the version that the attacker commits meanwhile, and counts rows in its files."""
    manifest = attacks.edited(_hidden_rows(world), [2], attacks.without_field(4))  # their number
    manifest = attacks.edited(manifest, [2, 2], attacks.without_field(6))  # the file's size
    manifest = attacks.edited(manifest, [], attacks.without_field(13))  # Lance's version
    _commit_meanwhile(world, monkeypatch, manifest)
    answer = Lance(KEY).call("POST", "/v1/table/mine$t/insert", raw=INSERT)
    assert answer.status_code == 400, answer.content
    assert list(Path(world.mine.location).rglob("*.manifest-*")) == []
    assert TableVersion.objects.filter(table=world.mine).latest("version").version == NEXT


@pytest.mark.parametrize("scheme", ["V1", "V2"])
@pytest.mark.parametrize("branch", ["", "dev"])
def test_a_client_does_not_commit_references_that_others_put_into_the_version_before(
    world, branch, scheme
):
    """An administrator's own client continues from a replaced manifest, and so keeps its base paths."""
    admin = principal("admin")
    Principal.objects.filter(pk=admin.pk).update(level="admin")
    ApiKey.objects.create(name="admin", principal=admin, digest=credentials.key_digest("mnd_admin"))
    versions = Path(f"{world.mine.location}/_versions")
    for path in versions.glob("*.manifest"):
        version = 2**64 - 1 - int(path.stem)
        evil = attacks.clone_of(world.victims["hidden"], version, world.clones / str(version))
        path.unlink()
        name = f"{version}.manifest" if scheme == "V1" else f"{2**64 - 1 - version:020d}.manifest"
        (versions / name).write_bytes(evil)
    content = attacks.edited(_clone("hidden")(world), [], attacks.without_field(23))  # of a clone
    staged = world.stage(content)
    body = _body(str(staged))
    if branch:
        content = attacks.with_field(content, [], attacks.text_field(20, branch))
        directory = Path(f"{world.mine.location}/tree/{branch}/_versions")
        directory.mkdir(parents=True)
        staged = directory / staged.name
        staged.write_bytes(content)
        body = _body(str(staged)) | {"branch": branch}
    answer = Lance("mnd_admin").call("POST", "/v1/table/mine$t/version/create", body)
    assert answer.status_code == 400, answer.content
    assert "does not belong to table 'mine.t'" in answer.json()["error"]
    assert not FileReference.objects.exists()
