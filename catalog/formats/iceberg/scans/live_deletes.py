"""The deletes of a snapshot as a reader meets them: which delete files apply to a live data file.

A delete file that applies to none is *dangling* (spec: Scan Planning). Readers still find it in the
manifests. Position deletes and deletion vectors tell the number of rows that they delete. Equality
deletes do not: a key deletes any number of older rows, which only reading the data can count.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.manifest import DataFileContent
from pyiceberg.types import PrimitiveType

from catalog.formats.iceberg.manifests import Entry
from catalog.formats.iceberg.reading import Document
from catalog.formats.iceberg.scans.deletes import DeleteIndex, partition_key
from catalog.formats.iceberg.schema import schemas, single_values

_MAX_COMPARISONS = 5_000_000
"""Pairs of data files and delete files to compare; beyond that, dangling files are not counted."""

_Key = tuple[str, int | None]


@dataclass(frozen=True, slots=True)
class LiveDeletes:
    """The deletes of a snapshot."""

    position_files: int
    """Position delete files, without deletion vectors."""
    vectors: int
    equality_files: int
    dangling_position_files: int
    dangling_vectors: int
    dangling_equality_files: int
    equality_keys: int
    """Rows of the equality delete files that are not dangling."""
    deleted_rows: int
    """Rows that position deletes and deletion vectors delete, without dangling ones."""
    min_rows: int
    """Rows that are live if the equality deletes delete every row to which they may apply."""
    deleted: Mapping[str, int]
    """Rows deleted by position, by the path of the data file that the deletes name."""
    with_equality: Collection[str]
    """Paths of the data files to which an equality delete may apply."""
    dangling: Collection[_Key]
    """Path and offset of each dangling delete file."""
    left_out: Collection[str] = ()
    """Paths of the data files that are left out, or to which a delete file may apply that is left out."""


def key_of(entry: Entry) -> _Key:
    """Identifies a delete file; deletion vectors share the path of a Puffin file."""
    return entry.file.file_path, entry.content_offset


def survey(
    entries: Sequence[Entry],
    document: Document,
    *,
    is_complete: bool = True,
    left_out: Collection[str] = frozenset(),
) -> LiveDeletes:
    """Match the live delete files of a snapshot with its live data files.

    ``is_complete`` is False if ``entries`` are only some of the snapshot's files: then a delete file
    may apply to a file that is missing here, and none is dangling. ``left_out`` are the paths of data and
    delete files that a job leaves out.
    """
    data = [entry for entry in entries if entry.file.content == DataFileContent.DATA]
    deletes = [entry for entry in entries if entry.file.content != DataFileContent.DATA]
    index = DeleteIndex(_unpartitioned(document), _types(document) if deletes else {})
    for entry in deletes:
        index.add(entry, partition_key(entry.spec_id, _values(entry)))
    applied: set[_Key] = set()
    deleted: defaultdict[str, int] = defaultdict(int)
    with_equality: set[str] = set()
    shared: set[_Key] = set()
    all_left_out = {entry.file.file_path for entry in data if entry.file.file_path in left_out}
    by_key = {key_of(entry): entry for entry in deletes}
    is_compared = bool(deletes) and len(data) * _widest(deletes, document) <= _MAX_COMPARISONS
    for entry in data if is_compared else ():
        path = entry.file.file_path
        for delete in index.for_file(entry, partition_key(entry.spec_id, _values(entry))):
            key = key_of(delete)
            if delete.file.file_path in left_out:
                all_left_out.add(path)
            if delete.file.content == DataFileContent.EQUALITY_DELETES:
                with_equality.add(path)
            elif names_one_file(delete):
                deleted[path] += delete.file.record_count
            else:
                shared.add(key)
            applied.add(key)
    if not is_compared:
        applied.update(by_key)
        with_equality.update(entry.file.file_path for entry in data if deletes)
        shared.update(key_of(entry) for entry in deletes if not _is_equality(entry))
        if any(entry.file.file_path in left_out for entry in deletes):
            all_left_out.update(entry.file.file_path for entry in data)
    dangling = set(by_key) - applied if is_complete else set()
    rows = {entry.file.file_path: entry.file.record_count for entry in data}
    deleted_rows = sum(min(count, rows[path]) for path, count in deleted.items())
    deleted_rows += sum(by_key[key].file.record_count for key in shared)
    total = sum(rows.values())
    uncertain = sum(rows[path] - min(deleted.get(path, 0), rows[path]) for path in with_equality)
    return LiveDeletes(
        **_counts(deletes, dangling),
        equality_keys=sum(
            entry.file.record_count
            for entry in deletes
            if _is_equality(entry) and key_of(entry) not in dangling
        ),
        deleted_rows=min(deleted_rows, total),
        min_rows=max(total - deleted_rows - uncertain, 0),
        deleted=deleted,
        with_equality=with_equality,
        dangling=dangling,
        left_out=all_left_out,
    )


def names_one_file(entry: Entry) -> bool:
    """True if a position delete file or deletion vector names the one data file it applies to."""
    return single_data_file(entry) is not None


def single_data_file(entry: Entry) -> str | None:
    """The only data file that a delete file refers to, if there is one (Java's isFileScoped)."""
    if entry.referenced_data_file is not None:
        return entry.referenced_data_file
    low = (entry.file.lower_bounds or {}).get(_DELETED_PATH)
    high = (entry.file.upper_bounds or {}).get(_DELETED_PATH)
    return low.decode("utf-8", "replace") if low is not None and low == high else None


_DELETED_PATH = 2_147_483_546
"""The id of the column file_path in position delete files (spec: Reserved Field IDs)."""


def _counts(deletes: Sequence[Entry], dangling: Collection[_Key]) -> dict[str, int]:
    vectors = [entry for entry in deletes if entry.is_deletion_vector]
    equality = [entry for entry in deletes if _is_equality(entry)]
    positions = [
        entry for entry in deletes if not _is_equality(entry) and not entry.is_deletion_vector
    ]
    groups = {"position_files": positions, "vectors": vectors, "equality_files": equality}
    return {name: len(group) for name, group in groups.items()} | {
        f"dangling_{name}": sum(key_of(entry) in dangling for entry in group)
        for name, group in groups.items()
    }


def _is_equality(entry: Entry) -> bool:
    return entry.file.content == DataFileContent.EQUALITY_DELETES


def _widest(deletes: Sequence[Entry], document: Document) -> int:
    """The largest number of delete files that a data file is compared with."""
    everywhere = 0
    unpartitioned = _unpartitioned(document)
    by_partition: defaultdict[object, int] = defaultdict(int)
    for entry in deletes:
        if _is_equality(entry) and entry.spec_id in unpartitioned:
            everywhere += 1
        elif not names_one_file(entry):
            by_partition[partition_key(entry.spec_id, _values(entry))] += 1
    return everywhere + max(by_partition.values(), default=0) + 1


def _unpartitioned(document: Document) -> set[int]:
    """The ids of the specs that do not divide the table."""
    specs = document.get("partition-specs") or []
    return {
        spec.get("spec-id", 0)
        for spec in specs
        if all(field["transform"] == "void" for field in spec["fields"])
    }


def _types(document: Document) -> dict[int, PrimitiveType]:
    """The types of all columns by id, of the current schema first."""
    named: dict[int, object] = {}
    for schema in document.get("schemas") or []:
        columns = schemas.index(schema, "schema")
        named |= {column.id: column.type for column in columns.values()}
    parsed = {id_: single_values.parse_type(name) for id_, name in named.items()}
    return {id_: type_ for id_, type_ in parsed.items() if type_ is not None}


def _values(entry: Entry) -> tuple[object, ...]:
    partition = entry.file.partition
    return tuple(partition[number] for number in range(len(partition)))
