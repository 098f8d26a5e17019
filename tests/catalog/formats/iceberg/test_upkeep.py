"""What compaction and expiration would do; the procedures themselves run in tests/clients."""

from typing import Any

import pytest

from catalog.formats.iceberg.upkeep import File, Rewrite, compaction, expiring

MB = 1024**2
OPTIONS: dict[str, Any] = {
    "target": 100 * MB,
    "small_ratio": 0.5,
    "min_files": 3,
    "deleted_ratio": 0.1,
}


def files(*sizes: int, group: str = "a", deleted: int = 0) -> list[File]:
    return [File((group,), size * MB, 1000, deleted) for size in sizes]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], Rewrite(0, 0, 0, 0)),
        (files(1, 2, 3), Rewrite(3, 3, 6 * MB, 1)),
        (files(1, 2, 80), Rewrite(2, 0, 0, 0)),  # too few
        (files(1, 2) + files(3, 4, group="b"), Rewrite(4, 0, 0, 0)),  # too few of each partition
        (files(40, 40, 40), Rewrite(3, 3, 120 * MB, 2)),
        (files(100, 120, 150), Rewrite(0, 0, 0, 0)),
        (files(300), Rewrite(0, 1, 300 * MB, 3)),  # too large
        (files(100, deleted=100), Rewrite(0, 1, 100 * MB, 1)),
        (files(100, deleted=99), Rewrite(0, 0, 0, 0)),
        (files(100, deleted=1000), Rewrite(0, 1, 100 * MB, 0)),  # nothing is left of it
        ([File((), MB, 0)] * 3, Rewrite(3, 3, 3 * MB, 0)),
    ],
)
def test_compaction(given: list[File], expected: Rewrite) -> None:
    assert compaction(given, **OPTIONS) == expected


def document(times: list[int], **more: Any) -> dict[str, Any]:
    """Snapshots 1, 2, 3... of these times, each after the one before."""
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
    ("given", "retain_last", "expected"),
    [
        (document([]), 1, []),
        (document([10, 20, 30]), 1, []),
        (document([1, 2, 30]), 1, [1, 2]),
        (document([1, 2, 3]), 2, [1]),
        (document([1, 2, 3]), 5, []),
        (document([1, 2, 3], refs={}), 1, [1, 2]),
        (document([1, 30, 2, 3]), 1, [1, 2, 3]),  # an old one ends the line
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
def test_expiring(given: dict[str, Any], retain_last: int, expected: list[int]) -> None:
    assert expiring(given, older_than=10, retain_last=retain_last, now=100) == expected
