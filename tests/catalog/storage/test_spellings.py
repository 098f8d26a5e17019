"""The files that readers open for texts in Iceberg metadata."""

from pathlib import Path

import pytest

from catalog.storage import spellings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("file:/t/x", {"file:/t/x"}),
        ("/t/x?a#b", {"/t/x?a#b", "/t/x"}),
        ("/t/link/../x", {"/t/link/../x", "/t/x"}),
        (
            "FILE://localhost//t/a/../x#b",
            {"FILE://localhost//t/a/../x#b", "FILE://localhost//t/a/../x", "/t/x"},
        ),
        ("s3://t/a/../x", {"s3://t/a/../x"}),
        ("a/../x", {"a/../x"}),
        ("", {""}),
    ],
)
def test_readers_understand_a_text_differently(text: str, expected: set[str]):
    assert set(spellings.readings(text)) == expected


@pytest.mark.parametrize("text", ["{at}/link/x", "file:{at}/x", "FILE:///{at}//link/./x"])
def test_a_local_file_has_one_path(tmp_path: Path, text: str):
    (tmp_path / "x").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    assert spellings.local_file(text.format(at=tmp_path)) == f"{tmp_path}/x"


def test_links_of_long_paths_are_followed_in_linear_time(tmp_path: Path):
    (tmp_path / "x").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    assert spellings.local_file(f"{tmp_path}/link{'/.' * 500_000}/x") == f"{tmp_path}/x"
    long = "/a" * 500_000
    assert spellings.local_file(long) == long


@pytest.mark.parametrize("text", ["", "x", "file:x", "/a\0b", "/\ud800", "s3://t/x"])
def test_other_texts_stay(text: str):
    assert spellings.local_file(text) == text


def test_objects_are_those_of_the_tables_store():
    assert spellings.object_of("x://t/k?v", "s3://t/data") == "s3://t/k"
    assert spellings.object_of("x://t/k?v", "/data") is None
    assert spellings.object_of("s3a://t/k?v", "/data") == "s3://t/k"
    assert spellings.object_of("file:///t/k", "s3://t/data") is None
    assert spellings.object_of("/t/k", "s3://t/data") is None
