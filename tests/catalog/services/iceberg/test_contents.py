"""The contents of a snapshot for a page: limits of files, and the text of a partition."""

from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.typedef import Record

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg import manifests
from catalog.services.iceberg import contents

LIST, MANIFEST = "file:///t/snap-1.avro", "file:///t/1.avro"


class Reader:
    """The sizes of files."""

    def __init__(self, size: int | OSError) -> None:
        self.outcome, self.asked = size, list[str]()

    def size(self, location: str) -> int:
        self.asked.append(location)
        if isinstance(self.outcome, OSError):
            raise self.outcome
        return self.outcome


@pytest.fixture(autouse=True)
def _unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MAX_BYTES", 10_000)
    monkeypatch.setattr(manifests, "read_list", lambda _, location: [location])
    monkeypatch.setattr(manifests, "read", lambda _, manifest: [manifest.manifest_path])


def read_list(reader: Any) -> Any:
    return contents.manifests_of(reader, {"manifest-list": LIST})


def read_manifest(reader: Any) -> Any:
    return contents.files_of(reader, SimpleNamespace(manifest_path=MANIFEST))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("read", "kind", "location"),
    [(read_list, "Manifest list", LIST), (read_manifest, "Manifest", MANIFEST)],
)
def test_large_and_unreadable_files_are_not_read_for_a_page(read, kind, location):
    reader = Reader(10_000)
    assert (read(reader), reader.asked) == ([location], [location])
    for outcome, message in (
        (10_001, "is too large to be shown: 10,001 bytes"),
        (FileNotFoundError(2, "No such file or directory"), "cannot be read: No such file or"),
    ):
        with pytest.raises(InvalidMetadata) as refused:
            read(Reader(outcome))
        assert refused.value.message.startswith(f"{kind} '{location}' {message}")


@pytest.mark.parametrize("location", [None, "", 5])
def test_a_snapshot_without_a_list_has_no_manifests_to_show(location):
    reader: Any = Reader(1)
    assert contents.manifests_of(reader, {"manifest-list": location}) == ()
    assert reader.asked == []


FIELDS = [
    {"id": 1, "name": "day", "type": "date", "required": False},
    {"id": 2, "name": "origin", "type": "string", "required": False},
]
DOCUMENT = {
    "current-schema-id": 1,
    "schemas": [
        {"type": "struct", "schema-id": 0, "fields": []},
        {"type": "struct", "schema-id": 1, "fields": FIELDS},
    ],
    "partition-specs": [
        {"spec-id": 0, "fields": []},
        {
            "spec-id": 5,
            "fields": [
                {"source-id": 1, "field-id": 1000, "name": "day", "transform": "identity"},
                {"source-id": 2, "field-id": 1001, "name": "from", "transform": "identity"},
            ],
        },
    ],
}


@pytest.mark.parametrize(
    ("spec_id", "values", "changed", "text"),
    [
        (5, (15736, "JFK"), {}, "day=2013-01-31/from=JFK"),
        (0, (), {}, ""),
        (5, (15736, "JFK"), {"current-schema-id": 0}, "day=15736/from=JFK"),  # dropped columns
        # The spec or the schema is missing.
        (7, (15736, "JFK"), {}, str(Record(15736, "JFK"))),
        (7, (), {}, ""),
        (5, (15736, "JFK"), {"schemas": None}, str(Record(15736, "JFK"))),
    ],
)
def test_the_text_of_a_partition(spec_id, values, changed, text):
    entry: Any = SimpleNamespace(spec_id=spec_id, file=SimpleNamespace(partition=Record(*values)))
    assert contents.partition_text(entry, DOCUMENT | changed) == text
