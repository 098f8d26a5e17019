"""Manifests that name a range of a file which is larger than the memory: Lance allocates it before it reads."""

import datetime as dt
from pathlib import Path

import lance as pylance
import pyarrow as pa
import pytest

from catalog.formats.lance import manifest as lance_manifest
from tests.security.lance_attacks import (
    bytes_field,
    edited,
    manifest_in,
    number_field,
    text_field,
    with_field,
)

pytestmark = pytest.mark.django_db
HUGE = 1 << 46


def external(size: int) -> bytes:
    return text_field(1, "x") + number_field(3, size)


def with_reuse_index(directory: Path) -> pylance.LanceDataset:
    """A table whose compaction has left its index for later."""
    rows = pa.table({"id": range(10)})
    for _ in range(3):
        dataset = pylance.write_dataset(rows, str(directory), mode="append")
    dataset.create_scalar_index("id", "BTREE")
    dataset.optimize.compact_files(defer_index_remap=True)
    dataset.cleanup_old_versions(dt.timedelta(0), delete_unverified=True)
    return pylance.dataset(str(directory))


def forge(directory: Path, size: int) -> None:
    """Let the reuse index of a table refer to a range of a file of three bytes."""
    dataset = with_reuse_index(directory)
    with pytest.warns(DeprecationWarning, match="list_indices"):
        indices = dataset.list_indices()
    (index,) = (index for index in indices if index["type"] == "FragmentReuse")
    (manifest,) = directory.glob("_versions/*.manifest")
    change = bytes_field(2, external(size))
    manifest.write_bytes(edited(manifest.read_bytes(), [1, 6, 2], lambda _: change, index=True))
    (directory / "_indices" / index["uuid"]).mkdir(exist_ok=True)
    (directory / "_indices" / index["uuid"] / "x").write_bytes(b"abc")


@pytest.mark.parametrize("size", [HUGE, (64 << 20) + 1])
def test_a_huge_reuse_index_is_not_read(lance, warehouse, size):
    forge(warehouse / "mine" / "t", size)
    lance.post("/v1/namespace/mine/create", {})
    text = f"a range of a file has {size} bytes"
    lance.post("/v1/table/mine$t/register", {"location": "mine/t"})
    lance.refused(400, 13, text, "/v1/table/mine$t/index/list", {})


def test_a_huge_reuse_index_is_not_read_from_a_replaced_manifest(lance, warehouse):
    """A client with access to the files may replace the manifest of an open version."""
    with_reuse_index(warehouse / "mine" / "t")
    lance.post("/v1/namespace/mine/create", {})
    lance.post("/v1/table/mine$t/register", {"location": "mine/t"})
    lance.post("/v1/table/mine$t/count_rows", {})
    forge(warehouse / "mine" / "u", HUGE)
    (manifest,) = (warehouse / "mine" / "u").glob("_versions/*.manifest")
    (own,) = (warehouse / "mine" / "t").glob("_versions/*.manifest")
    own.write_bytes(manifest.read_bytes())
    for operation, body in (
        ("query", {"k": 3, "vector": {}, "filter": "id = 3"}),
        ("index/list", {}),
        ("index/id_idx/stats", {}),
        ("create_index", {"column": "id", "index_type": "BITMAP"}),
        ("delete", {"predicate": "id = 3"}),
    ):
        answer = lance.call("POST", f"/v1/table/mine$t/{operation}", body)
        assert answer.status_code == 400, (operation, answer.content)


@pytest.mark.parametrize("field", [6, 8, 10])
def test_huge_ranges_of_fragments_are_refused(tmp_path, field):
    pylance.write_dataset(pa.table({"id": [1]}), str(tmp_path / "t"), enable_stable_row_ids=True)
    manifest = manifest_in(tmp_path / "t")
    small = with_field(manifest, [2], bytes_field(field, external(3)))
    assert "x" in [path for _, path in lance_manifest.read(small).paths()]
    huge = with_field(manifest, [2], bytes_field(field, external(HUGE)))
    with pytest.raises(lance_manifest.NotAManifest, match="a range of a file has"):
        lance_manifest.read(huge)
