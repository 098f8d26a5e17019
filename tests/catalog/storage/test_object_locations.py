"""Hostile spellings of locations in object stores are refused before anything is requested."""

from collections.abc import Callable, Iterable

import pytest

from catalog.errors import InvalidLocation, InvalidManifestPath
from catalog.storage import locations, object_locations, stores
from tests.catalog.storage import configurations
from tests.catalog.storage.answering_server import AnsweringServer
from tests.hostile_locations import (
    AUTHORITIES,
    CHARACTERS,
    DIRECTORIES,
    FILES_AND_DIRECTORIES,
    KEYS,
    OTHER_AUTHORITIES,
    OUTSIDE,
    ROOT,
)


@pytest.fixture
def store(answering: AnsweringServer, monkeypatch) -> AnsweringServer:
    """The store of ``s3://lake/root``, which records every request."""
    configuration = configurations.of_endpoint(answering.url)
    monkeypatch.setattr(stores, "_source", lambda fresh: (configuration,))
    return answering


def test_there_are_many_forms():
    assert len({*FILES_AND_DIRECTORIES, *DIRECTORIES, *OUTSIDE}) >= 300


def test_the_store_records_requests(store):
    location = locations.check_location(f"{ROOT}/t")
    assert stores.store_of(location).size(f"{location}/f") is None
    assert [(request.method, request.path) for request in store.requests] == [
        ("HEAD", "/lake/root/t/f")
    ]


def accepted(check: Callable[[str], object], texts: Iterable[str]) -> list[str]:
    """The texts that a check does not refuse."""
    accepted_texts = []
    for text in texts:
        try:
            check(text)
        except InvalidLocation:
            continue
        accepted_texts.append(text)
    return accepted_texts


@pytest.mark.parametrize("check", [locations.check_location, locations.iceberg_path])
def test_hostile_locations_are_refused(store, warehouse, check):
    assert accepted(check, [*FILES_AND_DIRECTORIES, *DIRECTORIES, *OUTSIDE]) == []
    assert store.requests == []


def test_hostile_paths_are_no_files(store):
    assert accepted(object_locations.canonical_file, FILES_AND_DIRECTORIES) == []
    assert store.requests == []


def test_hostile_paths_are_in_no_table(store):
    """As a manifest path, spelled as URI, relative to the bucket, and relative to the table."""
    for text in (*AUTHORITIES, *OTHER_AUTHORITIES, *KEYS, *CHARACTERS):
        for path in (text, text.removeprefix("s3://lake/"), text.removeprefix(f"{ROOT}/")):
            try:
                relative = locations.path_in_table(f"{ROOT}/t", path)
            except InvalidManifestPath:
                continue
            if relative is not None:
                # Not hostile without its beginning: exactly this file of the table.
                inside = f"{ROOT}/t/{relative}"
                assert object_locations.canonical_file(inside) == inside
                assert path.endswith(relative)
    assert store.requests == []


@pytest.mark.parametrize(
    "text",
    [
        f"{ROOT}/t",
        f"{ROOT}/t/",
        f"{ROOT}/a b/c",
        f"{ROOT}/x=1/y+z@w,(v)!'~&:u",
        f"{ROOT}/...",
        f"{ROOT}/..t/t..",
        f"{ROOT}/.hidden",
    ],
)
def test_a_canonical_location_is_itself(store, text):
    assert locations.check_location(text) == text.removesuffix("/")
    assert locations.iceberg_path(text) == text.removesuffix("/")
    assert store.requests == []


@pytest.mark.parametrize(
    "name", ["x=a%2Fb.parquet", "a%20b", "100%", "a#b", "a?b", "größe", "e\u0301", "🧊", "[*]${}"]
)
def test_a_file_keeps_its_name(name):
    assert object_locations.canonical_file(f"{ROOT}/{name}") == f"{ROOT}/{name}"


def test_parts_of_a_location():
    assert object_locations.bucket_of(f"{ROOT}/t") == "s3://lake"
    assert object_locations.key_of(f"{ROOT}/t") == "root/t"
    assert object_locations.key_of("s3://lake") == ""
    assert locations.parents(f"{ROOT}/t") == [ROOT, "s3://lake"]


def test_the_profile_of_a_path(store):
    for path in (ROOT, f"{ROOT}/t", f"{ROOT}/t/data/f"):
        configuration = stores.configuration_of(path)
        assert configuration is not None
        assert configuration.profile == "lake"
    for path in ("s3://lake", "s3://lake/root2", "s3://lake/roo", "gs://lake/root/t"):
        assert stores.configuration_of(path) is None
        with pytest.raises(stores.StorageUnavailable):
            stores.store_of(path)
    assert store.requests == []
