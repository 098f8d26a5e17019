"""The preview of rows of both formats: conditions, order, pages, versions, and what it refuses."""

import re
import shutil
from base64 import b64encode
from datetime import UTC, date, datetime
from decimal import Decimal
from html import unescape
from itertools import count
from pathlib import Path
from threading import BoundedSemaphore
from time import monotonic
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import FileFormat
from pyiceberg.types import LongType
from pyroaring import BitMap, BitMap64

from catalog.access import SYSTEM, On
from catalog.admin import row_previews
from catalog.formats.iceberg.rows import data_files, row_scans
from catalog.formats.rows import profiles
from catalog.models import FileReference, Table
from catalog.privileges import parse
from catalog.services.access import grants
from catalog.services.iceberg.previews import preview as iceberg_preview
from catalog.services.lance import data as lance_data
from catalog.services.lance import preview as lance_preview
from tests.catalog.admin.iceberg.test_pages import words
from tests.catalog.formats.iceberg.scans.test_planning import SIMPLE
from tests.catalog.formats.iceberg.test_deletion_vectors import blob, keyed
from tests.catalog.formats.iceberg.written import EQUALITY, POSITION, Written
from tests.catalog.row_reader import bombs
from tests.catalog.row_reader.in_process import in_process
from tests.catalog.services.iceberg.test_scans import register
from tests.catalog.services.iceberg.writing import open_table
from tests.factories import make_iceberg_table, make_lance_table

__all__ = ["in_process"]
EVIL = "<script>alert(1)</script>"
NAMES = ["b", None, "a", "c", EVIL, "a'b", "%", "ab"]
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("name", pa.large_string()),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("ok", pa.bool_()),
        pa.field("real", pa.float64()),
        pa.field("tags", pa.large_list(pa.field("element", pa.large_string()))),
    ]
)
_FIELDS = [
    {"id": number, "name": name, "required": False, "type": type_}
    for number, (name, type_) in enumerate(
        {
            "id": "long",
            "name": "string",
            "price": "decimal(9, 2)",
            "day": "date",
            "at": "timestamptz",
            "ok": "boolean",
            "real": "double",
            "tags": {
                "type": "list",
                "element-id": 20,
                "element": "string",
                "element-required": False,
            },
        }.items(),
        1,
    )
]


def data() -> pa.Table:
    """Eight rows; the real number of the last one is NaN, and that of the first one null."""
    numbers = range(1, 9)
    return pa.table(
        {
            "id": list(numbers),
            "name": NAMES,
            "price": [Decimal(n) / 4 for n in numbers],
            "day": [date(2026, 1, n) for n in numbers],
            "at": [datetime(2026, 1, n, 12, tzinfo=UTC) for n in numbers],
            "ok": [n % 2 == 0 for n in numbers],
            "real": [None, *(n / 2 for n in range(2, 8)), float("nan")],
            "tags": [["x"]] * 8,
        },
        schema=SCHEMA,
    )


@pytest.fixture(params=["lance", "iceberg"])
def table(request, warehouse, db) -> Table:
    """A table with the rows in two files, and so two versions with data."""
    first, second = data().slice(0, 5), data().slice(5)
    if request.param == "lance":
        make_lance_table(("x", "t"), first)
        lance_data.insert(actor=SYSTEM, table=("x", "t"), data=second.to_reader())
    else:
        make_iceberg_table("x", "t", schema={"type": "struct", "fields": _FIELDS})
        open_table("x", "t").append(first)
        open_table("x", "t").append(second)
    return Table.objects.get(name="t")


def url(table: Table, **query: object) -> str:
    parameters = urlencode({"tab": "preview", **query}, doseq=True)
    return f"/admin/catalog/table/{table.pk}/change/?{parameters}"


def ids(client, address: str) -> list[int]:
    """The first column of the preview, which is the id."""
    response = client.get(address)
    assert response.status_code == 200
    panel = response.context["panels"][-1]
    return [int(row[0]) for row in panel.rows]


def where(*conditions: tuple[str, str, str]) -> dict[str, list[str]]:
    columns, operators, values = zip(*conditions, strict=True)
    return {"where": list(columns), "is": list(operators), "value": list(values)}


def test_conditions_select_rows(browser, table):
    for condition, expected in {
        ("id", "ne", " 3 "): [1, 2, 4, 5, 6, 7, 8],
        ("name", "eq", "a'b"): [6],
        ("name", "contains", "%"): [7],
        ("name", "starts", EVIL[:4]): [5],
        ("name", "null", ""): [2],
        ("price", "gt", "1.75"): [8],
        ("day", "ge", "2026-01-07"): [7, 8],
        ("at", "eq", "2026-01-02 14:00+02:00"): [2],
        ("ok", "eq", "True"): [2, 4, 6, 8],
        ("real", "gt", "3"): [7],
        ("tags", "null", ""): [],
    }.items():
        assert sorted(ids(browser, url(table, **where(condition)))) == expected, condition


def test_all_conditions_apply(browser, table):
    both = where(("id", "gt", "2"), ("name", "contains", "a"), ("ok", "eq", "true"))
    assert ids(browser, url(table, **both)) == [6, 8]


def test_rows_are_sorted_over_all_files(browser, table):
    for sort, expected in {
        "id": [1, 2, 3, 4, 5, 6, 7, 8],
        "-name": [4, 1, 8, 6, 3, 5, 7, 2],
        "-price": [8, 7, 6, 5, 4, 3, 2, 1],
        "-at": [8, 7, 6, 5, 4, 3, 2, 1],
        "real": [2, 3, 4, 5, 6, 7, 8, 1],
    }.items():
        assert ids(browser, url(table, sort=sort)) == expected, sort
    pages = [ids(browser, url(table, sort="-id", rows=3) + f"&from={start}") for start in (0, 3, 6)]
    assert pages == [[8, 7, 6], [5, 4, 3], [2, 1]]


def test_pages_follow_links_with_a_fixed_version(browser, table):
    address = url(table, rows=3, **where(("id", "ne", "4")))
    first = browser.get(address).context["panels"][-1]
    assert first.note == "Rows 1 to 3."
    assert first.first is None
    # Rows that are added meanwhile do not shift the pages.
    if table.format == "lance":
        lance_data.insert(actor=SYSTEM, table=("x", "t"), data=data().to_reader())
    else:
        open_table("x", "t").append(data())
    following, listed = first.following, [int(row[0]) for row in first.rows]
    while following:
        address = f"/admin/catalog/table/{table.pk}/change/{following}"
        listed += ids(browser, address)
        following = browser.get(address).context["panels"][-1].following
    assert sorted(listed) == [1, 2, 3, 5, 6, 7, 8]


def test_a_page_after_the_last_row_is_empty(browser, table):
    panel = browser.get(url(table) + "&from=9999").context["panels"][-1]
    assert (panel.rows, panel.empty, panel.following) == ([], "There are no more rows.", None)
    assert ids(browser, url(table) + "&from=999999999999999999999999") == ids(browser, url(table))


def older_version(table: Table) -> dict[str, object]:
    if table.format == "lance":
        return {"version": 1}
    return {"snapshot": open_table("x", "t").metadata.snapshots[0].snapshot_id}


def test_any_version_can_be_previewed(browser, table):
    if table.format == "lance":
        version: dict[str, object] = {"version": 2}
        lance_data.insert(actor=SYSTEM, table=("x", "t"), data=data().to_reader())
        assert ids(browser, url(table, **version)) in ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7, 8])
        assert len(ids(browser, url(table))) == 16
        return
    older = url(table, **older_version(table))
    assert ids(browser, older) == [1, 2, 3, 4, 5]
    assert ids(browser, older + "&sort=-id") == [5, 4, 3, 2, 1]
    notice = words(browser.get(older).context["panels"][0].empty)
    assert notice.startswith("Snapshot ")
    iceberg = open_table("x", "t")
    snapshot_id = iceberg.metadata.snapshots[0].snapshot_id
    iceberg.manage_snapshots().create_tag(snapshot_id, "old").commit()
    assert ids(browser, url(table, ref="old")) == [1, 2, 3, 4, 5]


def test_the_form_keeps_what_was_entered(browser, table):
    page = browser.get(
        url(table, sort="-id", rows=7, **where(("name", "ne", 'a"b')))
    ).content.decode()
    assert '<option value="name" data-kind="TEXT" selected>name</option>' in page
    assert re.search(r'<option value="ne"[^>]* selected>', page)
    assert 'value="a&quot;b"' in page
    assert '<option value="-id" selected>' in page
    assert 'value="7"' in page
    # Headings are links that sort; the order is toggled.
    assert re.search(r'[?&]sort=id["&]', unescape(page))
    assert EVIL not in page


# --- what is refused ---------------------------------------------------------------------------


def test_an_invalid_condition_is_reported_at_its_field(browser, table, monkeypatch):
    for module in (lance_preview, iceberg_preview):
        monkeypatch.setattr(module, "preview", None)  # nothing is read
    for condition, field, message in (
        (("", "eq", "1"), "Column", "Select a column."),
        (("id", "; DROP", "1"), "Operator", "Column 'id' can be tested with: ="),
        (("id", "eq", "1 OR 1=1"), "Value", "'1 OR 1=1' is not a number of type int64."),
        (("name", "eq", "a\x00"), "Value", "The value has a NUL character."),
    ):
        response = browser.get(url(table, **where(condition)))
        assert response.status_code == 200
        page = unescape(response.content.decode())
        (fault,) = re.findall(r'<span class="m-error" id="where-1" role="alert">(.*?)</span>', page)
        assert message in fault
        assert f'aria-label="{field}" aria-invalid="true" aria-describedby="where-1"' in page
        assert page.count('aria-invalid="true"') == 1
        assert not response.context["panels"][-1].rows


def test_hostile_texts_are_compared_as_they_are(browser, table):
    for value in ("' OR '1'='1", "a'; DROP TABLE t; --", EVIL, "\u202e"):
        response = browser.get(url(table, **where(("name", "contains", value))))
        panel = response.context["panels"][-1]
        assert [row[0] for row in panel.rows] == (["5"] if value == EVIL else [])
        assert EVIL not in response.content.decode()


def test_an_invalid_order_is_reported_at_its_field(browser, table):
    for sort, message in {
        "nope": "Column 'nope' does not exist.",
        "-tags": "Rows cannot be sorted by column 'tags'.",
    }.items():
        response = browser.get(url(table, sort=sort))
        assert f'id="sort-fault" role="alert">{message}<' in unescape(response.content.decode())
        assert not response.context["panels"][-1].rows


def test_at_most_five_conditions_are_accepted(browser, table):
    five = where(*[("id", "gt", "0")] * 5)
    assert len(ids(browser, url(table, **five))) == 8
    six = browser.get(url(table, **where(*[("id", "gt", "0")] * 6)))
    assert "At most 5 conditions." in six.content.decode()
    assert not six.context["panels"][-1].rows


def test_odd_parameters_do_not_break_the_page(browser, table):
    for query in (
        "where=id",
        "is=eq&is=lt",
        "value=1",
        "where=id&is=eq&value=1&value=2",
        "from=-1&rows=-5",
        "from=x&rows=x&sort=-",
        "where=%FF&is=%00&value=%FF",
        "snapshot=x&version=x",
        "snapshot=99999999999999999999",
        f"snapshot={'0' * 5000}",
        "snapshot=5&ref=nope",
        "ref=%00",
        "column=nope",
    ):
        response = browser.get(f"{url(table)}&{query}")
        assert response.status_code == 200, query


def test_the_preview_requires_read(sign_in, table):
    client = sign_in()
    for privilege in ("browse", "manage"):
        grants.set_grant(
            actor=SYSTEM,
            on=On.table(("x", "t")),
            principal="user:bob",
            privileges=parse([privilege]),
        )
        page = client.get(url(table, sort="id"))
        has_rows = privilege == "manage"
        assert ("a&#x27;b" in page.content.decode()) is has_rows


# --- Iceberg -----------------------------------------------------------------------------------


@pytest.fixture
def written(warehouse: Path, db) -> Written:
    """A writer of an Iceberg table whose data files a test writes itself."""
    return Written(warehouse / "w", SIMPLE)


def write(made: Written, number: int, *columns: tuple[int, str, pa.DataType, list[object]]) -> None:
    """Write data file ``number`` with columns of these field ids."""
    path = made.directory / "data" / f"{number:05}.parquet"
    path.parent.mkdir(exist_ok=True)
    fields = [
        pa.field(name, type_, metadata={"PARQUET:field_id": str(id_)})
        for id_, name, type_, _ in columns
    ]
    arrays = [pa.array(values, type_) for _, _, type_, values in columns]
    pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), path, row_group_size=4)


def registered(made: Written) -> Table:
    register(made, "ws", "w")
    return Table.objects.get(name="w")


ROW = {field["name"]: None for field in SIMPLE["fields"]}


def test_deleted_rows_are_not_shown(browser, written):
    write(written, 1, (1, "id", pa.int64(), list(range(10))))
    written.commit([written.file([ROW | {"id": n} for n in range(10)])])
    deletes = written.file([ROW] * 3, content=POSITION, metrics=False)
    location = f"file://{written.directory}/data/00001.parquet"
    write(
        written,
        2,
        (2147483546, "file_path", pa.string(), [location] * 3),
        (2147483545, "pos", pa.int64(), [0, 4, 9]),
    )
    written.commit([deletes], operation="delete")
    table = registered(written)
    assert ids(browser, url(table)) == [1, 2, 3, 5, 6, 7, 8]
    assert ids(browser, url(table, rows=2) + "&from=2") == [3, 5]
    assert ids(browser, url(table, sort="-id", rows=3)) == [8, 7, 6]
    assert ids(browser, url(table, **where(("id", "ge", "4")))) == [5, 6, 7, 8]
    assert ids(browser, url(table, snapshot=1001)) == list(range(10))


@pytest.fixture
def deleted(written) -> Table:
    """A table with ten rows, of which a delete file removes all but the last."""
    write(written, 1, (1, "id", pa.int64(), list(range(10))))
    written.commit([written.file([ROW | {"id": n} for n in range(10)])])
    location = f"file://{written.directory}/data/00001.parquet"
    write(
        written,
        2,
        (2147483546, "file_path", pa.string(), [location] * 9 + ["file:///other", None]),
        (2147483545, "pos", pa.int64(), [*range(9), 9, 9]),
    )
    written.commit([written.file([ROW] * 11, content=POSITION, metrics=False)], operation="delete")
    return registered(written)


def test_deletes_of_other_files_and_without_a_file_do_not_apply(browser, deleted):
    for query in ({}, {"sort": "id"}):
        assert ids(browser, url(deleted, **query)) == [9]


def test_the_rows_of_delete_files_are_limited(browser, deleted, in_process, monkeypatch):
    monkeypatch.setattr(data_files, "_MAX_DELETED_ROWS", 10)
    for query in ({}, {"sort": "id"}):
        panel = browser.get(url(deleted, **query)).context["panels"][-1]
        assert "too many deleted rows, which only engines apply" in words(panel.lead)
        assert not panel.rows


def test_the_rows_of_all_delete_files_of_a_data_file_are_limited(
    browser, written, in_process, monkeypatch
):
    """A manifest of a few kilobytes may name a delete file thousands of times."""
    monkeypatch.setattr(data_files, "_MAX_DELETED_ROWS", 10)
    table = repeatedly_deleted(written, times=6)
    for query in ({}, {"sort": "id"}):
        panel = browser.get(url(table, **query)).context["panels"][-1]
        assert "too many deleted rows, which only engines apply" in words(panel.lead)
        assert not panel.rows


def test_reading_delete_files_takes_no_longer_than_a_preview(
    browser, written, in_process, monkeypatch
):
    table = repeatedly_deleted(written, times=6)
    clock = count(monotonic(), 3)
    monkeypatch.setattr(data_files, "monotonic", lambda: next(clock))
    opened: list[None] = []
    real = data_files.DataFile._open
    monkeypatch.setattr(
        data_files.DataFile,
        "_open",
        lambda *arguments, **options: opened.append(None) or real(*arguments, **options),
    )
    panel = browser.get(url(table)).context["panels"][-1]
    assert "too many deleted rows, which only engines apply" in words(panel.lead)
    assert len(opened) < 6


def repeatedly_deleted(made: Written, *, times: int) -> Table:
    """A table with ten rows, and delete files that remove the first two of them each."""
    write(made, 1, (1, "id", pa.int64(), list(range(10))))
    made.commit([made.file([ROW | {"id": n} for n in range(10)])])
    location = f"file://{made.directory}/data/00001.parquet"
    deletes = []
    for number in range(2, 2 + times):
        deletes.append(made.file([ROW] * 2, content=POSITION, metrics=False))
        path, pos = (2147483546, "file_path", pa.string()), (2147483545, "pos", pa.int64())
        write(made, number, (*path, [location] * 2), (*pos, [0, 1]))
    made.commit(deletes, operation="delete")
    return registered(made)


def test_a_preview_of_deleted_rows_is_stopped(browser, deleted, in_process, monkeypatch):
    monkeypatch.setattr(data_files, "_MAX_BATCH_ROWS", 1)
    checks = []
    monkeypatch.setattr(
        row_scans.RowScan,
        "_is_late",
        lambda _: checks.append(None) or len(checks) > 3,
    )
    panel = browser.get(url(deleted, sort="id")).context["panels"][-1]
    assert "Stopped after 1.1 seconds" in words(panel.lead)
    assert (panel.rows, len(checks)) == ([], 4)


def test_deletion_vectors_are_applied(browser, warehouse, db):
    made = Written(warehouse / "w", SIMPLE, version=3)
    write(made, 1, (1, "id", pa.int64(), list(range(10))))
    data_file = made.file([ROW | {"id": n} for n in range(10)])
    made.commit([data_file])
    content = blob(BitMap64([0, 4, 9, 2**33]).serialize())
    path = made.directory / "data" / "00002.puffin"
    path.write_bytes(b"PFA1" + content + b"nobody reads the footer")
    vector = made.file(
        [ROW] * 3,
        content=POSITION,
        metrics=False,
        file_path=f"file://{path}",
        file_format=FileFormat.PUFFIN,
        referenced_data_file=data_file.file_path,
        content_offset=4,
        content_size_in_bytes=len(content),
    )
    made.commit([vector], operation="delete")
    table = registered(made)
    assert ids(browser, url(table)) == [1, 2, 3, 5, 6, 7, 8]
    assert ids(browser, url(table, sort="-id", rows=3)) == [8, 7, 6]
    distant = BitMap()
    distant.add_range(0, 2**32)
    distant.run_optimize()
    for broken in (b"x" * len(content), keyed(0, distant.serialize())[: len(content)], b""):
        path.write_bytes(b"PFA1" + broken)
        panel = browser.get(url(table)).context["panels"][-1]
        assert "cannot be read: The deletion vector" in words(panel.lead)
        assert not panel.rows


def test_texts_that_are_stored_once_do_not_fill_the_memory(browser, written, in_process):
    pool = pa.system_memory_pool()
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 40_000), ["x" * 10_000])
    fields = [
        pa.field(name, type_, metadata={"PARQUET:field_id": id_})
        for name, type_, id_ in (("id", pa.int64(), "1"), ("name", texts.type, "3"))
    ]
    path = written.directory / "data" / "00001.parquet"
    path.parent.mkdir()
    columns = pa.table([pa.array(range(40_000)), texts], schema=pa.schema(fields))
    pq.write_table(columns, path, store_schema=False)
    assert path.stat().st_size < 1_000_000
    written.commit([written.file([ROW | {"id": n} for n in range(40_000)], metrics=False)])
    table = registered(written)
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        for query in ({"sort": "name"}, where(("name", "contains", "y")), {"sort": "-id"}):
            panel = browser.get(url(table, rows=1, **query)).context["panels"][-1]
            assert "cannot be read" not in words(panel.lead)
            assert len(panel.rows) == (0 if "where" in query else 1)
        assert pool.max_memory() < 128 * 1024**2
    finally:
        pa.set_memory_pool(before)


def test_equality_deletes_are_refused(browser, written):
    write(written, 1, (1, "id", pa.int64(), [1, 2]))
    written.commit([written.file([ROW | {"id": n} for n in (1, 2)])])
    written.commit(
        [written.file([ROW | {"id": 1}], content=EQUALITY, equality_ids=[1])], operation="delete"
    )
    page = browser.get(url(registered(written))).content.decode()
    assert "The snapshot has equality deletes, which only engines apply" in page


def test_files_of_older_schemas_are_projected(browser, warehouse, db):
    make_iceberg_table(
        "x",
        "t",
        schema={
            "type": "struct",
            "fields": [
                {"id": 1, "name": "id", "required": False, "type": "int"},
                {"id": 2, "name": "old", "required": False, "type": "string"},
            ],
        },
    )
    iceberg = open_table("x", "t")
    iceberg.append(pa.table({"id": pa.array([1, 2], pa.int32()), "old": ["p", "q"]}))
    with iceberg.update_schema() as update:
        update.rename_column("old", "new")
        update.update_column("id", LongType())
        update.add_column("more", LongType())
    table = Table.objects.get(name="t")
    panel = browser.get(url(table, sort="-new")).context["panels"][-1]
    assert [[words(cell) for cell in row] for row in panel.rows] == [
        ["2", "q", "null"],
        ["1", "p", "null"],
    ]
    assert ids(browser, url(table, **where(("more", "null", ""), ("new", "eq", "p")))) == [1]
    # An older snapshot has its own schema.
    snapshot_id = iceberg.metadata.snapshots[0].snapshot_id
    newer = {"id": [3], "new": ["r"], "more": [4]}
    open_table("x", "t").append(pa.table(newer))
    assert sorted(ids(browser, url(table))) == [1, 2, 3]
    older = browser.get(url(table, snapshot=snapshot_id)).context["panels"][-1]
    assert [words(name) for name in older.columns] == ["id", "old"]


def test_a_file_of_another_table_is_not_read(sign_in, written):
    make_lance_table(("secret", "s"))
    foreign = Path(Table.objects.get(name="s").location, "data", "a.parquet")
    pq.write_table(pa.table({"id": [1]}), foreign)
    written.commit([written.file([ROW | {"id": 1}], file_path=f"file://{foreign}")])
    table = registered(written)
    FileReference.objects.all().delete()  # nobody who may read the other table refers to the file
    client = sign_in()
    grants.set_grant(
        actor=SYSTEM, on=On.table(("ws", "w")), principal="user:bob", privileges=parse(["read"])
    )
    leads = []
    for exists in (True, False):
        for query in ({}, {"sort": "id"}, where(("id", "eq", "1"))):
            panel = client.get(url(table, **query)).context["panels"][-1]
            assert not panel.rows
            leads.append(words(panel.lead).partition("File ")[2])
        if exists:
            foreign.unlink()
    assert set(leads) == {
        f"'file://{foreign}' does not belong to table 'ws.w', and may not be read for it"
    }


def test_a_broken_data_file_is_a_message(browser, written):
    written.commit([written.file([ROW | {"id": 1}])])
    path = written.directory / "data" / "00001.parquet"
    path.parent.mkdir()
    table = registered(written)
    for content in (None, b"", b"PAR1", b"PAR1" + b"\xff" * 100 + b"PAR1"):
        if content is not None:
            path.write_bytes(content)
        for query in ({}, {"sort": "id"}):
            response = browser.get(url(table, **query))
            assert response.status_code == 200
            assert "cannot be read" in words(response.context["panels"][-1].lead), content
            assert not response.context["panels"][-1].rows


@pytest.mark.xdist_group("bomb")  # not beside other tests that need gigabytes
def test_a_file_that_expands_to_gigabytes_is_a_message(browser, warehouse, db):
    """Of the page, of every query and of a profile; other tables can be previewed meanwhile."""
    numbers = {"type": "list", "element-id": 3, "element": "int", "element-required": False}
    fields = [
        {"id": 1, "name": "id", "required": False, "type": "long"},
        {"id": 2, "name": "numbers", "required": False, "type": numbers},
    ]
    made = Written(warehouse / "w", {"type": "struct", "schema-id": 0, "fields": fields})
    path = made.directory / "data" / "00001.parquet"
    path.parent.mkdir()
    shutil.copyfile(bombs.PARQUET, path)
    made.commit([made.file([{"id": 1}], metrics=False)])
    table = registered(made)
    for query in ({}, {"sort": "id"}, where(("numbers", "notnull", ""))):
        response = browser.get(url(table, **query))
        assert response.status_code == 200
        panel = response.context["panels"][-1]
        assert f"'file://{path}' needs too much memory to decode" in words(panel.lead)
        assert "MONODON_PREVIEW_MEMORY_BYTES is 512 MiB" in words(panel.lead)
        assert not panel.rows
    assert ids(browser, url(table, column="id")) == [1]


def test_a_data_file_with_columns_of_other_types_is_a_message(browser, written):
    write(written, 1, (1, "id", pa.int64(), [1]), (2, "day", pa.string(), ["x"]))
    written.commit([written.file([ROW | {"id": 1}])])
    table = registered(written)
    for column in ((2, "day", pa.string(), ["x"]), (2, "day", pa.uint64(), [2**63])):
        write(written, 1, (1, "id", pa.int64(), [1]), column)
        for query in ({}, {"sort": "day"}):
            panel = browser.get(url(table, **query)).context["panels"][-1]
            assert "00001.parquet' cannot be read: " in words(panel.lead)
            assert not panel.rows


def test_a_table_without_snapshots_has_no_rows(browser, warehouse, db):
    make_iceberg_table("x", "t")
    panel = browser.get(url(Table.objects.get(name="t"))).context["panels"][-1]
    assert (panel.rows, panel.empty) == ([], "This version has no rows.")


def test_a_slow_preview_is_stopped(browser, table, monkeypatch):
    monkeypatch.setattr(row_previews, "SECONDS", -0.5)
    monkeypatch.setattr(lance_preview, "_GRACE_SECONDS", 60.0)
    for query in ("sort=id", "where=id&is=gt&value=0", ""):
        lead = words(browser.get(f"{url(table)}&{query}").context["panels"][-1].lead)
        assert re.search(r"Stopped after -0.3 seconds", lead), query


@pytest.mark.parametrize("sort", ["id", "-id"])
def test_a_stopped_search_shows_the_rows_of_all_files(
    browser, table, in_process, monkeypatch, sort
):
    """The search is stopped after the last row, and then there is time to read the page."""
    scan = row_scans.RowScan if table.format == "iceberg" else lance_preview._PreviewScan
    monkeypatch.setattr(
        scan, "_is_late", lambda self: self._limit < row_previews.SECONDS and self.scanned_rows == 8
    )
    page = url(table, sort=sort)
    panel = browser.get(page).context["panels"][-1]
    assert "Stopped after 1.1 seconds and 8 scanned rows" in words(panel.lead)
    assert sorted(ids(browser, page)) == list(range(1, 9))
    assert f'href="?tab=preview&amp;sort={sort}&amp;longer=1' in panel.lead
    longer = browser.get(url(table, sort=sort, longer=1)).context["panels"][-1]
    assert "Stopped" not in words(longer.lead)
    assert len(longer.rows) == 8


def test_a_page_that_is_not_read_in_time_is_a_message(browser, table, in_process, monkeypatch):
    scan = row_scans.RowScan if table.format == "iceberg" else lance_preview._PreviewScan
    monkeypatch.setattr(scan, "_is_late", lambda self: self._limit == row_previews.SECONDS)
    panel = browser.get(url(table, sort="id")).context["panels"][-1]
    rows = len(panel.rows)
    assert rows < 8
    assert f"Only {rows} of the 8 rows of this page were read in time." in words(panel.lead)


def test_the_bytes_of_a_preview_are_limited(browser, table, monkeypatch):
    monkeypatch.setattr(iceberg_preview, "MOST_BYTES", 1)
    monkeypatch.setattr(lance_preview, "MOST_BYTES", 1)
    panel = browser.get(url(table)).context["panels"][-1]
    assert 1 <= len(panel.rows) < 8
    assert words(panel.lead).endswith("Stopped after 0 MiB.")


def test_images_recordings_and_vectors_are_drawn(browser, warehouse, db):
    png = b"\x89PNG\r\n\x1a\n" + bytes(20)
    rows = pa.table(
        {
            "picture": pa.array([png, b"RIFF\0\0\0\0WAVE" + bytes(20)], pa.binary()),
            "vector": pa.array([[1.0, -1.0], [0.0, 2.0]], pa.list_(pa.float32(), 2)),
        }
    )
    make_lance_table(("x", "t"), rows)
    panel = browser.get(url(Table.objects.get(name="t"))).context["panels"][-1]
    (image, bars), (sound, _) = panel.rows
    assert f'<img class="m-media" src="data:image/png;base64,{b64encode(png).decode()}"' in image
    assert 'alt="PNG image"' in image
    assert '<audio class="m-media" src="data:audio/wav;base64,' in sound
    assert bars.count("<rect") == 2


def test_images_of_a_page_are_drawn_up_to_a_limit(browser, warehouse, db, monkeypatch):
    monkeypatch.setattr(row_previews, "MOST_MEDIA", 50)
    png = b"\x89PNG\r\n\x1a\n" + bytes(20)
    make_lance_table(("x", "t"), pa.table({"picture": pa.array([png] * 3, pa.binary())}))
    panel = browser.get(url(Table.objects.get(name="t"))).context["panels"][-1]
    assert ["<img" in row[0] for row in panel.rows] == [True, False, False]
    assert "PNG image" in panel.rows[2][0]


# --- profiles of columns


def profile_panels(client, table: Table, **query: object) -> list:
    return client.get(url(table, tab="profile", **query)).context["panels"]


def figures(panel) -> dict[str, str]:
    return {name: words(str(value)) for name, value in panel.rows}


def test_a_column_has_a_profile(browser, table):
    profile, top = profile_panels(browser, table, column="ok")
    assert figures(profile) == {
        "Type": "bool",
        "Rows read": "8",
        "Nulls": "0 (0.0 %)",
        "Distinct values": "2",
        "Minimum": "false",
        "Maximum": "true",
    }
    assert sorted(words(str(rows)) for _, rows in top.rows) == ["4 (50.0 %)"] * 2
    (profile,) = profile_panels(browser, table, column="id")
    assert figures(profile)["Maximum"] == "8"
    titles = re.findall(r"<rect[^>]*><title>(.*?)</title></rect>", str(profile.lead))
    assert len(titles) == 24
    assert titles[:2] == ["range 1 of 24: 1 value", "range 2 of 24: 0 values"]
    assert titles[-1] == "range 24 of 24: 1 value"


def test_values_in_a_profile_are_escaped(browser, table):
    panels = profile_panels(browser, table, column="name")
    assert figures(panels[0])["Nulls"] == "1 (12.5 %)"
    response = browser.get(url(table, tab="profile", column="name", version="<script>"))
    assert b"<script>alert" not in response.content


def test_only_the_rows_of_the_version_count(browser, table):
    if table.format == "lance":
        query: dict[str, object] = {"version": 1}
    else:
        history = open_table("x", "t").history()
        query = {"snapshot": history[0].snapshot_id}
    panels = profile_panels(browser, table, column="id", **query)
    rows = [figures(panel)["Rows read"] for panel in panels if panel.title == "Column profile"]
    assert rows == ["5"]


@pytest.mark.parametrize("column", ["", "tags", "nothing"])
def test_a_column_without_a_profile_is_named(browser, table, column):
    (panel,) = profile_panels(browser, table, column=column)
    reasons = {"": "Select a column", "tags": "has no profile", "nothing": "does not exist"}
    assert reasons[column] in panel.empty
    assert not panel.rows


def test_a_profile_ends_in_time(browser, table, monkeypatch):
    monkeypatch.setattr(profiles, "SECONDS", -1.0)
    monkeypatch.setattr(lance_preview, "_PROFILE_SECONDS", 60.0)
    monkeypatch.setattr(iceberg_preview, "_slots", BoundedSemaphore(1))
    profile = profile_panels(browser, table, column="id")[0]
    assert "Stopped after" in profile.note
    assert int(figures(profile)["Rows read"]) < 9


def test_profiles_need_the_privilege_to_read(sign_in, table):
    client = sign_in("browse")
    assert all("profile" not in p.title for p in profile_panels(client, table, column="id"))
