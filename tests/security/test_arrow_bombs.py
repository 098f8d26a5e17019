"""Small Arrow streams that would expand to large ones are refused before they do."""

import io
import resource
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from django.conf import settings

from api.lance import arrow_messages
from tests.api.client import Lance
from tests.cases import shared_cases
from tests.factories import files, make_namespace, snapshot

pytestmark = pytest.mark.django_db
ROOM = 300 << 20
"""Maximum of additional memory that a refusal may use."""


@pytest.fixture(autouse=True)
def _namespace(db) -> None:
    make_namespace("ws")


@pytest.fixture
def bounded() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < ROOM


def encoded(table: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def claiming(size: int, compression: str = "zstd") -> bytes:
    """A small stream with a buffer that declares this uncompressed size."""
    count = 1 << 16
    content = bytearray(encoded(pa.table({"x": np.zeros(count, np.int64)}), compression))
    length_bytes = struct.pack("<q", 8 * count)
    assert content.count(length_bytes) == 1
    offset = content.index(length_bytes)
    content[offset : offset + 8] = struct.pack("<q", size)
    return bytes(content)


def send(lance: Lance, content: bytes, path: str = "ws$t/create"):
    return lance.client.generic(
        "POST",
        f"/v1/table/{path}",
        content,
        content_type="application/vnd.apache.arrow.stream",
        headers=lance.headers,
    )


def refused(lance: Lance, content: bytes, text: str) -> None:
    before, on_disk = snapshot(), files(Path(settings.MONODON_WAREHOUSE))
    answer = send(lance, content)
    assert answer.status_code == 400, answer.content
    assert answer.json()["code"] == 13
    assert text in answer.json()["error"]
    assert (snapshot(), files(Path(settings.MONODON_WAREHOUSE))) == (before, on_disk)


@shared_cases("compression", ["zstd", "lz4"])
@shared_cases("size", [1 << 30, 64 << 30, 1 << 62])
def test_a_buffer_with_a_false_size_of_gigabytes_is_refused(lance, bounded, compression, size):
    refused(lance, claiming(size, compression), "becomes more than 512 MiB")


def test_a_compressed_buffer_of_gigabytes_is_refused(lance, bounded):
    """Zeros compress well: each of the many columns has its declared size, and the batch is large."""
    zeros = np.zeros(1 << 20, np.int64)
    content = encoded(pa.table({f"c{n}": zeros for n in range(128)}), "zstd")
    assert len(content) < 1 << 20
    refused(lance, content, "becomes more than 512 MiB")


def compressed_as_in_arrow_0_17() -> bytes:
    """A stream of version 4 that names its compression in the custom metadata of the message only."""
    batch = pa.record_batch({"x": np.zeros(1 << 27, np.int64)})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch, custom_metadata={"ARROW:experimental_compression": "zstd"})
    content = bytearray(sink.getvalue().to_pybytes())
    start = content.index(b"\xff\xff\xff\xff", 4) + 8
    message = arrow_messages._Table(content[start:], *struct.unpack_from("<I", content, start))
    version = message._place(0)
    assert version is not None
    struct.pack_into("<h", content, start + version, 3)  # MetadataVersion.V4
    header = message.table(2)
    assert header is not None
    assert header.table(3) is not None
    struct.pack_into("<H", content, start + header._index + 4 + 2 * 3, 0)  # without the compression
    return bytes(content)


def test_the_compression_of_arrow_0_17_is_refused(lance):
    """Arrow still reads it, and takes the uncompressed sizes from the same place."""
    content = compressed_as_in_arrow_0_17()
    assert len(content) < 4 << 20
    assert pa.ipc.open_stream(content).read_next_batch().num_rows == 1 << 27
    refused(lance, content, "compressed as in Arrow 0.17")


def test_a_large_body_is_checked_while_it_streams(lance, bounded):
    """Beyond 4 MiB a body is read as a stream, batch by batch."""
    noise = np.random.default_rng(7).integers(0, 1 << 62, 1 << 20)
    plain = encoded(pa.table({"x": noise}))
    schema_end = plain.index(b"\xff\xff\xff\xff", 4)
    bomb = claiming(8 << 30)
    start = bomb.index(b"\xff\xff\xff\xff", 4)
    content = plain[:schema_end] + plain[schema_end:-8] + bomb[start:]
    assert len(content) > 8 << 20
    refused(lance, content, "becomes more than 512 MiB")


def test_a_dictionary_that_expands_is_refused(lance, bounded, monkeypatch):
    monkeypatch.setattr(arrow_messages, "MOST_EXPANDED", 16 << 20)
    words = pa.DictionaryArray.from_arrays(
        pa.array([0, 1], pa.int32()), pa.array(["x" * (10 << 20), "y" * (10 << 20)])
    )
    content = encoded(pa.table({"x": words}), "zstd")
    assert len(content) < 4 << 20
    refused(lance, content, "becomes more than 16 MiB")


def dictionaries(columns: int, replacements: int, *, delta: bool = False) -> bytes:
    """A small stream whose columns have dictionaries of 6 MiB of zeros each, sent several times."""
    zeros = [bytes(3 << 20), bytes((3 << 20) - 1)]
    schema = pa.schema([(f"c{n}", pa.dictionary(pa.int32(), pa.binary())) for n in range(columns)])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd", emit_dictionary_deltas=delta)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for number in range(replacements):
            words = zeros * (number + 1) if delta else zeros[:: 1 - 2 * (number % 2)]
            column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(words))
            writer.write_batch(pa.record_batch([column] * columns, schema=schema))
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("columns", "replacements"), [(10, 1), (1, 10)], ids=["of many columns", "that grows"]
)
def test_dictionaries_that_expand_together_are_refused(
    lance, bounded, monkeypatch, columns, replacements
):
    """Arrow keeps every dictionary until the end of the stream."""
    monkeypatch.setattr(arrow_messages, "MOST_EXPANDED", 16 << 20)
    content = dictionaries(columns, replacements, delta=replacements > 1)
    assert len(content) < 1 << 20
    refused(lance, content, "the dictionaries take more than 16 MiB")


def test_dictionaries_that_are_replaced_count_once(monkeypatch):
    monkeypatch.setattr(arrow_messages, "MOST_EXPANDED", 16 << 20)
    content = dictionaries(1, 10)
    messages = io.BufferedReader(arrow_messages.Messages(io.BytesIO(content)), 1 << 16)
    assert messages.read() == content


def test_metadata_with_a_false_size_of_gigabytes_is_refused(lance, bounded):
    refused(lance, b"\xff\xff\xff\xff" + struct.pack("<i", 2_000_000_000), "metadata of a message")
    refused(lance, b"\xff\xff\xff\xff" + struct.pack("<i", -5), "metadata of a message")


def test_corrupted_messages_are_refused_cleanly(lance):
    """Any change of the messages' metadata gives one of the catalog's own answers."""
    good = encoded(pa.table({"x": [1, 2, 3], "s": ["a", "b", None]}), "zstd")
    dice = np.random.default_rng(11)
    for number in range(150):
        content = bytearray(good)
        for offset in dice.integers(0, len(content), 3):
            content[offset] = dice.integers(0, 256)
        answer = send(lance, bytes(content), f"ws$n{number}/create")
        assert answer.status_code in {200, 400, 413}, (number, answer.content)


# --- views of the same bytes ---------------------------------------------------------------------


def views(count: int, nested: str) -> pa.Table:
    """Views that all refer to the same 64 KiB."""
    text = b"x" * (64 << 10)
    view = struct.pack("<i4sii", len(text), text[:4], 0, 0)
    buffers = [None, pa.py_buffer(view * count), pa.py_buffer(text)]
    array: pa.Array = pa.Array.from_buffers(pa.string_view(), count, buffers)
    match nested:
        case "struct":
            array = pa.StructArray.from_arrays([array], ["inner"])
        case "list":
            array = pa.ListArray.from_arrays([0, count], array)
        case "dictionary":
            array = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), array)
    return pa.table({"x": array})


@pytest.mark.parametrize("nested", ["", "struct", "list", "dictionary"])
def test_views_that_repeat_their_bytes_are_refused(lance, bounded, nested):
    """Lance copies the bytes for each view."""
    content = encoded(views(8193, nested))
    assert len(content) < 1 << 20
    refused(lance, content, "the views of a batch refer to more than 512 MiB")


def test_ordinary_views_are_written(lance):
    words = pa.array(["a", None, "a text of more than twelve bytes"] * 10, pa.string_view())
    assert send(lance, encoded(pa.table({"x": words.slice(1)}))).status_code == 200
    counted = lance.call("POST", "/v1/table/ws$t/count_rows", {"predicate": "x is null"})
    assert int(counted.content) == 10
    none = pa.table({"x": pa.array([], pa.string_view())})
    assert send(lance, encoded(none), "ws$none/create").status_code == 200


def test_lengths_of_null_views_do_not_count(lance):
    """What is below a null is not defined."""
    repeated = views(8193, "")["x"].chunk(0)
    valid = pa.py_buffer(bytes(8193 // 8 + 1))
    nulls = pa.Array.from_buffers(pa.string_view(), 8193, [valid, *repeated.buffers()[1:]])
    assert send(lance, encoded(pa.table({"x": nulls}))).status_code == 200


# --- values without bytes ------------------------------------------------------------------------

TRILLION = 10**12


def weightless(kind: str, count: int) -> pa.Array:
    """Null values in a few hundred bytes that would take Lance hours to write."""
    match kind:
        case "null":
            return pa.nulls(count)
        case "struct":
            return pa.StructArray.from_buffers(pa.struct([]), count, [None])
        case "binary":
            return pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(0), count, [None, pa.py_buffer(b"")]
            )
        case "in a list":
            return pa.LargeListArray.from_arrays(pa.array([0, count], pa.int64()), pa.nulls(count))
        case "in a fixed list":
            return pa.FixedSizeListArray.from_arrays(pa.nulls(count), 1000)
        case "in a struct":
            return pa.StructArray.from_arrays([pa.nulls(count)], ["x"])
        case "in a map":
            keys = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(0), count, [None, pa.py_buffer(b"")]
            )
            return pa.MapArray.from_arrays(pa.array([0, count], pa.int32()), keys, pa.nulls(count))
    raise AssertionError(kind)


def with_false_length(array: pa.Array, count: int) -> bytes:
    """A stream with the array, whose lengths are increased afterwards."""
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([array], names=["x"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content = sink.getvalue().to_pybytes()
    encoded_length = struct.pack("<q", len(array))
    assert content.count(encoded_length) >= 2  # of the batch and of its column
    return content.replace(encoded_length, struct.pack("<q", count))


@pytest.mark.parametrize("kind", ["null", "struct", "binary", "in a struct"])
def test_a_trillion_null_rows_are_refused(lance, bounded, kind):
    content = with_false_length(weightless(kind, 987_654), TRILLION)
    assert len(content) < 1000
    refused(lance, content, "values that take no bytes")


def test_null_columns_beside_a_bit_column_are_refused(lance, bounded):
    nulls, numbers = pa.nulls(20_000_000), pa.nulls(20_000_000, pa.bool_())
    refused(
        lance,
        encoded(pa.table({f"c{n}": nulls for n in range(70)} | {"b": numbers}), "zstd"),
        "take no bytes",
    )


@pytest.mark.parametrize("kind", ["in a list", "in a fixed list", "in a map"])
def test_nested_null_values_in_few_rows_are_refused(lance, bounded, kind):
    refused(lance, encoded(pa.table({"x": weightless(kind, 100_000_000)})), "take no bytes")


def test_null_columns_in_many_batches_are_refused(lance, bounded):
    batch = pa.record_batch([pa.nulls(1_000_000)], names=["x"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        for _ in range(20_000):
            writer.write_batch(batch)
    content = sink.getvalue().to_pybytes()
    assert len(content) < 4 << 20
    refused(lance, content, "take no bytes")


@pytest.mark.parametrize("path", ["insert", "merge_insert?on=x"])
def test_inserts_of_many_null_rows_are_refused(lance, bounded, path):
    assert send(lance, encoded(pa.table({"x": pa.nulls(3)}))).status_code == 200
    before, on_disk = snapshot(), files(Path(settings.MONODON_WAREHOUSE))
    answer = send(lance, with_false_length(weightless("null", 987_654), TRILLION), f"ws$t/{path}")
    assert answer.status_code == 400, answer.content
    assert (snapshot(), files(Path(settings.MONODON_WAREHOUSE))) == (before, on_disk)


def test_null_columns_beside_others_are_accepted(lance):
    """pandas writes such columns if they are empty."""
    rows = 100_000
    nulls = {f"c{n}": pa.nulls(rows) for n in range(300)}
    content = encoded(pa.table({"id": np.arange(rows)} | nulls))
    assert send(lance, content).status_code == 200
    alone = encoded(pa.table({"x": pa.nulls(5_000_000)}))
    assert send(lance, alone, "ws$alone/create").status_code == 200
    answer = lance.call("POST", "/v1/table/ws$alone/count_rows", {})
    assert int(answer.content) == 5_000_000


def test_rows_without_columns(lance, bounded):
    content = with_false_length(pa.nulls(987_654), TRILLION)
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, pa.schema([])).close()
    empty = sink.getvalue().to_pybytes()
    start = content.index(b"\xff\xff\xff\xff", 4)
    refused(lance, empty[:-8] + content[start:], "take no bytes")


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("rows", [0, 1, 1000, 700_000])
def test_ordinary_data_passes_unchanged(compression, rows):
    table = pa.table(
        {
            "id": np.arange(rows),
            "s": pa.array([f"text {n % 100}" for n in range(rows)]).dictionary_encode(),
        }
    )
    content = encoded(table, compression)

    messages = io.BufferedReader(arrow_messages.Messages(io.BytesIO(content)), 1 << 16)
    assert messages.read() == content


def test_a_table_from_compressed_batches(lance):
    table = pa.table({"id": np.arange(500_000), "s": ["word"] * 500_000})
    assert send(lance, encoded(table, "zstd")).status_code == 200
    assert send(lance, encoded(table, None), "ws$t/insert").status_code == 200
    answer = lance.call("POST", "/v1/table/ws$t/count_rows", {})
    assert int(answer.content) == 1_000_000


def test_a_schema_of_many_columns_is_answered(lance, bounded):
    schema = pa.schema([(f"c{n}", pa.int8()) for n in range(100_000)])
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, schema).close()
    answer = send(lance, sink.getvalue().to_pybytes())
    assert answer.status_code in {200, 400, 413}, answer.content[:500]
