"""The owner of a file in an object store. No store is asked: the endpoint does not exist."""

import itertools
from datetime import timedelta

import pytest
from django.utils import timezone

from catalog.access import SYSTEM
from catalog.errors import ForeignFile
from catalog.models import FileReference, FreeDirectory, IcebergPath, Table, TableFormat
from catalog.services.storage import file_references, recorded_references, table_files
from catalog.services.storage.file_owners import Belonging
from catalog.services.storage.table_files import TableFiles
from catalog.storage import locations
from tests.factories import make_table
from tests.stores.fixtures import MakeProfile

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse", "profile")]

OWN, OTHER, OUTSIDE = Belonging.OWN, Belonging.OTHER, Belonging.OUTSIDE
ROOT = "s3://lake/root"
A = f"{ROOT}/a"


@pytest.fixture
def profile(make_profile: MakeProfile) -> None:
    make_profile(name="lake", roots=[ROOT], endpoint="http://127.0.0.1:9", key_id="k", secret="s")


def table_at(name: str, location: str, format: TableFormat = TableFormat.ICEBERG) -> Table:
    row = make_table("ns", name)
    Table.objects.filter(pk=row.pk).update(location=location, format=format)
    return Table.objects.select_related("namespace").get(pk=row.pk)


def belonging(table: Table, *paths: str) -> list[Belonging]:
    owners = TableFiles(table).classify(paths)
    return [owners[path].belonging for path in paths]


def test_a_file_belongs_to_its_enclosing_table():
    a, b = table_at("a", A), table_at("b", f"{ROOT}/a2")
    paths = [f"{A}/data/x", f"{ROOT}/a2/data/x", f"{ROOT}/ab/x", "s3://lake/a/x", f"{ROOT}/x"]
    assert belonging(a, *paths) == [OWN, OTHER, OUTSIDE, OUTSIDE, OUTSIDE]
    assert belonging(b, *paths) == [OTHER, OWN, OUTSIDE, OUTSIDE, OUTSIDE]
    owners = TableFiles(a).classify(paths)
    assert owners[paths[1]].table_ids == {b.pk}
    assert [owners[path].is_unclaimed for path in paths] == [False, False, True, False, True]


def test_own_files_need_no_query(django_assert_num_queries):
    files = TableFiles(table_at("a", A))
    paths = [f"{A}/data/x={number}%2F/f.parquet" for number in range(2000)]
    with django_assert_num_queries(0):
        assert files.require_readable(SYSTEM, paths) == {path: path for path in paths}


def test_unclaimed_files_are_not_read_for_a_table():
    a = table_at("a", A)
    for path in (f"{ROOT}/free/x", "s3://lake/elsewhere/x", "s3://pond/root/a/x"):
        with pytest.raises(ForeignFile):
            TableFiles(a).require_readable(SYSTEM, [path])


@pytest.mark.parametrize(
    "path",
    [
        "s3a://lake/root/a/data/x",
        "s3n://lake/root/a/data/x",
        "S3://lake/root/a/data/x",
        "gs://lake/root/a/data/x",
        "s3:/lake/root/a/data/x",
        "s3:lake/root/a/data/x",
        "s3://lake:80/root/a/data/x",
        "s3://k@lake/root/a/data/x",
        "s3://lake//root/a/data/x",
        "s3://lake/root/a//x",
        "s3://lake/root/a/./x",
        "s3://lake/root/b/../a/x",
        "s3://lake/root/b/%2e%2e/a/x",
        "s3://lake/root/b/..%2fa/x",
        "s3://lake/root/a/data/..%2f..%2fb",
        "s3://lake/root/a/data/%2e%2e",
        "s3://lake/root/a/data/",
        "s3://lake/root/a/data/x/",
        "s3://lake/root/a/ x",
        "s3://lake/root/a/x ",
        "s3://lake/root/a/d /x",
        "s3://lake/root/a/d\\x",
        "s3://lake/root/a/x\n",
        "s3://lake/root/a/\x00",
        "s3://lake/root/a/\ud800",
        "s3://lake/root/a/" + "x" * 1024,
        "s3://lake",
        "s3://lake/",
        "s3://",
        "/lake/root/a/data/x",
        "file:///lake/root/a/data/x",
        "lake/root/a/data/x",
        "http://127.0.0.1:9/lake/root/a/data/x",
    ],
)
def test_other_spellings_are_no_files_of_the_table(path):
    a = table_at("a", A)
    assert belonging(a, path) == [OUTSIDE]
    with pytest.raises(ForeignFile):
        TableFiles(a).require_readable(SYSTEM, [path])


@pytest.mark.parametrize(
    "name", ["x=a%2Fb/f", "100%/f", "ü/ö", "a b/c d", "x=*/f?", "$x/{y}", "a'b", 'a"b', "a#b"]
)
def test_keys_are_compared_literally(name):
    a = table_at("a", A)
    path = f"{A}/data/{name}"
    assert TableFiles(a).require_readable(SYSTEM, [path]) == {path: path}


def test_paths_of_iceberg_tables_are_claims():
    a, b = table_at("a", A), table_at("b", f"{ROOT}/b")
    IcebergPath.objects.create(table=b, path=f"{ROOT}/data/of_b")
    path = f"{ROOT}/data/of_b/deep/x"
    assert (belonging(a, path), belonging(b, path)) == ([OTHER], [OWN])
    assert TableFiles(b).prefixes() == ([f"{ROOT}/b", f"{ROOT}/data/of_b"], [])


def test_lance_paths_are_relative_to_the_table_or_canonical():
    a = table_at("a", A, TableFormat.LANCE)
    table_at("b", f"{ROOT}/b", TableFormat.LANCE)
    paths = ["data/x.lance", f"{A}/data/x.lance", f"{ROOT}/b/data/x.lance", "../b/data/x.lance"]
    assert belonging(a, *paths) == [OWN, OWN, OTHER, OUTSIDE]
    assert TableFiles(a).own_paths(paths[:1]) == {"data/x.lance": f"{A}/data/x.lance"}


def test_a_table_outside_all_roots_keeps_its_files():
    """A root was taken from its profile; files are refused by the store, not to be others'."""
    a = table_at("a", "s3://former/a")
    assert belonging(a, "s3://former/a/x", "s3://former/x") == [OWN, OUTSIDE]


# --- references --------------------------------------------------------------------------------


def test_unclaimed_directories_are_recorded_for_readers_of_the_later_table():
    a = table_at("a", A)
    references = TableFiles(a).references([f"{ROOT}/free/x", f"{A}/y", "s3://pond/x"])
    assert (references.sources, references.free) == (frozenset(), {f"{ROOT}/free"})
    file_references.record(actor=SYSTEM, table_id=a.pk, references=references)
    later = table_at("later", f"{ROOT}/free")
    recorded_references.record_claimed(later)
    assert list(FileReference.objects.values_list("table", "source")) == [(a.pk, later.pk)]


def test_unclaimed_files_could_not_be_read_before():
    """So a principal that may not read the later table has no reference to it."""
    a = table_at("a", A)
    FreeDirectory.objects.create(
        table=a, path=f"{ROOT}/free", is_prefix=False, principal="somebody"
    )
    later = table_at("later", f"{ROOT}/free")
    Table.objects.filter(pk=later.pk).update(located_at=timezone.now() + timedelta(hours=1))
    recorded_references.record_claimed(later)
    assert not FileReference.objects.exists()
    assert file_references.was_free_before([later.pk]) == {}


def test_many_directories_are_recorded_as_prefixes():
    a = table_at("a", A)
    directories = [f"{ROOT}/free/{number // 2}/{number}" for number in range(150)]
    file_references.record_free(actor=SYSTEM, table_id=a.pk, directories=directories)
    rows = list(FreeDirectory.objects.values_list("path", "is_prefix"))
    assert sorted(rows) == sorted((f"{ROOT}/free/{number}", True) for number in range(75))


def test_buckets_are_the_last_prefixes():
    a = table_at("a", A)
    directories = [f"s3://bucket-{number}/x/y" for number in range(101)]
    file_references.record_free(actor=SYSTEM, table_id=a.pk, directories=directories)
    paths = FreeDirectory.objects.values_list("path", flat=True)
    assert set(paths) == {f"s3://bucket-{number}" for number in range(101)}


@pytest.mark.parametrize(
    "directory",
    [f"{A}/data", f"{A}/x=a%2Fb", f"{A}/größe", f"{A}/100%", f"{A}/%25", f"{A}/{'d' * 230}"],
)
def test_the_short_check_of_a_name_agrees_with_the_full_one(directory: str):
    assert locations.literal_directory(directory) == directory
    parts = [
        "",
        "a",
        ".",
        "..",
        "%",
        "2e",
        "2F",
        "%2e",
        "\\",
        " ",
        "\t",
        "\x00",
        "é",
        "\u202e",
        "*",
    ]
    for name in {"".join(chosen) for chosen in itertools.product(parts, repeat=3)}:
        path = f"{directory}/{name}"
        is_plain = name not in {"", ".", ".."} and locations.literal_directory(path) is not None
        assert table_files._is_plain(path, name) is is_plain, path


@pytest.mark.parametrize(
    "path",
    [
        f"{A}/data/x",
        "s3a://lake/root/a/data/x",
        "S3N://lake/root/a/data/x",
        "s3:lake/root/a/data/x",
        "s3://k@lake:443/root/a/data/x",
        "s3://lake//root/./a/b/../data/x",
        f"{A}/data/x?version=1",
        f"{A}/data/x#part",
        f"{A}/data/x?\nversion=1",
        "x+y://lake/root/a/data/x",
        "file://lake/root/a/data/x",
        "gs://lake/root/a/data/x",
        "://lake/root/a/data/x",
    ],
)
def test_a_file_is_compared_as_the_object_that_any_reader_may_open(path: str):
    files = TableFiles(table_at("a", A))
    assert files.canonical([path]) == {path: f"{A}/data/x"}


def test_an_azure_file_is_compared_without_the_kind_of_its_address():
    files = TableFiles(table_at("a", "abfss://c@account.dfs.core.windows.net/a"))
    path = "wasbs://c@account.blob.core.windows.net/a/x"
    assert files.canonical([path, "rest"]) == {
        path: "abfss://c@account.dfs.core.windows.net/a/x",
        "rest": "rest",
    }


def test_local_files_are_no_objects(tmp_path):
    (tmp_path / "x").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    paths = [f"file:///{tmp_path}/x", f"FILE:{tmp_path}/link/x", f"{tmp_path}/link/x"]
    expected = dict.fromkeys(paths, f"{tmp_path}/x")
    assert TableFiles(table_at("a", A)).canonical(paths) == expected
    assert TableFiles(table_at("b", f"{tmp_path}/b")).canonical(paths) == expected
