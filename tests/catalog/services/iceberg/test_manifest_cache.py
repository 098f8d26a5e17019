"""Manifests of object stores that were read lately."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pyiceberg.manifest import ManifestFile

from catalog.access import SYSTEM
from catalog.errors import ForeignFile
from catalog.models import StorageProfile
from catalog.services.iceberg import manifest_cache
from catalog.services.iceberg.files import TableFileIO
from catalog.services.iceberg.manifest_cache import ManifestCache, ManifestIdentity
from catalog.services.storage import profiles
from catalog.storage import stores
from catalog.storage.locations import is_object
from tests.stores.fixtures import Storage

CONTENT = b"manifest"
IDENTITY = ManifestIdentity(len(CONTENT), 1, 1)
LIMIT = 1000


@pytest.fixture
def path(storage: Storage) -> str:
    location = storage.location("t/m.avro")
    storage.write(location, CONTENT)
    return location


@pytest.fixture
def reads(path: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The number of files that were read."""
    kind = type(stores.store_of(path))
    real, paths = kind.read_ahead, []

    def read_ahead(self, batch, limit, sizes):
        paths.extend(batch)
        return real(self, batch, limit, sizes)

    monkeypatch.setattr(kind, "read_ahead", read_ahead)
    return lambda: len(paths)


def read(path: str, identity: ManifestIdentity | None = IDENTITY) -> bytes | OSError:
    (content,) = manifest_cache.contents([path], [identity], LIMIT)
    return content


@pytest.mark.django_db
def test_a_manifest_of_an_object_store_is_fetched_once(path: str, reads: Callable[[], int]):
    assert [read(path) for _ in range(3)] == [CONTENT] * 3
    assert reads() == (1 if is_object(path) else 3)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "other",
    [replace(IDENTITY, snapshot_id=2), replace(IDENTITY, sequence_number=2), None],
)
def test_another_manifest_at_the_same_path_is_fetched(
    storage: Storage, path: str, reads: Callable[[], int], other: ManifestIdentity | None
):
    assert read(path) == CONTENT
    storage.write(path, b"replaced")
    assert read(path, other) == b"replaced"
    assert reads() == 2


@pytest.mark.django_db
def test_a_file_of_another_length_is_not_cached(path: str, reads: Callable[[], int]):
    for _ in range(2):
        assert read(path, replace(IDENTITY, length=9)) == CONTENT
    assert reads() == 2


@pytest.mark.django_db
def test_errors_are_not_cached(storage: Storage, reads: Callable[[], int]):
    missing = storage.location("t/later.avro")
    assert isinstance(read(missing), FileNotFoundError)
    storage.write(missing, CONTENT)
    assert read(missing) == CONTENT


@pytest.mark.django_db
def test_cached_and_fetched_manifests_come_in_order(storage: Storage):
    paths = [storage.location(f"t/{number}") for number in range(6)]
    for number, name in enumerate(paths):
        storage.write(name, str(number).encode())
    identities = [ManifestIdentity(1, number, 1) for number in range(6)]
    for name, identity in list(zip(paths, identities, strict=True))[1::2]:
        assert read(name, identity) == name[-1:].encode()
    contents = list(manifest_cache.contents(paths, identities, LIMIT))
    assert contents == [b"0", b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.django_db
def test_a_cached_manifest_is_only_that_of_its_profile(path: str):
    assert read(path) == CONTENT
    StorageProfile.objects.all().delete()
    profiles.discard_cache()
    assert isinstance(read(path), OSError) is is_object(path)  # local files need no profile


@pytest.mark.django_db
def test_each_use_requires_that_the_manifest_may_be_read(path: str):
    """A reader that may not read the file is refused although another one has cached it."""
    listed = [
        ManifestFile.from_args(
            manifest_path=path,
            manifest_length=len(CONTENT),
            added_snapshot_id=1,
            sequence_number=1,
        )
    ]

    class Files:
        may_read = True

        def require_readable(self, actor: object, locations: set[str]) -> dict[str, str]:
            if not self.may_read:
                raise ForeignFile(path, ("ns", "t"))
            return {location: location for location in locations}

    files: Any = Files()
    assert list(TableFileIO(files, SYSTEM).manifests(listed)) == [CONTENT]
    files.may_read = False
    with pytest.raises(ForeignFile):
        list(TableFileIO(files, SYSTEM).manifests(listed))


def test_the_least_recently_used_are_dropped():
    cache = ManifestCache(max_bytes=10)
    cache.put("a", b"aaaa")
    cache.put("b", b"bbbb")
    assert cache.get("a") == b"aaaa"
    cache.put("c", b"cccc")
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (b"aaaa", None, b"cccc")
    cache.put("a", b"a")
    cache.put("d", b"ddddd")
    assert (cache.get("a"), cache.get("c"), cache.get("d")) == (b"a", b"cccc", b"ddddd")
    cache.put("e", b"e" * 11)
    assert all(cache.get(key) is None for key in "acde")
