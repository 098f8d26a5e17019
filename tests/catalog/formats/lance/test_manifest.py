"""Lance manifests are read without Lance. Results agree with Lance's, and no input blocks the
reader."""

import random
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from catalog.formats.lance import manifest as lance_manifest
from catalog.formats.lance import wire as lance_wire
from catalog.formats.lance.manifest import BasePath, Head, NotAManifest
from tests.factories import manifest


def newest(directory: Path) -> bytes:
    return min(Path(f"{directory}/_versions").glob("*.manifest")).read_bytes()


def ids(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64()), "s": [str(n) for n in numbers]})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A table with two fragments, a deletion file, an index, a branch and a clone of it."""
    path = tmp_path / "t"
    lance.write_dataset(ids(1, 2, 3), str(path))
    dataset = lance.write_dataset(ids(4), str(path), mode="append")
    dataset.delete("id = 2")
    dataset.create_scalar_index("id", "BTREE")
    dataset.create_branch("dev/x")
    dataset.shallow_clone(str(tmp_path / "clone"), dataset.version)
    return path


def on_disk(root: Path, *directories: str) -> set[str]:
    return {
        str(path.relative_to(root))
        for directory in directories
        for path in (root / directory).rglob("*")
        if path.is_file()
    }


def test_every_file_of_a_version_is_found(directory):
    contents = lance_manifest.read(newest(directory))
    assert contents.head == Head(4, "", ())
    files = {path for base, path in contents.paths() if base is None}
    assert files - on_disk(directory, "_transactions") == on_disk(
        directory, "data", "_deletions", "_indices"
    )
    assert len([path for path in files if path.startswith("_transactions/")]) == 1
    assert contents.has_blobs is False


def test_manifests_of_branches_and_clones_reference_the_table(directory, tmp_path):
    base = BasePath(0, str(directory), True)
    branch = lance_manifest.read(newest(directory / "tree/dev/x"))
    assert branch.head == Head(4, "dev/x", (base,))
    clone = lance_manifest.read(newest(tmp_path / "clone"))
    assert clone.head == Head(4, "", (base,))
    assert clone.needed_bases() == {0: base}
    paths = {path for where, path in clone.paths() if where == base}
    assert paths == on_disk(directory, "data", "_deletions", "_indices")


def test_blobs_require_all_base_paths(tmp_path):
    table = pa.table({"b": lance.blob_array([b"x"])})
    lance.write_dataset(table, str(tmp_path / "t"), data_storage_version="2.2")
    assert lance_manifest.read(newest(tmp_path / "t")).has_blobs is True


def test_the_digest_of_a_version_says_whether_it_has_blobs(tmp_path):
    """With blobs, files in every base path may be opened."""
    table = pa.table({"b": lance.blob_array([b"x"])})
    dataset = lance.write_dataset(table, str(tmp_path / "t"), data_storage_version="2.2")
    content = newest(tmp_path / "t")
    opened = lance_manifest.digest_of(dataset._ds.serialized_manifest())
    assert opened == lance_manifest.read(content).digest
    without_blobs = content.replace(b"lance.blob.v2", b"lance.clob.v2")
    assert opened != lance_manifest.read(without_blobs).digest


@pytest.mark.parametrize("number", [1, 127, 128, 2**31, 2**62])
def test_a_manifest_is_renumbered(directory, number):
    before = newest(directory)
    after = lance_manifest.with_version(before, number)
    assert lance_manifest.read(after).head.version == number
    assert lance_manifest.read(after).files == lance_manifest.read(before).files
    name = f"{2**64 - 1 - number:020d}.manifest"
    (directory / "_versions" / name).write_bytes(after)
    dataset = lance.dataset(str(directory), version=number)
    assert (dataset.version, dataset.count_rows("id >= 3")) == (number, 2)
    assert [index.name for index in dataset.describe_indices()] == ["id_idx"]


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../x",
        "a/../../x",
        "./x",
        "a//b",
        "",
        "a/",
        "%2e%2e/x",
        "..\\x",
        "a\nb",
        "a\0b",
        "file:///etc/passwd",
    ],
)
def test_escaping_paths_are_refused(path):
    with pytest.raises(NotAManifest, match="is not a plain path"):
        lance_manifest.read(manifest(1, files=[(path, None)]))


def test_a_missing_base_path_is_refused():
    with pytest.raises(NotAManifest, match="base path 3, which it does not have"):
        lance_manifest.read(manifest(1, files=[("x.lance", 3)]))


@pytest.mark.parametrize("field", [3, 18, 20])
def test_a_field_that_occurs_twice_is_refused(field):
    """Readers differ in which of the two they use."""
    twice = {3: b"\x18\x05", 18: b"\x92\x01\x04\x08\1\x08\2", 20: b"\xa2\x01\1a\xa2\x01\1b"}[field]
    content = manifest(1)[4:-16] + twice
    end = len(content).to_bytes(4, "little") + content + manifest(1)[-16:]
    with pytest.raises(NotAManifest, match="occurs twice"):
        lance_manifest.read_head(end)


def test_overlong_varints_are_read_like_protobuf():
    content = b"\x98\x80\x00\x85\x80\x00"  # field 3, number 5, each in more bytes than it needs
    end = len(content).to_bytes(4, "little") + content + manifest(1)[-16:]
    assert lance_manifest.read_head(end).version == 5


def test_damaged_manifests_are_refused_or_read(directory):
    """Bytes are changed, removed and inserted anywhere. No other exception occurs, and no path
    leaves the table."""
    dice = random.Random(20)
    good = newest(directory)
    refused = 0
    for _ in range(3000):
        bad = bytearray(good)
        for _ in range(dice.randint(1, 6)):
            kind = dice.random()
            at = dice.randrange(len(bad))
            if kind < 0.6:
                bad[at] = dice.randrange(256)
            elif kind < 0.8:
                del bad[at : at + dice.randint(1, 20)]
            else:
                bad[at:at] = dice.randbytes(dice.randint(1, 20))
        try:
            contents = lance_manifest.read(bytes(bad))
        except NotAManifest:
            refused += 1
            continue
        for _, path in contents.paths():
            assert not path.startswith("/")
            assert ".." not in path.split("/")
    assert refused > 2000


def test_random_bytes_are_refused():
    dice = random.Random(21)
    for _ in range(3000):
        content = dice.randbytes(dice.randrange(200))
        end = len(content).to_bytes(4, "little") + content
        data = end + (0).to_bytes(8, "little") + b"\0\0\2\0LANC"
        try:
            lance_manifest.read(data)
        except NotAManifest:
            continue


def test_numbers_and_texts_are_encoded_and_decoded():
    dice = random.Random(22)
    for number in [0, 1, 127, 128, 2**64 - 1, *(dice.randrange(2**64) for _ in range(500))]:
        encoded = lance_wire.encode_varint(number)
        assert lance_wire.varint(encoded, 0) == (number, len(encoded))
    with pytest.raises(lance_wire.MalformedMessage):
        lance_wire.varint(b"\xff" * 9 + b"\x7f", 0)
    with pytest.raises(lance_wire.MalformedMessage):
        lance_wire.varint(b"\xff" * 11, 0)
