"""The locations and directories of Iceberg tables and views: whose choice is checked, and against what."""

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from catalog.access import SYSTEM, Principal
from catalog.errors import ForeignFile, InvalidLocation, LocationTaken, ServiceUnavailable
from catalog.models import Namespace, StorageProfile
from catalog.privileges import Privilege, closure
from catalog.regular_files import NotRegular, TooLarge
from catalog.services.iceberg import commits, locations, tables, views
from catalog.services.iceberg.changes import TableChange
from catalog.storage import local_directories, local_files, stores
from catalog.storage.stores import AccessDenied, StorageUnavailable
from tests.api.iceberg.test_views import creation
from tests.factories import ICEBERG_SCHEMA, files, make_iceberg_table, make_namespace, unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
WRITER = Principal("writer", closure(Privilege.WRITE))


def set_properties(**properties: str) -> TableChange:
    update = {"action": "set-properties", "updates": properties}
    return TableChange(table=("ns", "t"), requirements=[], updates=[update])


def create_view(name: str, location: str | None) -> tables.LoadedTable:
    body = creation(name)
    return views.create_view(
        actor=SYSTEM,
        view=("ns", name),
        schema=body["schema"],
        view_version=body["view-version"],
        location=location,
    )


def stage(name: str, location: str | None = None, **options: object) -> tables.LoadedTable:
    return commits.create_table(
        actor=SYSTEM,
        table=("ns", name),
        schema=ICEBERG_SCHEMA,
        location=location,
        stage=True,
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("create", [create_view, stage])
def test_only_the_location_that_a_client_chooses_is_looked_up(create, warehouse, monkeypatch):
    make_namespace("ns")
    checked: list[str] = []
    real = locations.require_free_location

    def require(actor: Principal, location: str, **which: int) -> None:
        checked.append(location)
        real(actor, location, **which)

    monkeypatch.setattr(locations, "require_free_location", require)
    create("a", None)
    assert checked == []
    chosen = f"{warehouse}/chosen"
    create("b", f"file://{chosen}/")
    assert checked == [chosen]
    make_iceberg_table("ns", "other")
    holder = tables.load_table(actor=SYSTEM, table=("ns", "other"))
    with unchanged(), pytest.raises(LocationTaken):
        create("c", f"file://{holder.location}/below")


def test_a_directory_in_an_object_store_is_checked_for_the_namespace_of_the_table(
    warehouse, monkeypatch
):
    """Nothing is read there: the store does not exist."""
    make_iceberg_table("ns", "t")
    make_namespace("bound")
    lake = StorageProfile.objects.create(name="lake", kind="s3", roots=["s3://lake/tables"])
    inside = set_properties(**{"write.data.path": "s3://lake/tables/elsewhere"})
    before = files(warehouse)
    with monkeypatch.context() as patch:
        patch.setattr(local_files, "write_new_file", lambda *_: pytest.fail("it was written"))
        with unchanged(), pytest.raises(InvalidLocation, match="s3://lake/tables/elsewhere"):
            commits.commit_table(actor=WRITER, change=inside)
    assert files(warehouse) == before
    Namespace.objects.filter(name="ns").update(
        storage_profile=lake, location="s3://lake/tables/elsewhere"
    )
    below = set_properties(**{"write.data.path": "s3://lake/tables/elsewhere/data"})
    committed = commits.commit_table(actor=replace(WRITER, everywhere=Privilege.ALL), change=below)
    properties = committed.document["properties"]
    assert properties["write.data.path"] == "s3://lake/tables/elsewhere/data"


@pytest.mark.parametrize("ending", ["", "/"])
def test_slashes_at_the_end_of_a_directory_count_for_nothing(ending, warehouse):
    location = f"file://{warehouse}/TX"
    created = make_iceberg_table("ns", "t", location=f"{location}{ending}")
    assert created.metadata_location.startswith(f"{location}/metadata/00000-")
    chosen = set_properties(**{"write.metadata.path": f"file://{warehouse}/TX/INDEX{ending}"})
    moved = commits.commit_table(actor=SYSTEM, change=chosen)
    assert moved.metadata_location.startswith(f"{location}/INDEX/00001-")
    assert Path(moved.metadata_location.removeprefix("file://")).exists()


def test_the_directory_of_a_staged_table_exists(warehouse):
    make_namespace("ns")
    staged = stage("t")
    assert Path(staged.location, "metadata").is_dir()
    assert files(staged.location) == {}
    path = f"file://{warehouse}/chosen"
    staged = stage("u", properties={"write.metadata.path": path})
    assert Path(warehouse, "chosen").is_dir()
    assert not Path(staged.location).exists()


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            ServiceUnavailable,
            "The table's directory cannot be made: No space left on device",
        ),
        (
            OSError(errno.ENAMETOOLONG, "File name too long"),
            InvalidLocation,
            "Location '{}' cannot be: File name too long",
        ),
        (
            OSError("the store is silent"),
            ServiceUnavailable,
            "The table's directory cannot be made: the store is silent",
        ),
    ],
)
def test_a_directory_that_cannot_be_made_refuses_a_staged_table(
    warehouse, monkeypatch, error, kind, message
):
    make_namespace("ns")
    location = f"file://{warehouse}/t"

    def fail(_: str) -> None:
        raise error

    monkeypatch.setattr(local_directories, "make_directory", fail)
    with unchanged(), pytest.raises(kind) as refused:
        stage("t", location)
    assert type(refused.value) is kind
    assert refused.value.message == message.format(location)
    assert files(warehouse) == {}


def test_a_file_in_place_of_the_directory_refuses_a_staged_table(warehouse):
    make_namespace("ns")
    (warehouse / "file").write_bytes(b"a file")
    before = files(warehouse)
    with unchanged(), pytest.raises(InvalidLocation) as refused:
        stage("t", f"file://{warehouse}/file")
    assert refused.value.message == (
        f"Location 'file://{warehouse}/file' cannot be: a link or a file is on its path"
    )
    assert files(warehouse) == before


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (TooLarge("large"), InvalidLocation, "Location '/t/1.json' is larger than 99 bytes"),
        (NotRegular("a pipe"), InvalidLocation, "Location '/t/1.json' is no file"),
        (
            OSError(errno.ENOENT, "No such file or directory"),
            InvalidLocation,
            "Location '/t/1.json' cannot be read: No such file or directory",
        ),
        (
            StorageUnavailable("lake", "503", retry_seconds=9),
            ServiceUnavailable,
            "storage profile 'lake' is unavailable: 503",
        ),
        (
            AccessDenied("lake", "403"),
            ServiceUnavailable,
            "storage profile 'lake' has no access: 403",
        ),
    ],
)
def test_a_metadata_file_that_cannot_be_read_is_named(monkeypatch, error, kind, message):
    limits: list[int] = []

    def read(_: str, limit: int) -> None:
        limits.append(limit)
        raise error

    monkeypatch.setattr(stores, "store_of", lambda _: SimpleNamespace(read=read))
    with pytest.raises(kind) as refused:
        locations.read_metadata("/t/1.json", 99)
    assert (refused.value.message, limits) == (message, [99])
    if kind is ServiceUnavailable:
        assert refused.value.retry_seconds == stores.retry_seconds(error)


def test_a_location_in_an_object_store_is_checked_for_the_namespace_of_the_table(warehouse):
    make_namespace("ns")
    StorageProfile.objects.create(name="lake", kind="s3", roots=["s3://lake/tables"])
    creator = Principal("creator", closure(Privilege.CREATE) | closure(Privilege.READ))
    location = "s3://lake/tables/t"
    body = creation("v")
    calls: list[Callable[[], object]] = [
        lambda: commits.create_table(
            actor=creator, table=("ns", "t"), schema=ICEBERG_SCHEMA, location=location
        ),
        lambda: views.create_view(
            actor=creator,
            view=("ns", "v"),
            schema=body["schema"],
            view_version=body["view-version"],
            location=location,
        ),
    ]
    make_iceberg_table("ns", "registered")
    moved = TableChange(
        table=("ns", "registered"),
        requirements=[],
        updates=[
            {"action": "set-properties", "updates": {"write.data.path": "s3://lake/tables/x"}}
        ],
    )
    last = commits.commit_table(actor=SYSTEM, change=moved)
    tables.unregister_table(actor=SYSTEM, table=("ns", "registered"))
    calls.append(
        lambda: commits.register_table(
            actor=creator, table=("ns", "again"), metadata_location=last.metadata_location
        )
    )
    before = files(warehouse)
    for call in calls:
        with unchanged(), pytest.raises(InvalidLocation, match="s3://lake/tables"):
            call()
    assert files(warehouse) == before


def test_a_refusal_of_a_link_names_the_new_table(warehouse):
    make_namespace("ns")
    other = make_iceberg_table("secret", "t").location
    directory = warehouse / "chosen"
    directory.mkdir()
    (directory / "metadata").symlink_to(f"{other}/metadata")
    for create in (stage, create_view):
        with unchanged(), pytest.raises(ForeignFile, match=r"to table 'ns\.new'"):
            create("new", f"file://{directory}")
