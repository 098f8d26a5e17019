import gzip

import orjson
import pytest

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg import files
from tests.catalog.formats.iceberg.examples import UUID, table

GZIP = {"write.metadata.compression-codec": "GZIP"}


def refused(content):
    with pytest.raises(InvalidMetadata) as caught:
        files.load(content)
    return caught.value.message


def test_names():
    assert files.file_name(0, UUID, properties={}) == f"00000-{UUID}.metadata.json"
    assert files.file_name(12, UUID, properties=GZIP) == f"00012-{UUID}.gz.metadata.json"
    assert files.file_name(123456, UUID, properties={}) == f"123456-{UUID}.metadata.json"
    none = {"write.metadata.compression-codec": "none"}
    assert (files.is_gzip(GZIP), files.is_gzip(none), files.is_gzip({})) == (True, False, False)


@pytest.mark.parametrize(
    ("location", "sequence"),
    [
        (f"s3://b/t/metadata/00012-{UUID}.metadata.json", 12),
        (f"s3://b/t/metadata/00012-{UUID}.gz.metadata.json", 12),
        ("/t/metadata/v3.metadata.json", 3),
        ("v3.gz.metadata.json", 3),
        ("00007-x.metadata.json.gz", 7),
        ("s3://b/00009-x/metadata/current.metadata.json", -1),
        ("00012-x.avro", -1),
        ("", -1),
        ("9" * 19 + "-x.metadata.json", -1),
    ],
)
def test_the_sequence_is_parsed_from_the_name(location, sequence):
    assert files.sequence_of(location) == sequence


def test_unreadable_documents_are_not_written(monkeypatch):
    document = table()
    size = len(files.dump(document))
    monkeypatch.setattr(files, "MAX_BYTES", size)
    assert files.load(files.dump(document)) == document
    monkeypatch.setattr(files, "MAX_BYTES", size - 1)
    with pytest.raises(InvalidMetadata) as caught:
        files.dump(document)
    assert caught.value.message == (
        f"The metadata would have {size} bytes; {size - 1} are allowed, with 10000000 values. "
        "Expire snapshots, or remove what is not used any more"
    )


@pytest.mark.parametrize("beginning", [files._BEGINNING, 100])
def test_gzip_is_recognized_by_its_magic_bytes(monkeypatch, beginning):
    monkeypatch.setattr(files, "_BEGINNING", beginning)
    document = table()
    plain = files.dump(document)
    assert files.load(plain) == document
    assert files.load(gzip.compress(plain)) == document
    half = len(plain) // 2
    assert files.load(gzip.compress(plain[:half]) + gzip.compress(plain[half:])) == document


def test_files_without_metadata_are_refused():
    assert refused(b"").startswith("The metadata file is not JSON: ")
    assert refused(b"PAR1") == refused(b"PAR1")
    assert refused(b"[]") == "The document must be an object, not an array"
    packed = gzip.compress(files.dump(table()))
    assert refused(packed[:-20]) == "The metadata file ends within its gzip stream"
    # A block of the type that deflate keeps for itself, right behind the header.
    broken = packed[:10] + b"\xff" * 50
    assert refused(broken).startswith("The metadata file is not valid gzip: ")
    assert refused(b"\x1f\x8b").startswith("The metadata file ")


def test_a_decompression_bomb_is_refused(monkeypatch):
    monkeypatch.setattr(files, "MAX_BYTES", 1_000)
    monkeypatch.setattr(files, "_BEGINNING", 100)
    assert refused(b" " * 1_001) == "The metadata file is larger than 1000 bytes"
    for content in (
        gzip.compress(b" " * 10_000_000),
        b"".join(gzip.compress(b" " * 600) for _ in range(3)),
    ):
        assert refused(content) == "The metadata file is larger than 1000 bytes"
    assert files.load(gzip.compress(b"{}" + b" " * 998)) == {}


@pytest.mark.parametrize("value", [b"[],", b"{},", b"0,", b"[" * 900 + b"]" * 900 + b","])
def test_a_file_with_too_many_values_is_refused(value, monkeypatch):
    """30 kB of gzip would stand for 10 million lists, of 70 bytes each in memory."""
    monkeypatch.setattr(files, "MAX_VALUES", 1_000)
    content = b'{"a":[%s0]}' % (value * 1_001)
    for packed in (content, gzip.compress(content)):
        assert refused(packed) == "The metadata file has more than 1000 values"


def test_a_document_with_too_many_values_is_not_written(monkeypatch):
    """It could not be registered again."""
    monkeypatch.setattr(files, "MAX_VALUES", 1_000)
    assert files.load(files.dump({"a": list(range(500))}))
    with pytest.raises(InvalidMetadata, match="with 1000 values"):
        files.dump({"a": list(range(1_001))})


def test_too_deep_nesting_is_refused():
    def nested(levels):
        return b'{"a":' * levels + b"1" + b"}" * levels

    assert files.load(nested(200))
    assert refused(nested(250)).startswith("The metadata file cannot be written as JSON: ")
    assert refused(nested(5_000)).startswith("The metadata file is not JSON: ")
    with pytest.raises(InvalidMetadata, match="cannot be written as JSON"):
        files.dump(orjson.loads(nested(300)))
