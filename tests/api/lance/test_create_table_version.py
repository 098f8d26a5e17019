import itertools
import os
import socket
import stat
from pathlib import Path
from urllib.parse import quote

import pytest
from django.utils import timezone

from catalog.formats.lance.naming import NamingScheme
from catalog.models import AuditEvent, Table, TableState, TableVersion
from catalog.services.lance.ledger import versions as lance_versions
from catalog.storage import local_files
from tests.api.client import Lance, spell
from tests.cases import shared_cases
from tests.factories import (
    files,
    final_path,
    make_namespace,
    make_table,
    make_version,
    manifest,
    relative,
    stage,
    unchanged,
)
from tests.security import lance_attacks as attacks
from tests.security.inotify import watched

pytestmark = pytest.mark.operation("CreateTableVersion")

CREATE = "/v1/table/ws$t/version/create"


@pytest.fixture
def table(db) -> Table:
    return make_table("ws", "t")


def body(path: str | Path, version: int = 1, **more) -> dict:
    return {"id": ["ws", "t"], "version": version, "manifest_path": str(path), **more}


def test_creates_a_version(lance: Lance, table: Table):
    answer = lance.post(
        CREATE,
        body("elsewhere/1.manifest", manifest_size=461, e_tag="abc", metadata={"größe": "🧊"}),
    )
    stamp = answer["version"].pop("timestamp_millis")
    assert answer["version"] == {
        "version": 1,
        "manifest_path": "elsewhere/1.manifest",
        "manifest_size": 461,
        "e_tag": "abc",
        "metadata": {"größe": "🧊"},
    }
    row = TableVersion.objects.get()
    assert stamp == int(row.created_at.timestamp() * 1000)
    assert str(row.transaction_id) == answer["transaction_id"]
    described = lance.post("/v1/table/ws$t/version/describe", {"version": 1})
    assert described == {"version": answer["version"] | {"timestamp_millis": stamp}}
    table.refresh_from_db()
    assert table.state == TableState.LIVE
    event = AuditEvent.objects.get(action="version.create")
    assert (event.target, event.table_uuid) == ("ws.t", table.uuid)
    assert event.after == {"version": 1, "manifest_path": "elsewhere/1.manifest"}


def test_transaction_is_describable(lance: Lance, table: Table):
    answer = lance.post(CREATE, body("x/1.manifest"))
    by_id = lance.post(f"/v1/transaction/{answer['transaction_id']}/describe")
    by_version = lance.post("/v1/transaction/ws$t$1/describe", {"id": ["ws", "t", "1"]})
    assert by_id["status"] == by_version["status"] == "Succeeded"
    assert by_id["properties"]["monodon.operations"] == "CreateTableVersion"
    assert by_version["properties"]["monodon.manifest_path"] == "x/1.manifest"


def test_the_same_body_twice(lance: Lance, table: Table):
    again = body(relative(stage(table, 1)), e_tag="abc")
    first = lance.post(CREATE, again)["version"]
    lance.refused(409, 14, "Table 'ws.t' has version 1 already", CREATE, again)
    versions = lance.post("/v1/table/ws$t/version/describe", {"version": 1})["version"]
    assert versions == first


def test_a_loser_changes_neither_the_winner_nor_its_own_file(lance: Lance, table: Table):
    winner, loser = stage(table, 1, content=b"winner"), stage(table, 1, content=b"loser")
    lance.post(CREATE, body(relative(winner)))
    lance.refused(409, 14, "has version 1 already", CREATE, body(relative(loser)))
    assert final_path(table, 1).read_bytes() == manifest(1, text=b"winner")
    assert loser.read_bytes() == manifest(
        1, text=b"loser"
    )  # its writer rebases or removes the file


def test_deleted_numbers_are_not_reused(lance: Lance, table: Table):
    lance.post(CREATE, body("x/1"))
    lance.post(CREATE, body("x/2", 2))
    lance.post(
        "/v1/table/ws$t/version/delete", {"ranges": [{"start_version": 0, "end_version": 2}]}
    )
    lance.refused(409, 14, "has version 1 already", CREATE, body("x/1"))


def test_numbers_may_have_gaps_and_any_order(lance: Lance, table: Table):
    for version in (7, 0, 1_000_007, 2_000_007, 3):
        lance.post(CREATE, body(f"x/{version}", version))
    versions = lance.post("/v1/table/ws$t/version/list?descending=true")["versions"]
    assert [v["version"] for v in versions] == [2_000_007, 1_000_007, 7, 3, 0]


@pytest.mark.parametrize("start", [None, 7])
@pytest.mark.parametrize("branch", [None, "b"])
def test_a_number_far_above_the_newest_is_refused(lance: Lance, table: Table, start, branch):
    """The next writer requests the next number, which must exist."""
    more = {} if branch is None else {"branch": branch}
    if start is not None:
        lance.post(CREATE, body(f"x/{start}", start))
    newest = start or 0
    message = f"more than 1000000 above the newest version of table 'ws.t', {newest}"
    for version in (newest + 1_000_001, 2**62):
        with unchanged():
            lance.refused(400, 13, message, CREATE, body(f"x/{version}", version, **more))
    lance.post(CREATE, body("x/last", newest + 1_000_000, **more))


def test_a_deleted_number_does_not_raise_the_bound(lance: Lance, table: Table):
    for version in (1_000_000, 2_000_000):
        lance.post(CREATE, body(f"x/{version}", version))
    TableVersion.objects.filter(version=2_000_000).update(deleted_at=timezone.now())
    with unchanged():
        message = "above the newest version of table 'ws.t', 1000000"
        lance.refused(400, 13, message, CREATE, body("x/y", 2_000_001))


@shared_cases(
    ("added", "message"),
    [
        (
            attacks.number_field(9, 1 << 40),
            "it requires features that this release of Lance does not have",
        ),
        (
            attacks.number_field(10, 1 << 40),
            "it requires features that this release of Lance does not have",
        ),
        (
            attacks.number_field(10, 1 << 14),
            "its feature flags for readers and for writers contradict each other",
        ),
        (attacks.number_field(11, 2**32 - 1), "its highest fragment id is 4294967295"),
        (2 * attacks.bytes_field(2, b""), "it repeats the id of a fragment"),
        (
            attacks.number_field(11, 0) + attacks.bytes_field(2, attacks.number_field(1, 1)),
            "its highest fragment id is 1, and it states 0",
        ),
        (
            attacks.number_field(9, 2) + attacks.bytes_field(2, b""),
            "its feature flags contradict the row ids of its fragments",
        ),
    ],
)
def test_a_version_after_which_no_client_can_write_is_refused(
    lance: Lance, table: Table, added: bytes, message: str
):
    staged = stage(table, 1)
    staged.write_bytes(attacks.with_field(staged.read_bytes(), [], added))
    with unchanged():
        lance.refused(400, 13, message, CREATE, body(relative(staged)))
    assert staged.exists()


# --- the staged manifest -----------------------------------------------------------------------

SPELLINGS = {
    "relative to the store": relative,
    "absolute": str,
    "file URI": lambda path: path.as_uri(),
    "file URI with localhost": lambda path: f"file://localhost{quote(str(path))}",
    "short file URI": lambda path: f"file:{quote(str(path))}",
    "percent-encoded": lambda path: quote(relative(path)),
    "with dots and double slashes": lambda path: str(path).replace("/_versions/", "//./_versions/"),
}


@pytest.mark.parametrize("scheme", list(NamingScheme))
@pytest.mark.parametrize("spelling", [*SPELLINGS, "relative to the table"])
def test_a_staged_manifest_moves_to_its_final_name(lance: Lance, warehouse, spelling, scheme):
    table = make_table("ws", "t", location="a b/größe+1")  # spelled differently in a URI
    staged = stage(table, 5, scheme=scheme)
    if spelling == "relative to the table":
        path = str(staged.relative_to(table.location))
    else:
        path = SPELLINGS[spelling](staged)
    answer = lance.post(CREATE, body(path, 5, naming_scheme=scheme.value))
    name = "5.manifest" if scheme == "V1" else "18446744073709551610.manifest"
    assert answer["version"]["manifest_path"] == relative(
        Path(f"{table.location}/_versions/{name}")
    )
    assert files(table.location) == {f"_versions/{name}": manifest(5)}
    assert lance_versions.settle_pending() == 1
    row = TableVersion.objects.get()
    assert (row.manifest_path, row.staged_path) == (answer["version"]["manifest_path"], None)


@pytest.mark.parametrize("branch", ["dev", "team/a", "größe 🧊"])
def test_on_a_branch(lance: Lance, table: Table, branch):
    staged = stage(table, 3, branch=branch)
    answer = lance.post(CREATE, body(relative(staged), 3, branch=branch))
    final = final_path(table, 3, branch=branch)
    assert answer["version"]["manifest_path"] == relative(final)
    assert final.read_bytes() == manifest(3, branch)
    assert not staged.exists()
    # Main and the branch count apart.
    lance.post(CREATE, body("x/3", 3))
    lance.refused(
        409,
        14,
        f"Table 'ws.t' has version 3 on branch '{branch}' already",
        CREATE,
        body("x/3", 3, branch=branch),
    )
    response = lance.post(f"/v1/table/ws$t/version/list?branch={spell(branch)}")
    assert [v["version"] for v in response["versions"]] == [3]


def test_on_a_branch_percent_encoded(lance: Lance, table: Table):
    staged = stage(table, 3, branch="größe/a b")
    lance.post(CREATE, body(quote(relative(staged)), 3, branch="größe/a b"))
    assert list(files(table.location)) == ["tree/größe/a b/_versions/18446744073709551612.manifest"]


def test_main_may_be_given_as_branch(lance: Lance, table: Table):
    lance.post(CREATE, body("x/1", branch="main"))
    lance.refused(409, 14, "has version 1 already", CREATE, body("x/1"))


@shared_cases("branch", ["..", "a/../b", "/a", "a//b", "a/", ".", "_versions", "a\0b", "x" * 256])
def test_invalid_branch_names_are_refused(lance: Lance, table: Table, branch):
    lance.refused(400, 13, "Branch name", CREATE, body("x/1", branch=branch))


def test_the_scheme_is_read_from_the_staged_name(lance: Lance, table: Table):
    v1 = stage(table, 1, scheme=NamingScheme.V1)
    v2 = stage(table, 2, scheme=NamingScheme.V2)
    odd = Path(table.location) / "_versions" / "new"
    odd.write_bytes(manifest(3))
    lance.post(CREATE, body(relative(v1), 1))
    lance.post(CREATE, body(relative(v2), 2))
    lance.post(CREATE, body(relative(odd), 3))
    assert files(table.location) == {
        "_versions/1.manifest": manifest(1),
        "_versions/18446744073709551613.manifest": manifest(2),
        "_versions/18446744073709551612.manifest": manifest(3),
    }


@pytest.mark.parametrize("scheme", ["V1", "v1"])
def test_the_requested_naming_scheme_is_used(lance: Lance, table: Table, scheme):
    lance.post(CREATE, body(relative(stage(table, 1)), naming_scheme=scheme))
    assert list(files(table.location)) == ["_versions/1.manifest"]


def test_an_unknown_scheme(lance: Lance, table: Table):
    path = stage(table, 1)
    lance.refused(400, 13, "'V3'", CREATE, body(relative(path), naming_scheme="V3"))
    assert path.exists()


def test_a_staged_manifest_at_the_root_of_the_table(lance: Lance, table: Table):
    Path(table.location).mkdir()
    staged = Path(table.location) / "draft"
    staged.write_bytes(manifest(1))
    lance.post(CREATE, body(staged))
    assert files(table.location) == {"_versions/18446744073709551614.manifest": manifest(1)}


# --- files that are never touched --------------------------------------------------------------


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_path_with_a_listed_prefix_is_recorded_and_untouched(
    lance: Lance, table: Table, tmp_path: Path, settings, spelling
):
    outside = tmp_path / "outside/_versions/18446744073709551614.manifest-1234"
    outside.parent.mkdir(parents=True)
    outside.write_bytes(b"precious")
    settings.MONODON_MANIFEST_PATHS = [f"{tmp_path}/outside/"]
    path = SPELLINGS[spelling](outside)
    with watched(outside.parent) as touched:
        answer = lance.post(CREATE, body(path))
        assert answer["version"]["manifest_path"] == path
        lance_versions.settle_pending()
        versions = lance.post("/v1/table/ws$t/version/describe", {"version": 1})["version"]
        assert versions["manifest_path"] == path
        error = "does not belong to table 'ws.t', and may not be read for it"
        for read in ("count_rows", "query", "stats", "index/list"):
            lance.refused(400, 13, error, f"/v1/table/ws$t/{read}", {"k": 1, "vector": {}})
        lance.refused(400, 13, error, "/v1/table/ws$t/describe", {"load_detailed_metadata": True})
    assert touched.events == []
    assert not Path(table.location).exists()


@pytest.mark.parametrize(
    "path", ["/mnt/stagingx/1.manifest", "/mnt/1.manifest", "/mnt/staging", "s3://bucket/x"]
)
def test_a_path_without_a_listed_prefix(lance: Lance, table: Table, settings, path):
    settings.MONODON_MANIFEST_PATHS = ["/mnt/staging/", "s3://bucket/staging/"]
    lance.refused(400, 13, "is outside the table's location", CREATE, body(path))


@pytest.mark.parametrize("path", ["s3://bucket/_versions/1.manifest-x", "gs://b/k", "memory://x/y"])
def test_another_store_may_be_listed(lance: Lance, table: Table, settings, path):
    lance.refused(400, 13, "is outside the table's location", CREATE, body(path))
    settings.MONODON_MANIFEST_PATHS = [path.rpartition("/")[0] + "/"]
    assert lance.post(CREATE, body(path))["version"]["manifest_path"] == path


def test_a_sibling_with_the_same_prefix_is_outside(lance: Lance, warehouse: Path):
    make_table("ws", "t", location="tables/a")
    other = make_table("ws", "other", location="tables/ab")
    staged = stage(other, 1)
    with watched(other.location) as touched:
        lance.refused(400, 13, "is outside the table's location", CREATE, body(relative(staged)))
    assert touched.events == []


def test_manifests_must_be_inside_the_table(lance: Lance, table: Table, tmp_path: Path, settings):
    settings.MONODON_MANIFEST_PATHS = []
    outside = tmp_path / "m.manifest"
    outside.write_bytes(manifest(1))
    for path in (str(outside), outside.as_uri(), "elsewhere/1", "s3://bucket/1"):
        lance.refused(400, 13, "is outside the table's location", CREATE, body(path))
    assert outside.read_bytes() == manifest(1)
    lance.post(CREATE, body(relative(stage(table, 1))))
    assert list(files(table.location)) == ["_versions/18446744073709551614.manifest"]


@shared_cases(
    ("path", "error"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("/", "is empty"),
        ("{location}/../x", "holds '..'"),
        ("{location}/_versions/%2e%2e/x", "holds '..'"),
        ("{location}/_versions/%2E%2E%2Fx", "holds '..'"),
        ("file://{location}/%2e%2e/x", "holds '..'"),
        ("file://{location}/_versions/../../x", "holds '..'"),
        ("..", "holds '..'"),
        ("s3://bucket/../x", "holds '..'"),
        ("a\0b", "control character"),
        ("a\nb", "control character"),
        ("a\x7fb", "control character"),
        ("file:///a%00b", "control character"),
        ("file:///a%0Ab", "control character"),
        ("a%00b", "control character"),
        ("x" * 2001, "longer than"),
    ],
)
def test_invalid_paths_are_refused(lance: Lance, table: Table, path, error):
    path = path.replace("{location}", table.location)
    lance.refused(400, 13, error, CREATE, body(path))
    table.refresh_from_db()
    assert table.state == TableState.DECLARED


NO_LINKS = "is not a regular file of the table: links are not followed"


def test_a_linked_file_outside_is_refused(lance: Lance, table: Table, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_bytes(manifest(1))
    link = Path(table.location) / "_versions/18446744073709551614.manifest-1"
    link.parent.mkdir(parents=True)
    link.symlink_to(secret)
    with watched(secret) as touched:
        lance.refused(400, 13, NO_LINKS, CREATE, body(relative(link)))
    assert touched.events == []
    # The answer does not reveal whether the file exists.
    secret.unlink()
    lance.refused(400, 13, NO_LINKS, CREATE, body(relative(link)))
    assert link.is_symlink()


def test_a_linked_directory_outside_is_refused(lance: Lance, table: Table, tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    victim = outside / "18446744073709551614.manifest-1"
    victim.write_bytes(manifest(1))
    Path(table.location).mkdir()
    (Path(table.location) / "_versions").symlink_to(outside)
    with watched(outside) as touched:
        for name in (victim.name, "missing"):
            path = f"{table.location}/_versions/{name}"
            lance.refused(400, 13, NO_LINKS, CREATE, body(path))
        # No file is moved into such a directory either.
        draft = Path(table.location) / "draft"
        draft.write_bytes(manifest(2))
        answer = lance.post(CREATE, body(draft, 2))
        assert answer["version"]["manifest_path"] == str(draft)
    assert touched.events == []
    assert draft.read_bytes() == manifest(2)


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "socket"])
def test_special_files_are_refused(lance: Lance, table: Table, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    path = Path(table.location) / "_versions/18446744073709551614.manifest-1"
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        try:
            os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))
        except PermissionError:
            path.symlink_to("/dev/zero")
    elif kind == "directory":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("s")
            Path("s").rename(path)
    lance.refused(400, 13, NO_LINKS, CREATE, body(relative(path)))
    assert path.exists()


def test_a_hard_link(lance: Lance, table: Table, warehouse: Path):
    """The owner of the other name is unknown: it may be another table's manifest."""
    other = stage(make_table("ws", "hidden"), 1)
    path = Path(table.location) / "_versions/18446744073709551614.manifest-1"
    path.parent.mkdir(parents=True)
    os.link(other, path)
    lance.refused(400, 13, "is a file with several names", CREATE, body(relative(path)))
    assert (other.stat().st_nlink, path.exists()) == (2, True)


def test_a_manifest_of_another_version_is_refused(lance: Lance, table: Table):
    lance.post(CREATE, body(relative(stage(table, 1))))
    first = final_path(table, 1)
    error = "is not where a manifest of version 2 may lie"
    lance.refused(400, 13, error, CREATE, body(relative(first), 2))
    staged = stage(table, 3)
    error = "is the manifest of version 3, not of version 2"
    lance.refused(400, 13, error, CREATE, body(relative(staged), 2))
    assert files(table.location) == {
        str(first.relative_to(table.location)): manifest(1),
        str(staged.relative_to(table.location)): manifest(3),
    }


def test_a_staged_file_is_used_for_one_version(lance: Lance, table: Table):
    staged = stage(table, 4)
    entries = [
        {"id": ["ws", "t"], "version": n, "manifest_path": relative(staged)} for n in (4, 5, 6)
    ]
    lance.refused(
        400,
        13,
        "is the manifest of version 4, not of version 5",
        "/v1/table/version/batch-create",
        {"entries": entries},
    )
    assert staged.read_bytes() == manifest(4)
    lance.post(CREATE, body(relative(staged), 4))
    # The file has been moved, but the existing version is reported before the missing file.
    lance.refused(409, 14, "has version 4 already", CREATE, body(relative(staged), 4))
    lance.refused(404, 11, "there is no file", CREATE, body(relative(staged), 5))


@pytest.mark.parametrize(("of", "as_"), [("dev", None), ("", "dev"), ("dev", "dav")])
def test_a_manifest_of_another_branch_is_refused(lance: Lance, table: Table, of, as_):
    staged = stage(table, 1, branch=of)
    lance.refused(400, 13, "is a manifest of", CREATE, body(relative(staged), branch=as_))


@shared_cases(
    ("content", "error"),
    [
        (b"", "it does not end as a Lance file does"),
        (b"LANC", "it does not end as a Lance file does"),
        (b"root:x:0:0:root:/root:/bin/bash\n", "it does not end as a Lance file does"),
        (b"\xff" * 12 + b"LANC", "its footer names a position outside the file"),
        (b"\0" * 12 + b"LANC", "its footer names a position outside the file"),
        (manifest(1)[4:], "its footer does not lead to its message"),
        (
            b"\2\0\0\0\x0a\x7f" + manifest(1)[-16:],
            "its message is malformed: a field ends outside its message",
        ),
        (b"\2\0\0\0\x1b\1" + manifest(1)[-16:], "its message is malformed: wire type 3"),
        (manifest(1)[:-20] + b"\x18\2" + manifest(1)[-16:], "its footer does not lead"),
    ],
)
def test_invalid_manifests_are_refused(lance: Lance, table: Table, content, error):
    staged = stage(table, 1)
    staged.write_bytes(content)
    lance.refused(400, 13, f"is not a Lance manifest: {error}", CREATE, body(relative(staged)))
    assert staged.read_bytes() == content


def test_the_size_is_read_from_the_file(lance: Lance, table: Table):
    staged = stage(table, 1)
    size = staged.stat().st_size
    answer = lance.post(CREATE, body(relative(staged), manifest_size=5))
    assert answer["version"]["manifest_size"] == size
    assert TableVersion.objects.get().manifest_size == size


def test_a_manifest_with_its_final_name_is_not_moved(lance: Lance, table: Table):
    path = final_path(table, 1)
    path.parent.mkdir(parents=True)
    path.write_bytes(manifest(1))
    answer = lance.post(CREATE, body(relative(path)))
    assert answer["version"]["manifest_path"] == relative(path)
    assert path.read_bytes() == manifest(1)


@pytest.mark.parametrize(
    "name",
    [
        "data/1.lance",
        "data/part/1.lance",
        "_indices/1/index.idx",
        "_deletions/1.arrow",
        "_transactions/1.txn",
        "tree/dev/data/1.lance",
        "_refs/tags/v1.json",
    ],
)
def test_data_files_are_not_manifests(lance: Lance, table: Table, name):
    path = Path(table.location) / name
    path.parent.mkdir(parents=True)
    path.write_bytes(manifest(1))
    for spelling in [relative(path), str(path), path.as_uri(), name]:
        error = "is not where a manifest of version 1 may lie"
        lance.refused(400, 13, error, CREATE, body(spelling))
    assert files(table.location) == {name: manifest(1)}


def test_the_table_location_itself_is_refused(lance: Lance, table: Table):
    Path(table.location).mkdir()
    lance.refused(400, 13, "is outside the table's location", CREATE, body(table.location))
    assert Path(table.location).is_dir()


def test_an_occupied_final_name_is_not_overwritten(lance: Lance, table: Table):
    staged = stage(table, 1, content=b"mine")
    final = final_path(table, 1)
    final.write_bytes(b"theirs")
    answer = lance.post(CREATE, body(relative(staged)))
    assert answer["version"]["manifest_path"] == relative(staged)
    assert (final.read_bytes(), staged.read_bytes()) == (b"theirs", manifest(1, text=b"mine"))


def test_an_equal_file_at_the_final_name_counts_as_moved(lance: Lance, table: Table):
    staged = stage(table, 1, content=b"same")
    final = final_path(table, 1)
    final.write_bytes(staged.read_bytes())
    answer = lance.post(CREATE, body(relative(staged)))
    assert answer["version"]["manifest_path"] == relative(final)
    assert files(table.location) == {
        str(final.relative_to(table.location)): manifest(1, text=b"same")
    }


@pytest.mark.parametrize("name", ["gone", "x"])
def test_a_missing_staged_file_is_refused(lance: Lance, table: Table, name):
    path = f"{relative(Path(table.location))}/_versions/18446744073709551614.manifest-{name}"
    for _ in ("without its directory", "with it"):
        lance.refused(
            404,
            11,
            f"Version 1 of table 'ws.t' has no manifest: there is no file '{path}'",
            CREATE,
            body(path),
        )
        Path(f"{table.location}/_versions").mkdir(parents=True, exist_ok=True)
    table.refresh_from_db()
    assert table.state == TableState.DECLARED


def test_a_staged_file_replaced_by_a_link_is_not_moved(
    lance: Lance, table: Table, tmp_path: Path, no_moves
):
    """The staged file was valid when it was recorded, and was replaced by a link before its move."""
    staged = stage(table, 1)
    lance.post(CREATE, body(relative(staged)))
    secret = tmp_path / "secret"
    secret.write_bytes(b"precious")
    staged.unlink()
    staged.symlink_to(secret)
    no_moves()
    with watched(secret) as touched:
        lance_versions.settle_pending()
        lance.call("POST", "/v1/table/ws$t/count_rows", {})
    assert touched.events == []
    assert not final_path(table, 1).exists()
    assert secret.stat().st_nlink == 1


def test_moves_on_unreachable_storage_stay_pending(lance: Lance, table: Table):
    """A worker without the volume must not consider moved manifests missing."""
    staged = stage(table, 1)
    lance.post(CREATE, body(relative(staged)))
    away = Path(table.location).rename(f"{table.location}.unmounted")
    assert lance_versions.settle_pending() == 0
    away.rename(table.location)
    assert lance_versions.settle_pending() == 1
    versions = lance.post("/v1/table/ws$t/version/describe", {"version": 1})["version"]
    assert versions["manifest_path"] == relative(final_path(table, 1))


# --- interrupted moves -------------------------------------------------------------------------


@pytest.fixture
def no_moves(monkeypatch):
    """Storage that fails until the test calls the yielded function."""

    def fail(*args):
        raise OSError("storage is away")

    with monkeypatch.context() as patch:
        patch.setattr(local_files, "move_manifest", fail)
        yield patch.undo


def test_a_failing_storage_leaves_a_readable_version(lance: Lance, table: Table, no_moves):
    staged = stage(table, 1)
    response = lance.post(CREATE, body(relative(staged)))
    assert response["version"]["manifest_path"] == relative(staged)
    for answer in (
        lance.post("/v1/table/ws$t/version/describe", {"version": 1})["version"],
        lance.post("/v1/table/ws$t/version/list")["versions"][0],
    ):
        assert Path("/" + answer["manifest_path"]).read_bytes() == manifest(1)


@pytest.mark.parametrize("way", ["describe", "list", "settle"])
def test_an_interrupted_move_is_finished(lance: Lance, table: Table, no_moves, way):
    staged = stage(table, 1)
    lance.post(CREATE, body(relative(staged)))
    row = TableVersion.objects.get()
    assert row.staged_path == relative(staged)
    no_moves()
    final = final_path(table, 1)
    if way == "describe":
        versions = lance.post("/v1/table/ws$t/version/describe", {"version": 1})["version"]
        assert versions["manifest_path"] == relative(final)
    elif way == "list":
        [versions] = lance.post("/v1/table/ws$t/version/list?limit=1&descending=true")["versions"]
        assert versions["manifest_path"] == relative(final)
    else:
        assert lance_versions.settle_pending() == 1
    assert files(table.location) == {str(final.relative_to(table.location)): manifest(1)}
    lance_versions.settle_pending()
    assert lance_versions.settle_pending() == 0
    row.refresh_from_db()
    assert (row.manifest_path, row.staged_path) == (relative(final), None)
    versions = lance.post("/v1/table/ws$t/version/describe", {"version": 1})["version"]
    assert versions["manifest_path"] == relative(final)


def test_a_half_finished_move_is_completed(lance: Lance, table: Table, no_moves):
    """The final name exists, the staged file is not yet removed, and the row is not yet updated."""
    staged = stage(table, 1)
    lance.post(CREATE, body(relative(staged)))
    no_moves()
    os.link(staged, final_path(table, 1))
    assert lance_versions.settle_pending() == 1
    assert not staged.exists()
    assert final_path(table, 1).read_bytes() == manifest(1)


def test_a_move_without_its_row_update_is_recorded(lance: Lance, table: Table, no_moves):
    staged = stage(table, 1)
    lance.post(CREATE, body(relative(staged)))
    no_moves()
    staged.rename(final_path(table, 1))
    versions = lance.post("/v1/table/ws$t/version/describe", {"version": 1})["version"]
    assert versions["manifest_path"] == relative(final_path(table, 1))


def test_settling_skips_moves_that_still_fail(lance: Lance, table: Table, monkeypatch, no_moves):
    for version in (1, 2):
        lance.post(CREATE, body(relative(stage(table, version)), version))
    no_moves()
    real, calls = local_files.move_manifest, itertools.count()

    def fail_first(*args):
        if next(calls) == 0:
            raise OSError("still away")
        return real(*args)

    monkeypatch.setattr(local_files, "move_manifest", fail_first)
    assert lance_versions.settle_pending() == 1
    assert TableVersion.objects.get(staged_path__isnull=False).version == 1


# --- refusals ----------------------------------------------------------------------------------


@shared_cases(
    ("body", "error"),
    [
        ({}, "version"),
        ({"version": 1}, "manifest_path"),
        ({"manifest_path": "x/1"}, "version"),
        ({"version": "1", "manifest_path": "x/1"}, "version"),
        ({"version": 1.0, "manifest_path": "x/1"}, "version"),
        ({"version": True, "manifest_path": "x/1"}, "version"),
        ({"version": -1, "manifest_path": "x/1"}, "version"),
        ({"version": 2**63, "manifest_path": "x/1"}, "Version 9223372036854775808"),
        ({"version": 1, "manifest_path": None}, "manifest_path"),
        ({"version": 1, "manifest_path": "x/1", "manifest_size": -1}, "manifest_size"),
        ({"version": 1, "manifest_path": "x/1", "manifest_size": 2**63}, "Manifest size 9223372"),
        ({"version": 1, "manifest_path": "x/1", "manifest_size": 2**70}, "Manifest size 1180591"),
        ({"version": 1, "manifest_path": "x/1", "manifest_size": "1"}, "manifest_size"),
        ({"version": 1, "manifest_path": "x/1", "metadata": {"a": 1}}, "metadata"),
        ({"version": 1, "manifest_path": "x/1", "metadata": {"a": "\0"}}, "cannot be stored"),
        ({"version": 1, "manifest_path": "x/1", "e_tag": "\0"}, "cannot be stored"),
        ({"version": 1, "manifest_path": "x/1", "id": ["ws", "u"]}, "['ws', 'u']"),
        ({"version": 1, "manifest_path": "x/1", "id": []}, "[]"),
    ],
)
def test_malformed_requests_are_refused(lance: Lance, table: Table, body, error):
    lance.refused(400, 13, error, CREATE, body)


def test_missing(lance: Lance):
    make_namespace("ws")
    content = {"version": 1, "manifest_path": "x/1"}
    lance.refused(404, 4, "Table 'ws.t' does not exist", CREATE, content)
    lance.refused(404, 1, "Namespace 'no' does not exist", "/v1/table/no$t/version/create", content)


def test_an_unknown_key_is_ignored(lance: Lance, table: Table):
    lance.post(CREATE, body("x/1", from_the_future={"a": [1]}))


def test_read_only_key(reader: Lance, table: Table):
    staged = stage(table, 1)
    reader.refused(403, 15, "may not write to 'ws.t'", CREATE, body(relative(staged)))
    assert staged.exists()


def test_versions_continue_after_a_rename(lance: Lance, table: Table):
    make_version(("ws", "t"), 1)
    lance.post("/v1/table/ws$t/rename", {"new_table_name": "u"})
    lance.refused(
        409,
        14,
        "Table 'ws.u' has version 1 already",
        "/v1/table/ws$u/version/create",
        {"version": 1, "manifest_path": "x/1"},
    )
