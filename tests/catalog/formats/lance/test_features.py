"""Manifests after which no client could write, and settings of Lance's automatic clean-up."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from catalog.formats.lance import features
from catalog.formats.lance import manifest as lance_manifest
from catalog.formats.lance.manifest import NotAManifest
from tests.security import lance_attacks as attacks

ROWS = pa.table({"id": [1]})
READER, WRITER, FRAGMENT, FIELD = 9, 10, 11, 24


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The only manifest of a table."""
    lance.write_dataset(ROWS, str(tmp_path / "t"))
    (path,) = Path(f"{tmp_path}/t/_versions").glob("*.manifest")
    return path


def with_numbers(content: bytes, numbers: dict[int, int]) -> bytes:
    for field, value in numbers.items():
        content = attacks.edited(content, [], attacks.without_field(field))
        content = attacks.with_field(content, [], attacks.number_field(field, value))
    return content


def obstacle(content: bytes) -> str:
    """The obstacle, which is the same in the head and in the whole manifest."""
    end = content[lance_manifest.message_start(content[-16:], len(content)) :]
    of_manifest = lance_manifest.read(content).head.obstacle
    assert of_manifest == lance_manifest.read_head(end).obstacle
    return of_manifest


def is_refused_by_lance(path: Path) -> bool:
    try:
        lance.write_dataset(ROWS, str(path.parent.parent), mode="append")
    except (OSError, ValueError, RuntimeError):
        return True
    return False


@pytest.mark.parametrize("flag", [0, *range(2, 20)])  # 1 requires row ids in each fragment
def test_flags_are_refused_as_lance_refuses_them(path, flag):
    """A new release of Lance may support more flags: then ``features`` must follow."""
    numbers = {READER: 1 << flag, WRITER: 1 << flag}
    if flag == 15:
        numbers = {WRITER: 1 << flag, FIELD: 0}
    content = with_numbers(path.read_bytes(), numbers)
    path.write_bytes(content)
    is_supported = bool(features.SUPPORTED_FLAGS & 1 << flag)
    assert bool(obstacle(content)) is not is_supported
    assert is_refused_by_lance(path) is not is_supported


@pytest.mark.parametrize(
    "numbers",
    [
        {READER: 1 << 40},
        {WRITER: 1 << 40},
        {WRITER: 1 << 63},
        *({field: 1 << flag} for field in (READER, WRITER) for flag in (8, 10, 14)),
        {WRITER: 1 << 15},
        {FIELD: 7},
        {READER: 1 << 15, WRITER: 1 << 15, FIELD: 7},
    ],
)
def test_manifests_that_lance_refuses_have_an_obstacle(path, numbers):
    content = with_numbers(path.read_bytes(), numbers)
    path.write_bytes(content)
    assert is_refused_by_lance(path)
    assert "feature" in obstacle(content)


def test_a_manifest_without_room_for_fragments_has_an_obstacle(path):
    content = path.read_bytes()
    assert obstacle(with_numbers(content, {FRAGMENT: features.MAX_FRAGMENT_ID})) == ""
    for highest in (features.MAX_FRAGMENT_ID + 1, 2**32 - 1):
        assert str(highest) in obstacle(with_numbers(content, {FRAGMENT: highest}))


def test_a_fragment_with_too_high_an_id_is_an_obstacle(path):
    content = attacks.edited(path.read_bytes(), [], attacks.without_field(FRAGMENT))
    highest = attacks.with_field(content, [2], attacks.number_field(1, 2**32 - 1))
    assert str(2**32 - 1) in obstacle(highest)


def numbered(content: bytes, *ids: int) -> bytes:
    """The manifest with these ids of its fragments."""
    remaining = iter(ids)
    return attacks.edited(
        content,
        [2],
        lambda fragment: (
            attacks.number_field(1, next(remaining)) + attacks.without_field(1)(fragment)
        ),
    )


def without_row_ids(*removed_from: int) -> Callable[[bytes], bytes]:
    """A change that removes the row ids of fragments."""

    def change(content: bytes) -> bytes:
        position = count()
        return attacks.edited(
            content,
            [2],
            lambda fragment: (
                attacks.without_field(5)(fragment) if next(position) in removed_from else fragment
            ),
        )

    return change


def without_highest(content: bytes) -> bytes:
    return attacks.edited(content, [], attacks.without_field(FRAGMENT))


@pytest.mark.parametrize("has_row_ids", [False, True])
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda content: content, ""),
        (lambda content: numbered(content, 0, 0, 1), "repeats the id"),
        (lambda content: numbered(content, 2, 1, 2), "repeats the id"),
        (lambda content: numbered(content, 0, 1, 3), "highest fragment id is 3, and it states 2"),
        (lambda content: numbered(without_highest(content), 0, 5, 9), ""),
        (lambda content: numbered(content, 2, 0, 1), ""),
    ],
)
def test_fragments_are_refused_if_lance_cannot_append(tmp_path, has_row_ids, change, problem):
    newest = with_fragments(tmp_path, has_row_ids=has_row_ids)
    content = change(newest.read_bytes())
    newest.write_bytes(content)
    assert problem in obstacle(content)
    assert bool(obstacle(content)) is bool(problem)
    assert is_refused_by_lance(newest) is bool(problem)


@pytest.mark.parametrize(
    ("has_row_ids", "change"),
    [
        (True, without_row_ids(0, 1, 2)),
        (True, without_row_ids(0)),
        (True, without_row_ids(2)),
        (True, lambda content: with_numbers(content, {READER: 0, WRITER: 0})),
        (True, lambda content: with_numbers(content, {READER: 0, WRITER: 2})),
        (False, lambda content: with_numbers(content, {READER: 2, WRITER: 2})),
        (False, lambda content: with_numbers(content, {READER: 2})),
    ],
)
def test_row_ids_that_contradict_the_flags_are_refused(tmp_path, has_row_ids, change):
    newest = with_fragments(tmp_path, has_row_ids=has_row_ids)
    content = change(newest.read_bytes())
    newest.write_bytes(content)
    assert obstacle(content) == "its feature flags contradict the row ids of its fragments"
    assert is_refused_by_lance(newest)


def with_fragments(directory: Path, *, has_row_ids: bool) -> Path:
    """The newest manifest of a table with three fragments."""
    location = str(directory / "t")
    lance.write_dataset(ROWS, location, enable_stable_row_ids=has_row_ids)
    for _ in range(2):
        lance.write_dataset(ROWS, location, mode="append")
    newest = min(Path(f"{location}/_versions").glob("*.manifest"))
    assert obstacle(newest.read_bytes()) == ""
    return newest


def test_settings_of_the_automatic_clean_up_are_read_and_removed(path):
    directory = path.parent.parent
    dataset = lance.dataset(str(directory))
    dataset.update_config({"a": "lance.auto_cleanup.interval", "lance.other": "1"})
    dataset.optimize.enable_auto_cleanup({"interval": 3, "older_than_seconds": 60})
    newest = min(path.parent.glob("*.manifest"))
    content = newest.read_bytes()
    assert sorted(lance_manifest.read(content).head.auto_cleanup) == [
        ("lance.auto_cleanup.interval", "3"),
        ("lance.auto_cleanup.older_than", "60s"),
    ]
    after = lance_manifest.without_auto_cleanup(content)
    assert lance_manifest.read(after).head.auto_cleanup == ()
    assert lance_manifest.read(after).files == lance_manifest.read(content).files
    newest.write_bytes(after)
    dataset = lance.dataset(str(directory))
    assert dataset.config() == {"a": "lance.auto_cleanup.interval", "lance.other": "1"}
    assert (dataset.version, dataset.to_table()) == (3, ROWS)


def test_a_setting_that_readers_may_read_differently_is_refused(path):
    twice = attacks.text_field(1, "a") + attacks.text_field(1, "lance.auto_cleanup.interval")
    content = attacks.with_field(path.read_bytes(), [], attacks.bytes_field(16, twice))
    with pytest.raises(NotAManifest, match="occurs twice"):
        lance_manifest.read(content)


def test_a_manifest_without_settings_stays_the_same(path):
    content = path.read_bytes()
    assert lance_manifest.without_auto_cleanup(content) == content
