"""Scores of a zoo of Iceberg tables have the order of the measured savings of maintenance, and predict them.

The cost of a read is what PyIceberg requests from the file system, before and after the maintenance.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from django.db import transaction
from fsspec.implementations.local import LocalFileSystem
from pyarrow import fs, parquet
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import StaticTable

from catalog import policies, read_costs
from catalog.planning import Statistics
from catalog.services.maintenance import iceberg_statistics
from tests.catalog.formats.iceberg.written import DATA, EQUALITY, POSITION, Written
from tests.catalog.services.maintenance.test_iceberg_equality_deletes import register

pytestmark = [pytest.mark.django_db, pytest.mark.filterwarnings("ignore")]
ROWS, WIDTH, PARTITIONS = 40_000, 25, 8
POLICY = policies.effective([])
SCHEMA = {
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long"},
        {"id": 2, "name": "part", "required": True, "type": "long"},
        *(
            {"id": 3 + number, "name": f"v{number}", "required": True, "type": "double"}
            for number in range(WIDTH)
        ),
    ]
}
BY_PART = {"fields": [{"source-id": 2, "transform": "identity", "name": "part", "field-id": 1000}]}
IDS = {"file_path": 2147483546, "pos": 2147483545} | {
    field["name"]: field["id"] for field in SCHEMA["fields"]
}


@dataclass(frozen=True)
class Layout:
    """A table of 8 MB."""

    files: int = 1
    manifests: int = 1
    live: float = 1.0
    """Share of the rows that the data files have."""
    partitions: tuple[int, ...] = ()
    """Files of each partition; empty: the table has none."""
    deleted: float = 0.0
    """Share of the rows that position deletes name, by a delete file for each data file."""
    equality: int = 0
    """Equality delete files; each has ten keys."""
    dangling: int = 0
    """Delete files that apply to no data file."""


ZOO = {
    "one file": Layout(),
    "5 files": Layout(5),
    "12 files": Layout(12),
    "40 files": Layout(40),
    "100 files": Layout(100),
    "100 files in 100 manifests": Layout(100, 100),
    "skewed partitions": Layout(partitions=(60, *[1] * 7)),
    "position deletes of a fifth": Layout(4, deleted=0.2),
    "position deletes of most rows": Layout(4, deleted=0.6),
    "small files with position deletes": Layout(40, deleted=0.4),
    "few equality deletes": Layout(4, equality=6),
    "many equality deletes": Layout(4, equality=30),
    "dangling deletes": Layout(4, dangling=20),
}


class _CountedFile(io.FileIO):
    """A local file whose requests and bytes are counted."""

    def __init__(self, path: str, reads: list[int]) -> None:
        super().__init__(path)
        self._reads = reads

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size) or b""
        self._reads.append(len(data))
        return data


class _CountedFiles(fs.FSSpecHandler):
    """Local files that PyIceberg opens."""

    def __init__(self) -> None:
        super().__init__(LocalFileSystem())
        self.reads: list[int] = []

    def open_input_file(self, path: str) -> pa.PythonFile:
        return pa.PythonFile(_CountedFile(path, self.reads), mode="r")

    open_input_stream = open_input_file


def build(directory: Path, layout: Layout) -> Written:
    """A table with this layout; every one has the same rows."""
    made = Written(directory, SCHEMA, *([BY_PART] if layout.partitions else []))
    counts = layout.partitions or (layout.files,)
    total = sum(counts)
    first = 0
    generator = np.random.default_rng(1)
    files: list[DataFile] = []
    for part, count in enumerate(counts):
        for _ in range(count):
            rows = int(layout.live * ROWS) // total
            columns = {"id": np.arange(first, first + rows), "part": np.full(rows, part)}
            columns |= {f"v{number}": generator.random(rows) for number in range(WIDTH)}
            files.append(write(made, columns, part=part))
            first += rows
    for start in range(layout.manifests):
        made.commit(files[start :: layout.manifests])
    named = [file for file in files if layout.deleted] or files[:0]
    deletes = [
        write(
            made,
            {
                "file_path": [file.file_path] * round(layout.deleted * file.record_count),
                "pos": np.arange(round(layout.deleted * file.record_count)),
            },
            content=POSITION,
        )
        for file in named
    ]
    deletes += [
        write(
            made,
            {"id": np.arange(10 * number, 10 * number + 10)},
            content=EQUALITY,
            equality_ids=[1],
        )
        for number in range(layout.equality)
    ]
    if deletes:
        made.commit(deletes, operation="delete")
    if layout.dangling:
        nowhere = f"file://{directory}/data/gone.parquet"
        made.commit(
            [
                write(made, {"file_path": [nowhere], "pos": [number]}, content=POSITION)
                for number in range(layout.dangling)
            ],
            operation="delete",
        )
    return made


def write(
    made: Written,
    columns: dict[str, Any],
    *,
    content: DataFileContent = DATA,
    part: int = 0,
    **facts: Any,
) -> DataFile:
    """A data or delete file that exists, as an entry of a manifest."""
    path = made.directory / "data" / f"{made.files + 1:05}.parquet"
    path.parent.mkdir(exist_ok=True)
    data = pa.table(columns)
    fields = {name: str(number) for name, number in IDS.items()}
    data = data.cast(
        pa.schema(
            [
                pa.field(
                    field.name,
                    field.type,
                    nullable=False,
                    metadata={"PARQUET:field_id": fields[field.name]},
                )
                for field in data.schema
            ]
        )
    )
    parquet.write_table(data, path)
    bounds: dict[str, Any] = {}
    if content == POSITION:
        name = str(columns["file_path"][0]).encode()
        bounds = {
            "lower_bounds": {IDS["file_path"]: name},
            "upper_bounds": {IDS["file_path"]: name},
        }
    return made.file(
        [{"part": part}],
        content=content,
        metrics=False,
        record_count=len(data),
        file_size_in_bytes=path.stat().st_size,
        **bounds,
        **facts,
    )


def cost(made: Written) -> int:
    """What PyIceberg reads for a scan of the whole table, in bytes."""
    files = _CountedFiles()
    access = PyArrowFileIO()
    access.fs_by_scheme = lambda *_: fs.PyFileSystem(files)  # type: ignore[method-assign]
    file = made.directory / "read.metadata.json"
    file.write_bytes(orjson.dumps(made.document))
    table = StaticTable.from_metadata(str(file))
    table.io = access
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = snapshot.manifests(access)
    entries = [entry for m in manifests for entry in m.fetch_manifest_entry(access)]
    if any(entry.data_file.content == EQUALITY for entry in entries):
        for entry in entries:  # PyIceberg does not apply them
            parquet.read_table(access.new_input(entry.data_file.file_path).open(), pre_buffer=True)
    else:
        files.reads.clear()
        rows = ArrowScan(table.metadata, access, table.schema(), AlwaysTrue()).to_table(
            table.scan().plan_files()
        )
        assert rows.num_rows > 0
    return sum(files.reads) + read_costs.REQUEST * len(files.reads)


def improved(layout: Layout, measured: Statistics) -> Layout:
    """The layout that maintenance leaves behind, according to the statistics."""
    return Layout(
        measured.files - max(measured.rewrite_files - measured.rewritten_files, 0),
        1,
        1 - layout.deleted,
        (1,) * len(layout.partitions),
    )


@dataclass(frozen=True)
class Measured:
    score: int
    before: int
    after: int
    expected_before: float
    expected_after: float

    @property
    def ratio(self) -> float:
        """A query costs more than its files: it is planned, and starts."""
        return (self.before + read_costs.BASE) / (self.after + read_costs.BASE)


def measure(directory: Path, layout: Layout) -> Measured:
    made = build(directory / "before", layout)
    with transaction.atomic():
        statistics = iceberg_statistics.measure(register(made, directory / "before"), POLICY)
        transaction.set_rollback(True)  # each table has the same name
    assert statistics is not None
    health = read_costs.assess(statistics, POLICY)
    ideal = build(directory / "after", improved(layout, statistics))
    after = read_costs.BASE + read_costs._ideal(statistics)
    saving = sum(part.bytes for part in health.costs)
    return Measured(health.score, cost(made), cost(ideal), after + saving, after)


def test_scores_have_the_order_of_the_measured_costs_and_predict_them(warehouse):
    """Reads are skewed: the n-th table in a random order has the n-th part of those of the first one."""
    tables = {
        name: measure(warehouse / str(n), layout) for n, (name, layout) in enumerate(ZOO.items())
    }
    for one, other in permutations(tables.values(), 2):
        if one.ratio > 1.05 * other.ratio:
            assert one.score <= other.score, tables
        if one.ratio > 1.5 * other.ratio:
            assert one.score < other.score, tables
    assert tables["one file"].score == 100
    assert tables["one file"].ratio == pytest.approx(1, abs=0.01)
    assert max(table.ratio for table in tables.values()) > 10
    for seed in range(8):
        order = np.random.default_rng(seed).permutation(len(ZOO))
        reads = {name: 1 / (1 + rank) for name, rank in zip(ZOO, np.argsort(order), strict=True)}

        def total(figure: Callable[[Measured], float], reads: dict[str, float] = reads) -> float:
            return sum(share * figure(tables[name]) for name, share in reads.items())

        measured = 1 - total(lambda table: table.after) / total(lambda table: table.before)
        predicted = 1 - total(lambda table: table.expected_after) / total(
            lambda table: table.expected_before
        )
        assert measured > 0.4
        assert predicted == pytest.approx(measured, rel=0.25), (predicted, measured)
