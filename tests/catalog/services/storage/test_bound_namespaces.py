"""Tables of a namespace that is bound to a profile, in a real store."""

import pytest

from catalog.access import SYSTEM
from catalog.models import Namespace, Table
from catalog.services.engine.commit import commit
from catalog.services.storage import namespace_locations, profile_bindings
from catalog.services.tables.namespace_operations import CreateMode, CreateNamespace
from catalog.storage import object_locations
from tests.factories import make_iceberg_table, make_lance_table, make_namespace, make_root

pytestmark = pytest.mark.django_db(transaction=True)


def test_files_of_both_formats_are_below_their_namespace_and_nowhere_else(
    s3, s3_profile, warehouse
):
    make_root()
    make_namespace("prod", "inner")
    profile_bindings.bind_namespace(actor=SYSTEM, namespace=("prod",), profile=s3_profile.name)
    make_lance_table(("prod", "inner", "lance"))
    make_iceberg_table("prod", "inner", "iceberg")
    base = namespace_locations.path_of(namespace_locations.line(("prod", "inner")))
    assert base.startswith(f"{s3_profile.roots[0]}/")
    rows = Table.objects.present().filter(namespace__path=["prod", "inner"])
    locations = {row.name: row.location for row in rows}
    assert locations["lance"].startswith(f"{base}/lance-")
    assert locations["iceberg"].startswith(f"{base}/iceberg-")
    bucket = object_locations.bucket_of(base)
    paths = [f"{bucket}/{key}" for key in s3.keys(bucket.removeprefix("s3://"), "")]
    for location in locations.values():
        assert any(path.startswith(f"{location}/") for path in paths)
    assert all(path.startswith(tuple(f"{each}/" for each in locations.values())) for path in paths)
    assert [path for path in warehouse.rglob("*") if path.is_file()] == []


def test_a_namespace_that_is_overwritten_keeps_its_profile(s3_profile):
    make_root()
    make_namespace("prod")
    profile_bindings.bind_namespace(actor=SYSTEM, namespace=("prod",), profile=s3_profile.name)
    commit([CreateNamespace(namespace=("prod",), mode=CreateMode.OVERWRITE)], actor=SYSTEM)
    storage = profile_bindings.storage_of(actor=SYSTEM, namespace=("prod",))
    assert (storage.profile, storage.is_inherited) == (s3_profile.name, False)
    make_iceberg_table("prod", "t")
    table = Table.objects.present().get(name="t")
    assert table.location.startswith(f"{s3_profile.roots[0]}/")
    assert Namespace.objects.live().filter(path=["prod"]).count() == 1
