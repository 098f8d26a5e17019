"""The client of an administrator continues from versions that others have replaced, and commits what they name.

It takes over the base paths of the version that it restores, or of the branch from which it makes another one.
The rights of the administrator open none of them.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import lance
import pytest
from lance.dataset import DatasetBasePath

from catalog.access import credentials
from catalog.formats.lance import history
from catalog.formats.lance import manifest as lance_manifest
from catalog.models import ApiKey, FileReference, Principal, Table
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.ledger import files as lance_files
from catalog.services.lance.ledger import versions as lance_versions
from tests.access.protocols import KEY, principal
from tests.api.client import Lance
from tests.security import lance_attacks as attacks
from tests.security.inotify import watched
from tests.security.test_foreign_files_lance import NEXT, World, _body, _real, world

__all__ = ["world"]

pytestmark = pytest.mark.django_db
CREATE = "/v1/table/mine$t/version/create"


@pytest.fixture
def admin(world: World) -> Lance:
    row = principal("admin")
    Principal.objects.filter(pk=row.pk).update(level="admin")
    ApiKey.objects.create(name="admin", principal=row, digest=credentials.key_digest("mnd_admin"))
    return Lance("mnd_admin")


def _manifest(directory: Path, version: int) -> Path:
    return directory / "_versions" / f"{2**64 - 1 - version:020d}.manifest"


def _copy(world: World) -> Path:
    """A copy of the attacker's directory, in which the client works before it commits."""
    copy = world.clones / "copy"
    shutil.copytree(world.mine.location, copy)
    return copy


def _stage(world: World, written: Path, branch: str = "") -> dict[str, object]:
    """Stage a manifest that the client wrote; returns the body of its request."""
    directory = Path(world.mine.location) / (f"tree/{branch}" if branch else "") / "_versions"
    directory.mkdir(parents=True, exist_ok=True)
    staged = directory / f"{written.name}-client"
    content = written.read_bytes()
    if branch:  # its base paths are those of the table
        copy, own = str(world.clones / "copy").encode(), world.mine.location.encode()
        content = attacks.edited(content, [18, 4], lambda path: path.replace(copy, own))
    staged.write_bytes(content)
    version = 2**64 - 1 - int(written.stem)
    return _body(str(staged), version) | ({"branch": branch} if branch else {})


def _restored(world: World) -> dict[str, object]:
    """An older version leads to the hidden table, and the newest one is clean."""
    evil = attacks.clone_of(world.victims["hidden"], 1, world.clones / "evil")
    _manifest(Path(world.mine.location), 1).write_bytes(evil)
    copy = _copy(world)
    lance.dataset(str(copy), version=1).restore()
    return _stage(world, _manifest(copy, NEXT))


def _branch_of_branch(world: World) -> dict[str, object]:
    """A branch leads to the hidden table, and main is clean."""
    Lance(KEY).post("/v1/table/mine$t/branches/create", {"name": "dev"})
    lance_versions.settle_pending()
    version = NEXT - 1
    evil = attacks.clone_of(world.victims["hidden"], version, world.clones / "evil")
    evil = attacks.with_field(evil, [], attacks.text_field(20, "dev"))
    _manifest(Path(f"{world.mine.location}/tree/dev"), version).write_bytes(evil)
    copy = _copy(world)
    lance.dataset(str(copy)).checkout_version(("dev", version)).create_branch("other")
    return _stage(world, _manifest(copy / "tree" / "other", version), "other")


def _tidied(world: World) -> dict[str, object]:
    """The attacker repairs the newest version before the client commits the next one."""
    newest = _manifest(Path(world.mine.location), NEXT - 1)
    clean = newest.read_bytes()
    newest.write_bytes(attacks.clone_of(world.victims["hidden"], NEXT - 1, world.clones / "evil"))
    copy = _copy(world)
    lance.dataset(str(copy)).delete("false")
    newest.write_bytes(clean)
    return _stage(world, _manifest(copy, NEXT))


@pytest.mark.parametrize("attack", [_restored, _branch_of_branch, _tidied])
def test_a_client_commits_no_base_paths_that_others_put_into_versions(
    world: World, admin: Lance, attack: Callable[[World], dict[str, object]]
):
    body = attack(world)
    staged = Path(str(body["manifest_path"]))
    hidden = world.victims["hidden"].location
    assert hidden in str(lance_manifest.read(staged.read_bytes()).head.base_paths)
    answer = admin.call("POST", CREATE, body)
    assert answer.status_code == 400, answer.content
    assert "does not belong to table 'mine.t'" in answer.json()["error"]
    assert not FileReference.objects.exists()
    with watched(*world.canaries) as touched:
        Lance(KEY).call("POST", "/v1/table/mine$t/query", {"k": 10, "vector": {}})
    assert touched.events == []


def test_a_client_adds_base_paths_that_it_may_read(world: World, admin: Lance):
    hidden = world.victims["hidden"].location
    copy = _copy(world)
    lance.dataset(str(copy)).add_bases([DatasetBasePath(hidden, name="h", is_dataset_root=True)])
    body = _stage(world, _manifest(copy, NEXT))
    Lance(KEY).refused(400, 13, "does not belong to table 'mine.t'", CREATE, body)
    admin.post(CREATE, body)
    assert FileReference.objects.get().source == world.victims["hidden"]


def test_the_base_paths_that_a_transaction_brings_in(world: World, tmp_path: Path):
    source = Path(world.mine.location)
    base = DatasetBasePath(str(tmp_path / "base"), name="b", is_dataset_root=True)
    target = tmp_path / "t"
    lance.dataset(str(source)).shallow_clone(str(target), NEXT - 1)
    lance.dataset(str(target)).add_bases([base])
    lance.dataset(str(target)).delete("false")
    added = [
        {Path(base.path).name for base in history.added_bases(path.read_bytes()).paths}
        for path in sorted((target / "_versions").glob("*.manifest"), reverse=True)
    ]
    assert added == [{source.name}, {"base"}, set()]
    assert history.added_bases(_real(world)).paths == ()


def test_an_administrator_copies_no_rows_that_others_put_into_a_version(world: World, admin: Lance):
    """The copy is in a namespace whose principals may not read the hidden table."""
    evil = attacks.clone_of(world.victims["hidden"], NEXT - 1, world.clones / "evil")
    _manifest(Path(world.mine.location), NEXT - 1).write_bytes(evil)
    lance_datasets.clear_caches()
    lance_files._checked.clear()
    answer = admin.client.post(
        "/v1/table/copy/clone",
        {"source_location": world.mine.location},
        content_type="application/json",
        headers={"x-api-key": "mnd_admin", "x-lancedb-database": "mine"},
    )
    assert answer.status_code == 400, answer.content
    assert b"does not belong to table 'mine.t'" in answer.content
    assert not Table.objects.named(("mine", "copy")).exists()
