"""Predicted effects of compaction and expiration; the procedures themselves run in tests/clients."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import ManifestContent, ManifestFile

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg import maintenance as iceberg_maintenance
from catalog.formats.iceberg.maintenance import DeleteFile, File, Rewrite, compaction, expiring
from tests.catalog.formats.iceberg.written import AnyIO, Written

MB = 1024**2
SCHEMA = {"fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}
OPTIONS: dict[str, Any] = {
    "target": 100 * MB,
    "small_ratio": 0.5,
    "min_files": 3,
    "deleted_ratio": 0.1,
}


def files(*sizes: int, group: str = "a", deleted: int = 0) -> list[File]:
    return [File((group,), size * MB, 1000, deleted) for size in sizes]


@pytest.mark.parametrize(
    ("properties_", "expected"),
    [
        ([], Rewrite(0, 0, 0, 0)),
        (files(1, 2, 3), Rewrite(3, 3, 6 * MB, 1)),
        (files(1, 2, 80), Rewrite(2, 0, 0, 0)),  # too few
        (files(1, 2) + files(3, 4, group="b"), Rewrite(4, 0, 0, 0)),  # too few of each partition
        (files(40, 40, 40), Rewrite(3, 3, 120 * MB, 2)),
        (files(35, 35, 39), Rewrite(3, 3, 109 * MB, 1)),  # without a remainder of 9
        (files(35, 35, 41), Rewrite(3, 3, 111 * MB, 2)),
        (files(*[40] * 13), Rewrite(13, 13, 520 * MB, 5)),
        (files(*[40] * 14), Rewrite(14, 14, 560 * MB, 6)),
        (files(100, 120, 150), Rewrite(0, 0, 0, 0)),
        (files(300), Rewrite(0, 1, 300 * MB, 3)),  # too large
        (files(100, deleted=100), Rewrite(0, 1, 100 * MB, 1)),
        (files(100, deleted=99), Rewrite(0, 0, 0, 0)),
        (files(100, deleted=1000), Rewrite(0, 1, 100 * MB, 0)),  # no file remains
        ([File((), MB, 0)] * 3, Rewrite(3, 3, 3 * MB, 0)),
    ],
)
def test_compaction(properties_: list[File], expected: Rewrite) -> None:
    assert compaction(properties_, **OPTIONS) == expected


def test_files_that_a_job_leaves_out_are_not_rewritten() -> None:
    left_out = [replace(file, is_left_out=True) for file in files(1, 2, 300)]
    assert compaction(left_out, **OPTIONS) == Rewrite(2, 0, 0, 0)
    assert compaction(left_out + files(3, 4), **OPTIONS) == Rewrite(4, 0, 0, 0)
    assert compaction(left_out + files(3, 4, 5), **OPTIONS) == Rewrite(5, 3, 12 * MB, 1)
    assert compaction(left_out + files(3), **OPTIONS, is_all=True) == Rewrite(3, 1, 3 * MB, 1)


def document(times: list[int], **more: Any) -> dict[str, Any]:
    """Snapshots 1, 2, 3... with these times, each the child of the previous."""
    return {
        "current-snapshot-id": len(times),
        "snapshots": [
            {"snapshot-id": number, "timestamp-ms": when}
            | ({"parent-snapshot-id": number - 1} if number > 1 else {})
            for number, when in enumerate(times, 1)
        ],
        "refs": {"main": {"snapshot-id": len(times), "type": "branch"}},
        **more,
    }


def branches(**refs: dict[str, Any]) -> dict[str, Any]:
    return {"refs": {name: {"type": "branch", **ref} for name, ref in refs.items()}}


@pytest.mark.parametrize(
    ("properties_", "retain_last", "expected"),
    [
        (document([]), 1, []),
        (document([10, 20, 30]), 1, []),
        (document([1, 2, 30]), 1, [1, 2]),
        (document([1, 2, 3]), 2, [1]),
        (document([1, 2, 3]), 5, []),
        (document([1, 2, 3], refs={}), 1, [1, 2]),
        (document([1, 30, 2, 3]), 1, [1, 2, 3]),  # an old snapshot ends the line
        (
            document([1, 2, 3], **branches(main={"snapshot-id": 3}, b={"snapshot-id": 2})),
            1,
            [1],
        ),
        (
            document(
                [1, 2, 3],
                **branches(main={"snapshot-id": 3}, t={"snapshot-id": 1, "type": "tag"}),
            ),
            1,
            [2],
        ),
        (
            document(
                [1, 2, 3],
                **branches(
                    main={"snapshot-id": 3},
                    t={"snapshot-id": 1, "type": "tag", "max-ref-age-ms": 50},
                ),
            ),
            1,
            [1, 2],
        ),
        (
            document([1, 2, 3], **branches(main={"snapshot-id": 3, "min-snapshots-to-keep": 3})),
            1,
            [],
        ),
        (
            document([1, 2, 3], **branches(main={"snapshot-id": 3, "max-snapshot-age-ms": 98})),
            1,
            [1],
        ),
        (document([1, 20, 3], **branches(main={"snapshot-id": 1})), 1, [3]),  # of no branch
        (document([1, 2], properties={"history.expire.max-ref-age-ms": "5"}), 1, [1]),
    ],
)
def test_expiring(properties_: dict[str, Any], retain_last: int, expected: list[int]) -> None:
    assert expiring(properties_, older_than=10, retain_last=retain_last, now=100) == expected


# --- the files of snapshots ----------------------------------------------------------------------


def name(path: str) -> str:
    return path.rpartition("/")[2]


def removable_files(made: Written, *snapshots: int, limit: int = 100) -> set[str] | None:
    removable = iceberg_maintenance.files_of(made.document, set(snapshots), AnyIO(), limit)
    return None if removable is None else {name(path) for path in removable}


@pytest.fixture
def rewritten(tmp_path: Path) -> Written:
    """Files 1 and 2; then 3 and 4, with file 1 in another manifest and without file 2."""
    made = Written(tmp_path, SCHEMA)
    first, two, three, four = (made.file([]) for _ in range(4))
    made.commit([first, two])
    made.commit([three])
    made.commit([four], existing=[(first, 1, 1001)], removed=[made.manifests[0].manifest_path])
    made.document["statistics"] = [
        {"snapshot-id": 1000 + n, "statistics-path": f"s{n}", "file-size-in-bytes": 1}
        for n in (1, 2, 3)
    ]
    made.document["partition-statistics"] = [{"snapshot-id": 1002, "statistics-path": "p2"}]
    return made


def test_files_of_expired_snapshots_only(rewritten: Written) -> None:
    lists = [name(snapshot["manifest-list"]) for snapshot in rewritten.document["snapshots"]]
    first = "m0-1001.avro"
    assert removable_files(rewritten, 1001) == {lists[0], "s1"}, "the next one has the manifest too"
    assert removable_files(rewritten, 1001, 1002) == {
        *lists[:2],
        first,
        "00002.parquet",
        "s1",
        "s2",
        "p2",
    }
    assert removable_files(rewritten) == set()
    every = removable_files(rewritten, 1001, 1002, 1003)
    assert every is not None
    assert {f"0000{n}.parquet" for n in (1, 2, 3, 4)} <= every


def test_too_many_files_give_no_result(rewritten: Written) -> None:
    assert removable_files(rewritten, 1001, 1002, limit=5) is not None
    assert removable_files(rewritten, 1001, 1002, limit=4) is None
    del rewritten.document["snapshots"][0]["manifest-list"]  # as v1 may
    assert removable_files(rewritten, 1001) is None


def test_a_manifest_that_cannot_be_read(rewritten: Written) -> None:
    Path(rewritten.directory, "metadata", "m0-1001.avro").write_bytes(b"torn")
    with pytest.raises(InvalidMetadata, match="m0-1001"):
        removable_files(rewritten, 1001, 1002)


# --- files after a rewrite -----------------------------------------------------------------------


def manifest(length: int, spec: int = 0, content: ManifestContent = ManifestContent.DATA) -> Any:
    return ManifestFile.from_args(
        _table_format_version=2, manifest_length=length, partition_spec_id=spec, content=content
    )


def test_manifests_of_the_current_spec_are_merged() -> None:
    deletes = [manifest(1000, content=ManifestContent.DELETES)] * 3
    every = [*[manifest(3 * MB)] * 4, *deletes, *[manifest(10, spec=1)] * 5]
    assert iceberg_maintenance.rewritten_manifests(every, 0, {}) == 2 + 1 + 5
    small = {"commit.manifest.target-size-bytes": str(MB)}
    assert iceberg_maintenance.rewritten_manifests(every, 0, small) == 12 + 1 + 5
    assert (
        iceberg_maintenance.rewritten_manifests(
            every, 1, {"commit.manifest.target-size-bytes": "?"}
        )
        == 7 + 1
    )
    assert iceberg_maintenance.rewritten_manifests([], 0, {}) == 0


DATA = {"a": ("p",), "b": ("p",), "c": ("q",)}
BY_PARTITION = {"write.delete.granularity": "partition"}


@pytest.mark.parametrize(
    ("files", "properties", "remaining"),
    [
        ([], {}, 0),
        ([("p", "a"), ("p", "b")], {}, 2),  # one per data file: a rewrite gains nothing
        ([("p", "a"), ("p", "a"), ("p", "b")], {}, 2),
        ([("p", "a"), ("p", "gone"), ("p", "gone")], {}, 1),
        ([("p", "gone"), ("p", "gone")], {}, 0),
        ([("p", None)] * 3, {}, 2),  # upper bound
        ([("p", None), ("q", None)], {}, 2),
        ([("q", None)] * 2, {}, 1),
        ([("p", "a"), ("p", "b"), ("q", "c")], BY_PARTITION, 2),
        ([("p", None)] * 30, BY_PARTITION, 1),
        ([("p", None)] * 3, BY_PARTITION | {"write.delete.target-file-size-bytes": "1500"}, 2),
        ([("p", None)] * 3, BY_PARTITION | {"write.delete.target-file-size-bytes": "1000"}, 3),
    ],
)
def test_remaining_delete_files_are_counted(
    files: list[tuple[str, str | None]], properties: dict[str, str], remaining: int
) -> None:
    delete_files = [DeleteFile((group,), 1000, path) for group, path in files]
    assert iceberg_maintenance.rewritten_delete_files(delete_files, DATA, properties) == remaining


def test_delete_files_that_a_job_leaves_out_remain() -> None:
    merged = [DeleteFile(("p",), 1000, None)] * 3
    left_out = [DeleteFile(("p",), 1000, None, is_left_out=True)] * 4
    count = iceberg_maintenance.rewritten_delete_files
    assert count(merged + left_out, DATA, BY_PARTITION) == 1 + 4
    assert count(left_out, DATA, BY_PARTITION) == 4


def test_files_of_unreadable_manifests_are_missing(rewritten: Written) -> None:
    paths = [snapshot["manifest-list"] for snapshot in rewritten.document["snapshots"]]
    lists = [name(path) for path in paths]
    first = rewritten.manifests[0].manifest_path
    first = first.replace(name(first), "m0-1001.avro")
    for unreadable in (set(paths[:2]), {first}):
        known = iceberg_maintenance.files_of(
            rewritten.document, {1001, 1002}, AnyIO(), 100, unreadable
        )
        assert known is not None
        assert {name(path) for path in known} == {*lists[:2], "s1", "s2", "p2"}
