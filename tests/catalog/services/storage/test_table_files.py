"""The owner of a file, and the principals that may read it for a table."""

import os
import uuid
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.db import connection
from django.utils import timezone

from catalog import access
from catalog.access import SYSTEM
from catalog.errors import ForeignFile
from catalog.models import (
    FileReference,
    Grant,
    IcebergPath,
    Job,
    JobKind,
    JobStatus,
    Principal,
    RemainingFiles,
    Table,
    TableFormat,
    TableState,
)
from catalog.privileges import Privilege, closure
from catalog.regular_files import NotRegular, TooLarge
from catalog.services.engine.commit import commit
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.lance.ledger import files as lance_files
from catalog.services.storage import file_references
from catalog.services.storage.file_owners import Belonging, FutureTable
from catalog.services.storage.table_files import TableFiles
from catalog.services.tables import namespace_operations
from catalog.storage import stores
from tests.factories import make_iceberg_table, make_namespace, make_table

pytestmark = pytest.mark.django_db

OWN, OTHER, FREE, OUTSIDE = Belonging.OWN, Belonging.OTHER, Belonging.FREE, Belonging.OUTSIDE


@pytest.fixture
def lake(tmp_path: Path, warehouse: Path, settings) -> Path:
    """An allowed directory for tables, outside the warehouse."""
    directory = tmp_path / "lake"
    directory.mkdir()
    settings.MONODON_ALLOWED_ROOTS = [str(directory)]
    return directory


def table_at(name: str, location: Path, format: TableFormat = TableFormat.ICEBERG) -> Table:
    if format == TableFormat.LANCE:
        return make_table("ns", name, location=str(location))
    make_iceberg_table("ns", name, location=f"file://{location}")
    return Table.objects.select_related("namespace").get(name=name, state=TableState.LIVE)


def drop(name: str) -> None:
    iceberg_tables.unregister_table(actor=SYSTEM, table=("ns", name))


def belonging(table: Table, *paths: str | Path) -> list[Belonging]:
    owners = TableFiles(table).classify([str(path) for path in paths])
    return [owners[str(path)].belonging for path in paths]


def test_any_number_of_directories_is_looked_up(lake):
    """A manifest list of a few kilobytes may name thousands of them."""
    a, b = table_at("a", lake / "a"), table_at("b", lake / "b" / "0")
    deep = "/".join(map(str, range(50)))
    paths = [f"{lake}/b/{number}/{deep}/x" for number in range(1_500)]
    owners = belonging(a, *paths)
    assert owners == [OTHER, *[FREE] * 1_499]
    assert belonging(b, *paths) == [OWN, *[FREE] * 1_499]


def test_the_levels_of_a_path_are_limited(lake):
    """Each may be the location of a table."""
    table = table_at("a", lake / "a")
    free = 200 - f"{lake}/".count("/")
    assert belonging(table, f"{lake}/{'b/' * free}x") == [FREE]
    assert belonging(table, f"{lake}/{'b/' * (free + 1)}x") == [OUTSIDE]


def test_a_file_belongs_to_its_enclosing_tables(lake):
    a, b = table_at("a", lake / "a"), table_at("b", lake / "b")
    paths = [f"{lake}/a/data/x", f"{lake}/b/data/x", f"{lake}/c/x", "/etc/passwd"]
    assert belonging(a, *paths) == [OWN, OTHER, FREE, OUTSIDE]
    assert belonging(b, *paths) == [OTHER, OWN, FREE, OUTSIDE]
    assert TableFiles(a).classify([paths[1]])[paths[1]].table_ids == {b.pk}


def test_sibling_names_are_not_prefixes(lake):
    a, a2 = table_at("a", lake / "a"), table_at("a2", lake / "a2")
    assert belonging(a, f"{lake}/a2/x", f"{lake}/a/x", f"{lake}/ab/x") == [OTHER, OWN, FREE]
    assert belonging(a2, f"{lake}/a2/x", f"{lake}/a/x") == [OWN, OTHER]


def test_the_deepest_holder_owns_a_file(lake):
    """Clients cannot create a table inside another. Catalogs of older releases may have one."""
    a, b = table_at("a", lake / "a"), table_at("b", lake / "b")
    IcebergPath.objects.create(table=b, path=f"{lake}/a/of_b")
    IcebergPath.objects.create(table=a, path=f"{lake}/a/of_b/of_a")
    paths = [f"{lake}/a/x", f"{lake}/a/of_b/x", f"{lake}/a/of_b/deep/x", f"{lake}/a/of_b/of_a/x"]
    assert belonging(a, *paths) == [OWN, OTHER, OTHER, OWN]
    assert belonging(b, *paths) == [OTHER, OWN, OWN, OTHER]
    own, foreign = TableFiles(a).prefixes()
    assert own == [f"{lake}/a", f"{lake}/a/of_b/of_a"]
    assert foreign == [f"{lake}/a/of_b"]


def test_a_path_shared_by_two_tables_has_no_owner(lake):
    a, b = table_at("a", lake / "a"), table_at("b", lake / "b")
    for table in (a, b):
        IcebergPath.objects.create(table=table, path=f"{lake}/shared")
    shared = f"{lake}/shared/x"
    assert belonging(a, shared) == belonging(b, shared) == [OTHER]
    assert TableFiles(a).classify([shared])[shared].table_ids == {a.pk, b.pk}
    assert not TableFiles(a).may_change(shared)
    assert TableFiles(a).prefixes() == ([f"{lake}/a"], [f"{lake}/shared"])


def test_a_recorded_path_outside_the_location_is_owned(lake):
    a = table_at("a", lake / "a")
    IcebergPath.objects.create(table=a, path=f"{lake}/data")
    assert belonging(a, f"{lake}/data/x") == [OWN]
    assert TableFiles(a).may_change(f"{lake}/data/x")
    assert TableFiles(a).prefixes() == ([f"{lake}/a", f"{lake}/data"], [])


def test_a_dropped_table_keeps_its_files_until_they_are_removed(lake):
    a, b = table_at("a", lake / "a"), table_at("b", lake / "b")
    drop("b")
    assert belonging(a, f"{lake}/b/x") == [OTHER]
    b.refresh_from_db()
    Job.objects.create(table=b, kind=JobKind.PURGE_TABLE, status=JobStatus.SUCCEEDED)
    assert belonging(a, f"{lake}/b/x") == [FREE]


@pytest.mark.parametrize("path", ["b", "b/data"])
def test_a_path_at_a_dropped_table_does_not_take_its_files(lake, path):
    """Clients can no longer enter such a path, but it may have been entered before."""
    a, b = table_at("a", lake / "a"), table_at("b", lake / "b")
    drop("b")
    IcebergPath.objects.create(table=a, path=f"{lake}/{path}")
    file = f"{lake}/b/data/x"
    assert belonging(a, file) == [OTHER]
    assert TableFiles(a).classify([file])[file].table_ids == {a.pk, b.pk}
    assert TableFiles(a).prefixes() == ([f"{lake}/a"], [])
    b.refresh_from_db()
    Job.objects.create(table=b, kind=JobKind.PURGE_TABLE, status=JobStatus.SUCCEEDED)
    assert belonging(a, file) == [OWN]
    assert TableFiles(a).prefixes() == ([f"{lake}/a", f"{lake}/{path}"], [])


def leave_files(table: Table) -> None:
    """A purge that left files in the directories of a dropped table."""
    table.refresh_from_db()
    Job.objects.create(table=table, kind=JobKind.PURGE_TABLE, status=JobStatus.SUCCEEDED)
    RemainingFiles.objects.create(table=table)


def test_what_a_purge_left_belongs_to_the_purged_table(lake):
    a, b = table_at("a", lake / "a"), table_at("b", lake / "b")
    IcebergPath.objects.create(table=b, path=f"{lake}/data")
    drop("b")
    leave_files(b)
    principal = stranger()
    for path in (f"{lake}/b/x", f"{lake}/data/x"):
        assert belonging(a, path) == [OTHER]
        with pytest.raises(ForeignFile):
            TableFiles(a).require_readable(principal, [path])
        assert TableFiles(a).require_readable(SYSTEM, [path]) == {path: path}
    RemainingFiles.objects.all().delete()
    assert belonging(a, f"{lake}/b/x", f"{lake}/data/x") == [FREE, FREE]


def test_a_path_in_the_former_location_of_a_purged_table_owns_its_files(lake):
    """A purged table cannot come back, so it has no claim on what a later table writes into its own directory."""
    a, b = table_at("a", lake / "a"), table_at("b", lake / "b")
    drop("b")
    leave_files(b)
    IcebergPath.objects.create(table=a, path=f"{lake}/b/data")
    assert belonging(a, f"{lake}/b/data/x", f"{lake}/b/x") == [OWN, OTHER]
    IcebergPath.objects.filter(table=a).update(path=str(lake))
    assert belonging(a, f"{lake}/b/data/x", f"{lake}/x") == [OTHER, OWN]
    assert TableFiles(a).prefixes() == ([str(lake), f"{lake}/a"], [f"{lake}/b"])


@pytest.mark.parametrize("is_later", [True, False])
def test_a_table_whose_files_are_kept_wins_over_purged_ones_at_its_location(lake, is_later):
    a, b = table_at("a", lake / "a"), table_at("b", lake / "b")
    drop("b")
    purged = Table.objects.create(
        namespace=b.namespace,
        name="purged",
        location=b.location,
        state=TableState.DROPPED,
        dropped_at=timezone.now() + timedelta(hours=1 if is_later else -1),
        digest=uuid.uuid4(),
    )
    leave_files(purged)
    path = f"{lake}/b/x"
    assert TableFiles(a).classify([path])[path].table_ids == {b.pk}
    second = Table.objects.get(pk=purged.pk)
    assert belonging(second, path) == [OTHER]


def test_a_present_table_wins_over_those_dropped_at_its_location(lake):
    old = table_at("a", lake / "a")
    drop("a")
    old.refresh_from_db()
    new = table_at("n", lake / "a")
    path = f"{lake}/a/x"
    assert belonging(new, path) == [OWN]
    assert belonging(old, path) == [OTHER]
    assert TableFiles(old).classify([path])[path].table_ids == {new.pk}
    drop("n")
    new.refresh_from_db()
    assert (belonging(new, path), belonging(old, path)) == ([OWN], [OTHER])


def test_unowned_files_in_the_warehouse_are_not_readable(lake, warehouse):
    a = table_at("a", lake / "a")
    t = make_table("ns", "t")
    assert belonging(a, f"{warehouse}/x", f"{warehouse}/some/x", f"{t.location}/x") == [
        OUTSIDE,
        OUTSIDE,
        OTHER,
    ]


def test_the_home_of_the_server_is_outside(lake, tmp_path, settings):
    settings.MONODON_HOME = str(lake / "home")
    a = table_at("a", lake / "a")
    assert belonging(a, f"{lake}/home/postgres/x", f"{lake}/homes/x") == [OUTSIDE, FREE]


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("{at}/x", OWN),
        ("file:{at}/x", OWN),
        ("file://{at}/x", OWN),
        ("file:///{at}/x", OWN),
        ("file://localhost{at}/x", OWN),
        ("{at}//data//x", OWN),
        ("{at}/./data/x", OWN),
        ("{at}/a%20b", OWN),
        ("/{at}/x", OUTSIDE),  # for Java, the first segment is a host
        ("file:/{at}/x", OUTSIDE),  # likewise
        ("file://host{at}/x", OUTSIDE),
        ("file://localhost:80{at}/x", OUTSIDE),
        ("FILE://{at}/x", OUTSIDE),
        ("s3://bucket{at}/x", OUTSIDE),
        ("hdfs:{at}/x", OUTSIDE),
        ("{at}/data/../x", OUTSIDE),
        ("{at}/data/%2e%2e/x", OUTSIDE),
        ("{at}/..%2fb%2fx", OUTSIDE),
        ("{at}/..", OUTSIDE),
        ("{at}/.", OUTSIDE),
        ("{at}/", OUTSIDE),
        ("{at}", OUTSIDE),
        ("{at}/x\n", OUTSIDE),
        ("{at}/x\0", OUTSIDE),
        ("{at}.purged-1/x", OUTSIDE),
        ("{at}/x.purged-1", OUTSIDE),
        ("data/x", OUTSIDE),
        ("x", OUTSIDE),
        ("", OUTSIDE),
        ("/", OUTSIDE),
        ("//", OUTSIDE),
        ("/x", OUTSIDE),
        ("file://", OUTSIDE),
        ("{at}/" + "x" * 3000, OUTSIDE),
    ],
)
def test_spellings_of_paths_in_iceberg_metadata(lake, spelling, expected):
    a = table_at("a", lake / "a")
    path = spelling.format(at=f"{lake}/a")
    assert belonging(a, path) == [expected]
    if expected == OWN:
        assert TableFiles(a).require_readable(SYSTEM, [path])[path].startswith(f"{lake}/a/")
    else:
        with pytest.raises(ForeignFile):
            TableFiles(a).require_readable(SYSTEM, [path])


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("{at}/x", OWN),
        ("file://{at}/x", OWN),
        ("file://{at}/a%20b", OWN),
        ("_versions/1.manifest", OWN),
        ("file://{at}/%2e%2e/b/x", OUTSIDE),
        ("../b/x", OUTSIDE),
        ("s3://bucket/x", OUTSIDE),
        ("file://{beside}/x", OTHER),
        ("file://{beside}%2fx", OTHER),
    ],
)
def test_spellings_of_paths_in_lance_manifests(lake, spelling, expected):
    a = table_at("a", lake / "a", TableFormat.LANCE)
    table_at("b", lake / "b", TableFormat.LANCE)
    assert belonging(a, spelling.format(at=f"{lake}/a", beside=f"{lake}/b")) == [expected]


def test_links_are_resolved_before_ownership_is_decided(lake, warehouse):
    a, _ = table_at("a", lake / "a"), table_at("b", lake / "b")
    (lake / "b" / "data").mkdir()
    (lake / "a" / "own").mkdir()
    for name in ("a/own/x", "b/data/x"):
        (lake / name).write_text("x")
    for name, target in {
        "directory": lake / "b" / "data",
        "file": lake / "b" / "data" / "x",
        "twice": lake / "a" / "directory",
        "system": Path("/etc/passwd"),
        "gone": lake / "b" / "nothing",
        "inside": lake / "a" / "own" / "x",
        "to_itself": lake / "a" / "to_itself",
    }.items():
        (lake / "a" / name).symlink_to(target)
    paths = [
        f"{lake}/a/{name}"
        for name in ("directory/x", "file", "twice/x", "system", "gone", "inside", "to_itself")
    ]
    assert belonging(a, *paths) == [OTHER, OTHER, OTHER, OUTSIDE, OTHER, OWN, OUTSIDE]
    assert not TableFiles(a).may_change(paths[0])
    principal = stranger()
    for path in [*paths[:5], paths[6]]:
        with pytest.raises(ForeignFile) as refused:
            TableFiles(a).require_readable(principal, [path])
        assert refused.value.message == (
            f"File '{path}' does not belong to table 'ns.a', and may not be read for it"
        )
    assert TableFiles(a).require_readable(principal, [paths[5]]) == {paths[5]: f"{lake}/a/own/x"}


def test_special_files_are_outside(lake):
    a = table_at("a", lake / "a")
    os.mkfifo(lake / "a" / "pipe")
    (lake / "a" / "directory").mkdir()
    (lake / "a" / "device").symlink_to("/dev/zero")
    paths = [f"{lake}/a/{name}" for name in ("pipe", "directory", "device")]
    assert belonging(a, *paths, "/dev/zero") == [OUTSIDE] * 4
    for path in paths:
        with pytest.raises(ForeignFile):
            TableFiles(a).require_readable(SYSTEM, [path])


def stranger() -> access.Principal:
    """A principal with all privileges in its own namespace, and none elsewhere."""
    row = Principal.objects.create(name="svc:stranger", kind="service")
    Grant.objects.create(
        principal=row, mask=closure(Privilege.ALL).value, namespace=make_namespace("mine")
    )
    return access.of_row(row)


def test_foreign_files_require_the_read_privilege(lake):
    b = table_at("b", lake / "b")
    principal = stranger()
    make_iceberg_table("mine", "a", location=f"file://{lake}/a")
    a = Table.objects.select_related("namespace").get(name="a")
    path = f"{lake}/b/data/x"
    with pytest.raises(ForeignFile):
        TableFiles(a).require_readable(principal, [path])
    Grant.objects.create(
        principal_id=principal.ids[0], mask=closure(Privilege.READ).value, table_id=b.pk
    )
    assert TableFiles(a).require_readable(principal, [path]) == {path: path}
    assert not TableFiles(a).may_change(path)
    free = f"{lake}/free/x"
    assert TableFiles(a).require_readable(principal, [free]) == {free: free}
    assert not TableFiles(a).may_change(free)


def test_a_shared_path_requires_read_on_all_its_tables(lake):
    principal = stranger()
    make_iceberg_table("mine", "a", location=f"file://{lake}/a")
    a = Table.objects.select_related("namespace").get(name="a")
    b, c = table_at("b", lake / "b"), table_at("c", lake / "c")
    for table in (a, b, c):
        IcebergPath.objects.create(table=table, path=f"{lake}/shared")
    path = f"{lake}/shared/x"
    Grant.objects.create(
        principal_id=principal.ids[0], mask=closure(Privilege.READ).value, table_id=b.pk
    )
    with pytest.raises(ForeignFile):
        TableFiles(a).require_readable(principal, [path])
    Grant.objects.create(
        principal_id=principal.ids[0], mask=closure(Privilege.READ).value, table_id=c.pk
    )
    assert TableFiles(a).require_readable(principal, [path]) == {path: path}


def test_a_reference_is_valid_while_its_principal_may_read_the_source(lake):
    a, b = table_at("a", lake / "a"), table_at("b", lake / "b")
    path = f"{lake}/b/x"
    committer = Principal.objects.create(name="user:committer", kind="user")
    grant = Grant.objects.create(
        principal=committer, mask=closure(Privilege.READ).value, table_id=b.pk
    )
    principal = stranger()
    files = TableFiles(a)
    foreign = files.references([path, f"{lake}/a/x"]).foreign
    assert foreign == {(b.pk, f"{lake}/b")}
    file_references.record_references(
        actor=access.of_row(committer), table_id=a.pk, foreign=foreign
    )
    columns = ("table", "source", "principal", "directories")
    assert FileReference.objects.values_list(*columns).get() == (
        a.pk,
        b.pk,
        "user:committer",
        [f"{lake}/b"],
    )
    assert TableFiles(a).require_readable(principal, [path]) == {path: path}
    grant.delete()
    with pytest.raises(ForeignFile):
        TableFiles(a).require_readable(principal, [path])
    FileReference.objects.update(principal="user:nobody")
    with pytest.raises(ForeignFile):
        TableFiles(a).require_readable(principal, [path])


def reader_of(table: Table, name: str) -> Grant:
    row = Principal.objects.create(name=name, kind="user")
    return Grant.objects.create(principal=row, mask=closure(Privilege.READ).value, table=table)


def test_a_principal_takes_over_only_valid_references(lake):
    a, b = table_at("a", lake / "a"), table_at("b", lake / "b")
    first, second, third = (reader_of(b, f"user:{name}") for name in ("first", "second", "third"))
    principal = stranger()

    def record(grant: Grant) -> None:
        directory = grant.principal.name.removeprefix("user:")
        file_references.record_references(
            actor=access.of_row(grant.principal),
            table_id=a.pk,
            foreign={(b.pk, f"{lake}/b/{directory}")},
        )

    def is_readable(directory: str) -> bool:
        path = f"{lake}/b/{directory}/x"
        try:
            return TableFiles(a).require_readable(principal, [path]) == {path: path}
        except ForeignFile:
            return False

    record(first)
    record(second)
    first.delete()
    assert is_readable("first")
    assert is_readable("second")
    second.delete()
    assert not is_readable("first")
    record(third)
    assert is_readable("third")
    assert not is_readable("first")
    assert not is_readable("second")


def test_references_lead_to_the_table_that_is_registered_in_place_of_the_source(lake):
    a, b = table_at("a", lake / "a"), table_at("b", lake / "b")
    grant = reader_of(b, "user:first")
    file_references.record_references(
        actor=access.of_row(grant.principal), table_id=a.pk, foreign={(b.pk, f"{lake}/b/data")}
    )
    made = iceberg_tables.unregister_table(actor=SYSTEM, table=("ns", "b"))
    again = iceberg_commits.register_table(
        actor=SYSTEM, table=("ns", "b"), metadata_location=made.metadata_location
    )
    assert file_references.count_dependents(Table.objects.get(pk=again.pk)) == 1
    path, principal = f"{lake}/b/data/x", stranger()
    with pytest.raises(ForeignFile):  # the grant was one on the former table
        TableFiles(a).require_readable(principal, [path])
    Grant.objects.filter(pk=grant.pk).update(table=again.pk)
    assert TableFiles(a).require_readable(principal, [path]) == {path: path}
    with pytest.raises(ForeignFile):
        TableFiles(a).require_readable(principal, [f"{lake}/b/metadata/x"])


def test_reading_a_version_records_references_to_directories_that_were_free(lake):
    a, b, c = (table_at(name, lake / name) for name in ("a", "b", "c"))
    first, second = reader_of(b, "user:first"), reader_of(c, "user:second")
    file_references.record_references(
        actor=access.of_row(first.principal), table_id=a.pk, foreign={(b.pk, b.location)}
    )
    snapshot = SimpleNamespace(
        pk=a.pk, location=a.location, table=("ns", "a"), reader=stranger(), branch="", version=1
    )
    paths = [f"{b.location}/x", f"{c.location}/x"]
    with pytest.raises(ForeignFile):
        lance_files.require_rights(snapshot, paths)
    file_references.record_free(
        actor=access.of_row(second.principal), table_id=a.pk, directories=[c.location]
    )
    lance_files.require_rights(snapshot, paths)
    references = FileReference.objects.order_by("source").values_list("source__name", "principal")
    assert list(references) == [("b", "user:first"), ("c", "user:second")]
    second.delete()
    with pytest.raises(ForeignFile):
        lance_files.require_rights(snapshot, paths)


def test_a_reference_of_an_older_server_is_one_to_all_directories(lake):
    """A server of the release before the column inserts a reference without it."""
    a, b = table_at("a", lake / "a"), table_at("b", lake / "b")
    Principal.objects.create(name="user:committer", kind="user", level="admin")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO catalog_filereference (table_id, source_id, principal)"
            " VALUES (%s, %s, 'user:committer')",
            [a.pk, b.pk],
        )
    committer, principal = access.named("user:committer"), stranger()
    paths = [f"{lake}/b/data/x", f"{lake}/b/metadata/y"]
    for _ in range(2):
        assert set(TableFiles(a).require_readable(principal, paths)) == set(paths)
        file_references.record_references(
            actor=committer, table_id=a.pk, foreign={(b.pk, f"{lake}/b/data")}
        )
    assert FileReference.objects.get().directories is None
    Principal.objects.filter(name="user:committer").update(level="granted")
    with pytest.raises(ForeignFile):
        TableFiles(a).require_readable(principal, paths)


def test_a_reference_without_directories_opens_nothing(lake):
    a, b = table_at("a", lake / "a"), table_at("b", lake / "b")
    FileReference.objects.create(table=a, source=b, principal=SYSTEM.name, directories=[])
    with pytest.raises(ForeignFile):
        TableFiles(a).require_readable(stranger(), [f"{lake}/b/data/x"])


def test_references_collect_directories_within_bounds(lake):
    a, b = table_at("a", lake / "a"), table_at("b", lake / "b")

    def record(*directories: str) -> list[str]:
        foreign = {(b.pk, f"{lake}/b/{directory}") for directory in directories}
        file_references.record_references(actor=SYSTEM, table_id=a.pk, foreign=foreign)
        recorded = FileReference.objects.get().directories
        return sorted(path.removeprefix(f"{lake}/b/") for path in recorded)

    assert record("data/day=1") == ["data/day=1"]
    assert record("data/day=2", "data/day=1") == ["data/day=1", "data/day=2"]
    assert record(*(f"data/day={n}" for n in range(100))) == sorted(
        f"data/day={n}" for n in range(100)
    )
    assert record("metadata", "data/day=100") == ["data", "metadata"]
    assert record("data/day=101") == ["data", "data/day=101", "metadata"]


def test_purged_tables_are_not_dependents(lake):
    a, b = table_at("a", lake / "a"), table_at("b", lake / "b")
    file_references.record_references(
        actor=SYSTEM, table_id=a.pk, foreign={(b.pk, b.location), (a.pk, a.location)}
    )
    assert list(file_references.dependents(b)) == [a]
    assert file_references.describe_dependents(b) == "1 other table refers"
    assert str(file_references.dependents_of(SYSTEM, [b.pk])[b.pk]) == "'ns.a'"
    assert not file_references.dependents_of(stranger(), [b.pk])  # it does not maintain the table
    assert not file_references.dependents(a).exists()
    assert not file_references.describe_dependents(a)
    Table.objects.filter(pk=a.pk).update(state=TableState.DROPPED, dropped_at=timezone.now())
    assert list(file_references.dependents(b)) == [a]
    Job.objects.create(table=a, kind=JobKind.PURGE_TABLE, status=JobStatus.SUCCEEDED)
    assert not file_references.dependents(b).exists()


def test_a_table_being_created_owns_its_location(lake):
    future = FutureTable(("ns", "new"), f"{lake}/new")
    files, principal = TableFiles(future), stranger()
    own = f"{lake}/new/x"
    assert files.require_readable(principal, [own]) == {own: own}
    table_at("b", lake / "b")
    with pytest.raises(ForeignFile):
        files.require_readable(principal, [f"{lake}/b/x"])


def test_own_files_take_no_query(lake, django_assert_num_queries):
    a = table_at("a", lake / "a")
    paths = [f"file://{lake}/a/data/{number}.parquet" for number in range(2000)]
    with django_assert_num_queries(0):
        assert len(TableFiles(a).require_readable(SYSTEM, paths)) == 2000
    elsewhere = [f"{lake}/free/{number}/x" for number in range(200)]
    with django_assert_num_queries(1):
        TableFiles(a).require_readable(SYSTEM, [*paths, *elsewhere])


def test_a_link_replacing_a_file_is_not_followed(lake):
    (lake / "d").mkdir()
    (lake / "d" / "x").write_text("mine")
    (lake / "secret").mkdir()
    (lake / "secret" / "x").write_text("theirs")
    store = stores.store_of(str(lake))
    assert store.read(f"{lake}/d/x", 10)[0] == b"mine"
    with pytest.raises(TooLarge):
        store.read(f"{lake}/d/x", 3)
    (lake / "link").symlink_to(lake / "secret" / "x")
    with pytest.raises(NotRegular):
        store.read(f"{lake}/link", 10)
    (lake / "d").rename(lake / "e")
    (lake / "d").symlink_to(lake / "secret")
    with pytest.raises(NotRegular, match="a link is on the way"):
        store.read(f"{lake}/d/x", 10)
    os.mkfifo(lake / "pipe")
    with pytest.raises(NotRegular):
        store.read(f"{lake}/pipe", 10)


def test_a_table_registered_again_owns_its_files(lake):
    """A table that was deregistered and registered again owns its former files."""
    loaded = make_iceberg_table("ns", "a", location=f"file://{lake}/a")
    drop("a")
    commit([namespace_operations.CreateNamespace(namespace=("other",))], actor=SYSTEM)
    again = iceberg_commits.register_table(
        actor=SYSTEM, table=("other", "a"), metadata_location=loaded.metadata_location
    )
    row = Table.objects.select_related("namespace").get(pk=again.pk)
    assert belonging(row, loaded.metadata_location) == [OWN]
