"""The page of a Lance table: content of its tabs, number of queries, and invalid input."""

import os
import re
import shutil
import threading
import time
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from catalog.access import SYSTEM, Principal
from catalog.admin import row_previews
from catalog.admin.pages import Panel
from catalog.models import Table, TableState, TableVersion
from catalog.privileges import Privilege
from catalog.services.engine.commit import commit
from catalog.services.lance import commits as lance_commits
from catalog.services.lance import data as lance_data
from catalog.services.lance import data_operations
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance import preview as lance_preview
from catalog.services.lance.ledger import version_operations
from catalog.services.lance.refs import branches as lance_branches
from catalog.services.lance.refs import tags as lance_tags
from catalog.services.tables import table_operations
from tests.cases import shared_cases
from tests.catalog.admin.iceberg.test_pages import facts, rows, url, walk, words
from tests.catalog.admin.test_pages import cost
from tests.factories import make_lance_table, make_table

EVIL = "<script>alert(1)</script>"
BOB = Principal("key:bob", Privilege.ALL)
TABS = {
    "schema": 8,
    "fragments": 5,
    "indexes": 5,
    "preview": 5,
    "refs": 14,
    "versions": 8,
    "transactions": 7,
    "audit": 6,
    "jobs": 6,
}


def table(count=3):
    ids = pa.array(range(1, count + 1), pa.int64())
    return pa.table({"id": ids, "name": pa.array([f"n{i}" for i in ids], pa.string())})


def insert(row, data=None, **more):
    data = table() if data is None else data
    return lance_data.insert(actor=BOB, table=row.identifier, data=data.to_reader(), **more)


def delete(row, predicate):
    return lance_data.delete(actor=BOB, table=row.identifier, predicate=predicate)


def index(row, column="id", kind="BTREE"):
    lance_commits.write(
        actor=SYSTEM,
        table=row.identifier,
        operation=data_operations.InsertIntoTable,
        work=lambda dataset: dataset.create_scalar_index(column, kind),
    )


def empty_text(browser, address, panel=0):
    """The text of a panel without rows."""
    first_panel = browser.get(address).context["panels"][panel]
    assert not first_panel.rows
    return words(first_panel.empty)


def lead(browser, address):
    return words(browser.get(address).context["panels"][0].lead)


@pytest.fixture
def row(warehouse, db) -> Table:
    return make_lance_table(("prod", "events"))


# --- facts


def test_the_page_of_a_table_shows_its_facts(browser, row):
    insert(row)
    insert(row, table(count=10))
    delete(row, "id = 2")
    details = facts(browser, url(row))
    row.refresh_from_db()
    files = list(Path(row.location, "data").glob("*.lance"))
    newest = TableVersion.objects.filter(table=row).latest("version")
    for some in ("Created", "Changed", "Size"):
        assert details.pop(some)
    assert details == {
        "Namespace": "prod",
        "Format": "Lance table, data storage version "
        + lance.dataset(row.location).data_storage_version,
        "State": "live",
        "UUID": str(row.uuid),
        "Location": row.location,
        "Newest version": f"4, {newest.created_at:%Y-%m-%d %H:%M:%S}",
        "Last written by": "key:bob",
        "Versions": "4",
        "Rows": "13",
        "Deleted rows": "3",
        "Fragments": "3, in 3 data files",
        "Stable row IDs": "no",
        "Properties": "–",
        "Managed versioning": "yes",
        "Owner": "system",
        "Protected": "no",
        "Labels": "–",
        "Sensitivity": "–",
        "Links": "–",
        "Description": "–",
    }
    assert len(files) == 3
    size = sum(file.stat().st_size for file in files)
    assert f'title="{size} bytes"' in browser.get(url(row)).content.decode()


def test_a_deleted_version_is_not_counted(browser, row):
    insert(row)
    TableVersion.objects.filter(table=row, version=1).update(deleted_at="2026-01-01T00:00:00Z")
    assert facts(browser, url(row))["Versions"] == "1"


def test_every_tab_takes_a_fixed_number_of_queries(browser, row):
    insert(row)
    for name in ("a", "b"):
        lance_tags.create_tag(actor=SYSTEM, table=row.identifier, tag=name, version=1)
        lance_branches.create_branch(actor=SYSTEM, table=row.identifier, name=name)
    expected = {url(row, tab): count for tab, count in TABS.items()}
    expected[url(row, "schema", version=1)] = TABS["schema"] + 1
    expected[url(row, "preview", branch="a")] = TABS["preview"] + 1
    cost(browser, expected)
    assert cost(browser, expected) == expected
    for number in range(12):
        insert(row)
        lance_tags.create_tag(actor=SYSTEM, table=row.identifier, tag=f"t{number}", version=1)
        lance_branches.create_branch(actor=SYSTEM, table=row.identifier, name=f"b{number}")
    index(row)
    assert cost(browser, expected) == expected


# --- schema


def test_the_schema_is_shown_as_a_tree(browser, warehouse, db):
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False, metadata={"comment": "the key"}),
            pa.field("v", pa.list_(pa.float32(), 8)),
            pa.field(
                "place",
                pa.struct(
                    [
                        pa.field("lat", pa.float64(), nullable=False),
                        pa.field("names", pa.list_(pa.struct([pa.field("n", pa.string())]))),
                    ]
                ),
            ),
            pa.field("tags", pa.list_(pa.string())),
            pa.field("twice", pa.int64(), metadata={"computed_column.expression": "id * 2"}),
            pa.field("img", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
        ],
        metadata={"source": "a sensor"},
    )
    row = make_lance_table(("prod", "events"), schema.empty_table())
    assert [line[:5] for line in rows(browser, url(row, "schema"))] == [
        ["0", "id", "int64", "required", "comment the key"],
        ["1", "v vector, 8", "float[8]", "nullable", "–"],
        ["2", "place", "struct", "nullable", "–"],
        ["3", "lat", "double", "required", "–"],
        ["4", "names", "list<struct>", "nullable", "–"],
        ["5", "item", "struct", "nullable", "–"],
        ["6", "n", "string", "nullable", "–"],
        ["7", "tags", "list<string>", "nullable", "–"],
        ["9", "twice computed", "int64", "nullable", "computed_column.expression id * 2"],
        ["10", "img blob", "lance.blob.v2", "nullable", "–"],
    ]
    assert rows(browser, url(row, "schema"), panel=1) == [["source", "a sensor"]]


def test_a_wide_schema_is_paged(browser, warehouse, db):
    data = pa.table({f"c{n}": pa.array([], pa.int8()) for n in range(250)})
    row = make_lance_table(("prod", "events"), data)
    assert [line[1] for line in walk(browser, url(row, "schema"))] == [f"c{n}" for n in range(250)]
    assert "c199" not in [line[1] for line in rows(browser, url(row, "schema", field=200))]


def test_an_older_version_and_a_branch_may_be_selected(browser, row):
    lance_branches.create_branch(actor=SYSTEM, table=row.identifier, name="dev")
    insert(row, branch="dev")
    insert(row, pa.table({"other": [1]}), overwrite=True)
    assert [line[1] for line in rows(browser, url(row))] == ["other"]
    assert [line[1] for line in rows(browser, url(row, "schema", version=1), 1)] == ["id", "name"]
    assert (
        empty_text(browser, url(row, "schema", version=1))
        == "Version 1. Return to the newest of main"
    )
    assert len(rows(browser, url(row, "preview", branch="dev"), 1)) == 6
    assert len(rows(browser, url(row, "fragments", branch="dev"), 1)) == 2
    assert "on branch 'dev'" in empty_text(browser, url(row, "fragments", branch="dev"))
    assert empty_text(browser, url(row, "schema", version=9)).startswith(
        "Table 'prod.events' has no ver"
    )
    assert "no branch 'x'" in empty_text(browser, url(row, "preview", branch="x"))


# --- fragments


def test_fragments_are_listed(browser, row):
    insert(row, table(count=10))
    delete(row, "id = 2 OR id = 3")
    lines = rows(browser, url(row, "fragments"))
    assert [line[:4] for line in lines] == [
        ["0 small", "1", "2 66.7%", "1"],
        ["1 small", "8", "2 20.0%", "1"],
    ]
    assert lead(browser, url(row, "fragments")) == (
        "fewer than 1,000 rows 2 1,000 to 9,999 0 10,000 to 99,999 0 "
        "100,000 to 999,999 0 1,000,000 rows or more 0"
    )
    page = browser.get(url(row, "fragments")).content.decode()
    assert page.count("width: 100.0%") == 1
    assert "are marked as small" in page


def test_the_only_fragment_is_not_small(browser, row):
    assert rows(browser, url(row, "fragments"))[0][:3] == ["0", "3", "0"]


def test_large_fragments_are_not_small(browser, row):
    insert(row, pa.table({"id": pa.array(range(120_000)), "name": pa.nulls(120_000, pa.string())}))
    lines = rows(browser, url(row, "fragments"))
    assert [line[:2] for line in lines] == [["0 small", "3"], ["1", "120,000"]]
    assert "100,000 to 999,999 1" in lead(browser, url(row, "fragments"))


def test_fragments_are_paged(browser, row):
    lance_commits.write(
        actor=SYSTEM,
        table=row.identifier,
        operation=data_operations.InsertIntoTable,
        work=lambda dataset: dataset.insert(table(count=60), max_rows_per_file=1),
    )
    lines = walk(browser, url(row, "fragments"))
    assert [line[0] for line in lines] == [f"{n} small" for n in range(61)]


def test_a_table_without_rows_has_no_fragments(browser, warehouse, db):
    row = make_lance_table(("prod", "events"), table(count=0))
    assert empty_text(browser, url(row, "fragments")) == "No fragments: this version has no rows."
    assert empty_text(browser, url(row, "preview")) == "This version has no rows."
    assert empty_text(browser, url(row, "preview", filter="id>1")) == "No row matches the filter."
    assert "No field named nope" in lead(browser, url(row, "preview", filter="nope>1"))
    assert facts(browser, url(row))["Rows"] == "0"
    assert facts(browser, url(row))["Size"] == "0 bytes"


# --- indexes


def test_indexes_are_listed_with_their_unindexed_rows(browser, row):
    assert empty_text(browser, url(row, "indexes")).startswith("No indexes.")
    index(row)
    insert(row, table(count=1))
    line = rows(browser, url(row, "indexes"))[0]
    assert line[:5] == ["id_idx", "BTREE", "id", "3", "1 (25.0%)"]
    assert line[6] == "1"
    assert "width: 25.0%" in browser.get(url(row, "indexes")).content.decode()


def test_an_index_links_to_the_forms_that_optimize_or_rebuild_it(browser, row):
    """The forms open with the index chosen; older versions and branches have no such links."""
    index(row)
    insert(row, table(count=1))
    index(row, column="name")  # contains all rows
    indexes_panel = browser.get(url(row, "indexes")).context["panels"][0]
    assert indexes_panel.columns[-1] == ""
    assert [words(line[-1]) for line in indexes_panel.rows] == ["Optimize Rebuild", "Rebuild"]
    first, second = re.findall(r'href="([^"]+)"', str(indexes_panel.rows[0][-1]))
    for address, title in ((first, "Optimize indexes"), (second, "Rebuild indexes")):
        form = browser.get(address)
        assert form.status_code == 200
        assert title in form.context["title"]
        assert form.context["form"].initial == {"indexes": ["id_idx"]}
    old = browser.get(url(row, "indexes") + "&version=3").context["panels"]
    assert [panel.columns[-1] for panel in old if panel.columns] == ["Created"]


def test_links_to_maintenance_require_maintain(sign_in, row):
    index(row)
    reader = sign_in("read")
    indexes_panel = reader.get(url(row, "indexes")).context["panels"][0]
    assert [words(line[0]) for line in indexes_panel.rows] == ["id_idx"]
    assert indexes_panel.columns[-1] == "Created"


# --- tags and branches


def test_tags_and_branches_are_listed(browser, row):
    insert(row)
    lance_tags.create_tag(actor=SYSTEM, table=row.identifier, tag="first", version=1)
    lance_branches.create_branch(actor=SYSTEM, table=row.identifier, name="dev", from_version=1)
    insert(row, branch="dev")
    lance_tags.create_tag(actor=SYSTEM, table=row.identifier, tag="second", version=2, branch="dev")
    TableVersion.objects.filter(table=row, branch="", version=1).update(
        deleted_at="2026-01-01T00:00:00Z"
    )
    assert rows(browser, url(row, "refs"), panel=1) == [
        ["first", "main", "1 missing", ""],
        ["second", "dev", "2", "View"],
    ]
    line = rows(browser, url(row, "refs"), panel=2)[0]
    assert line[:4] == ["dev", "2", "1", "main"]
    page = browser.get(url(row, "refs")).content.decode()
    assert 'href="?tab=versions&amp;branch=dev&amp;before=3"' in page
    top = rows(browser, url(row, "versions", branch="dev", before=3))[0]
    assert top[0].split()[0] == "2"


def test_tags_and_branches_are_paged(browser, row):
    for n in range(30):
        lance_tags.create_tag(actor=SYSTEM, table=row.identifier, tag=f"t{n:02}", version=1)
        lance_branches.create_branch(actor=SYSTEM, table=row.identifier, name=f"b{n:02}")
    names = [f"{n:02}" for n in range(30)]
    assert [line[0] for line in walk(browser, url(row, "refs"), 1)] == [f"t{n}" for n in names]
    assert [line[0] for line in walk(browser, url(row, "refs"), 2)] == [f"b{n}" for n in names]


def test_a_table_without_tags_and_branches(browser, row):
    assert empty_text(browser, url(row, "refs"), panel=1).startswith("No tags.")
    assert empty_text(browser, url(row, "refs"), panel=2).startswith("No branches other than main.")


# --- rows


def test_the_first_rows_are_shown(browser, row):
    preview = browser.get(url(row, "preview")).context["panels"][0]
    assert [words(name) for name in preview.columns] == ["id", "name"]
    assert rows(browser, url(row, "preview")) == [["1", "a"], ["2", "b"], ["3", "c"]]


def test_the_number_of_rows_follows_the_request(browser, warehouse, db):
    row = make_lance_table(("prod", "events"), table(count=300))
    assert len(rows(browser, url(row, "preview"))) == 20
    for requested, expected in {
        "5": 5,
        "100": 100,
        "101": 100,
        "99999": 100,
        "0": 20,
        "x": 20,
    }.items():
        assert len(rows(browser, url(row, "preview", rows=requested))) == expected
    assert [line[0] for line in rows(browser, url(row, "preview", rows=3))] == ["1", "2", "3"]


def test_rows_are_filtered(browser, row):
    insert(row, table(count=10))
    lines = rows(browser, url(row, "preview", filter="id%20%3E%202%20AND%20name%20LIKE%20'n%25'"))
    assert [line[0] for line in lines] == [str(n) for n in range(3, 11)]
    index(row)
    insert(row)
    assert len(rows(browser, url(row, "preview", filter="id=3"))) == 3
    assert empty_text(browser, url(row, "preview", filter="id=99")) == "No row matches the filter."


def test_columns_may_be_selected(browser, row):
    assert rows(browser, url(row, "preview", column="name")) == [["a"], ["b"], ["c"]]
    address = url(row, "preview") + "&column=name&column=id"
    assert [words(name) for name in browser.get(address).context["panels"][0].columns] == [
        "id",
        "name",
    ]
    assert "Column &#x27;nope&#x27; does not exist" in (
        browser.get(url(row, "preview", column="nope")).content.decode()
    )


def test_only_the_first_of_many_columns_are_shown(browser, warehouse, db):
    row = make_lance_table(("prod", "events"), pa.table({f"c{n}": [n] for n in range(600)}))
    assert len(browser.get(url(row, "preview")).context["panels"][0].columns) == 30
    assert "The first 30 of 600 columns" in lead(browser, url(row, "preview"))
    assert rows(browser, url(row, "preview", column="c599")) == [["599"]]


def test_deleted_rows_are_not_shown(browser, row):
    delete(row, "id = 1")
    assert rows(browser, url(row, "preview")) == [["2", "b"], ["3", "c"]]


def test_values_are_shortened(browser, warehouse, db):
    data = pa.table(
        {
            "v": pa.array([[3.0, 4.0, 0.0, 0.0, 0.0, 0.0]], pa.list_(pa.float32(), 6)),
            "half": pa.array([[0.5, None]], pa.list_(pa.float16(), 2)),
            "text": ["y" * 100_000],
            "bytes": pa.array([b"\x00\x01" * 1000], pa.binary()),
            "png": pa.array([b"\x89PNG\r\n\x1a\n" + b"x" * 2040], pa.binary()),
            "nested": [{"a": 1, "b": [1, 2, {"c": None}][:2], "c": {"d": "e"}}],
            "long": [list(range(100_000))],
            "nothing": pa.array([None], pa.int8()),
            "empty": [""],
            "when": pa.array([2**62], pa.timestamp("us")),
            "day": pa.array([0], pa.date32()),
            "real": [float("nan")],
            "yes": [True],
            "large": pa.array([2**64 - 1], pa.uint64()),
        }
    )
    row = make_lance_table(("prod", "events"), data)
    page = browser.get(url(row, "preview"))
    preview = page.context["panels"][0]
    values = dict(
        zip(map(words, preview.columns), rows(browser, url(row, "preview"))[0], strict=True)
    )
    text, numbers, when = values.pop("text"), values.pop("long"), values.pop("when")
    assert values == {
        "v": "[3, 4, 0, 0, …] 6 values, norm 5",
        "half": "[0.5, null] 2 values, norm 0.5",
        "bytes": "000100010001000100010001… 2.0 KB",
        "png": "PNG image 2.0 KB",
        "nested": '{"a":1,"b":[1,2],"c":{"d":"e"}}',
        "nothing": "null",
        "empty": "empty",
        "day": "1970-01-01",
        "real": "NaN",
        "yes": "true",
        "large": "18446744073709551615",
    }
    assert text == "y" * 199 + "… 100,000 characters"
    assert numbers.startswith("[0,1,2,3")
    assert len(numbers) < 201
    assert not when  # described, in angle brackets
    assert "&lt;value out of range: 4611686018427387904&gt;" in page.content.decode()
    assert len(page.content) < 110_000


def test_blobs_are_shown_by_their_size(browser, warehouse, db):
    field = pa.field("img", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    data = pa.table([pa.array([b"x" * 3000, None], pa.large_binary())], schema=pa.schema([field]))
    row = make_lance_table(("prod", "events"), data)
    assert rows(browser, url(row, "preview")) == [["blob 2.9 KB"], ["null"]]


@shared_cases(
    "predicate",
    [
        "nope = 1",
        "id = ",
        "id = 'x'",
        "id",
        "1",
        "';DROP TABLE x",
        "id > (SELECT 1)",
        "id = 1/0",
        "name LIKE 3",
        "nofunction(id) = 1",
        "id = 9999999999999999999999999999",
        "(" * 200,
        "cast(" * 100,
        "id = " + "1+" * 400 + "1",
        "id=" + "1+" * 5000 + "1",
        "\ud800".encode("utf-16-le", "surrogatepass").decode("latin-1"),
        EVIL,
        "regexp_like(name, '(')",
        "name = repeat('x', -1)",
        "_distance > 1",
        "_rowid = -1",
    ],
)
def test_an_invalid_filter_is_a_message(browser, row, predicate):
    address = f"/admin/catalog/table/{row.pk}/change/"
    began = time.monotonic()
    answer = browser.get(address, {"tab": "preview", "filter": predicate})
    assert answer.status_code == 200
    assert time.monotonic() - began < 10
    page = answer.content.decode()
    assert EVIL not in page
    assert 'role="alert"' in page or not answer.context["panels"][0].rows
    assert "cannot be read" not in page
    assert "Traceback" not in page


def test_a_filter_that_matches_nothing_is_stopped(browser, row, monkeypatch):
    for _ in range(4):
        insert(row)
    monkeypatch.setattr(row_previews, "SECONDS", 0.0)
    monkeypatch.setattr(lance_preview, "_GRACE_SECONDS", 60.0)
    monkeypatch.setattr(lance_preview, "_AT_ONCE", 6)
    assert lead(browser, url(row, "preview", filter="id=99")).endswith(
        "Stopped after 0 seconds and 6 scanned rows: there may be more. Read for up to 9 seconds"
    )
    assert empty_text(browser, url(row, "preview", filter="id=99")) == "No rows to show."


def test_a_scan_that_hangs_does_not_block_the_page(browser, row, monkeypatch):
    going_on = threading.Event()
    monkeypatch.setattr(row_previews, "SECONDS", -0.9)
    monkeypatch.setattr(lance_preview, "_GRACE_SECONDS", 1.0)
    monkeypatch.setattr(lance_preview._PreviewScan, "run", lambda self: going_on.wait(60))
    try:
        leads = [lead(browser, url(row, "preview")) for _ in range(3)]
    finally:
        going_on.set()
    assert "there may be more" in leads[0]
    assert leads[2].endswith("Nothing was read: other previews are running. Try again.")


def test_the_size_of_rows_that_are_read_is_limited(browser, warehouse, db, monkeypatch):
    monkeypatch.setattr(lance_preview, "MOST_BYTES", 1024**2)
    values = [os.urandom(300_000) for _ in range(50)]
    row = make_lance_table(("prod", "events"), pa.table({"b": values}))
    assert 4 <= len(rows(browser, url(row, "preview", rows=50))) <= 5
    assert lead(browser, url(row, "preview", rows=50)).endswith("Stopped after 1 MiB.")


# --- access


@pytest.mark.parametrize("tab", TABS)
def test_rows_and_schemas_require_read(sign_in, row, tab):
    client = sign_in("browse")
    page = client.get(url(row, tab)).content.decode()
    assert "tab=fragments" not in page
    assert "tab=preview" not in page
    assert row.location not in page
    assert "You may browse this table, but not read it." in page


def test_users_with_read_see_rows(sign_in, row):
    client = sign_in("read")
    assert "tab=preview" in client.get(url(row)).content.decode()
    assert rows(client, url(row, "preview")) == [["1", "a"], ["2", "b"], ["3", "c"]]


@pytest.mark.parametrize("tab", TABS)
def test_the_page_of_a_hidden_table_gets_404(sign_in, row, tab):
    assert sign_in().get(url(row, tab)).status_code == 404  # as for a missing table


# --- damaged and missing tables


def test_the_page_of_a_declared_table(browser, warehouse, db):
    row = make_table("prod", "events")
    message = "The table is declared and has no data yet."
    for tab in ("schema", "fragments", "indexes", "preview"):
        assert empty_text(browser, url(row, tab)) == message
    for tab in TABS:
        assert browser.get(url(row, tab)).status_code == 200
    details = facts(browser, url(row))
    assert details["Newest version"] == "none"
    assert "Fault" not in details


def test_the_page_of_a_dropped_table(browser, row):
    commit([table_operations.DropTable(table=row.identifier)], actor=SYSTEM)
    again = make_lance_table(("prod", "events"), table(count=7))
    for tab in ("schema", "fragments", "indexes", "preview"):
        assert empty_text(browser, url(row, tab)) == "The table was dropped."
    for tab in TABS:
        assert browser.get(url(row, tab)).status_code == 200
    assert "Rows" not in facts(browser, url(row))
    assert facts(browser, url(again))["Rows"] == "7"


@pytest.mark.parametrize(
    "damage",
    [
        lambda row: shutil.rmtree(row.location),
        lambda row: shutil.rmtree(Path(row.location, "_versions")),
        lambda row: _replace_manifest(row, b""),
        lambda row: _replace_manifest(row, b"x" * 500),
        lambda row: _replace_manifest(row, _manifest(row).read_bytes()[:-100]),
        lambda row: _replace_manifest(row, _far(_manifest(row).read_bytes())),
    ],
    ids=["all", "manifests", "empty", "noise", "cut", "panic"],
)
def test_an_unreadable_table_is_reported(browser, row, damage):
    damage(row)
    lance_datasets.clear_caches()
    lance_datasets.session.cache_clear()
    details = facts(browser, url(row))
    assert details["Fault"].startswith("fault ")
    assert details["Newest version"].startswith("1, ")
    for tab in ("schema", "fragments", "indexes", "preview"):
        assert empty_text(browser, url(row, tab))
    for tab in TABS:
        assert browser.get(url(row, tab)).status_code == 200


def _manifest(row):
    return next(Path(row.location, "_versions").glob("*.manifest"))


def _replace_manifest(row, content):
    _manifest(row).write_bytes(content)


def _far(content):
    """A manifest with a length beyond its end, with which Lance panics."""
    return content[:-16] + (len(content) + 5).to_bytes(8, "little") + content[-8:]


def test_missing_data_files_are_reported(browser, row):
    shutil.rmtree(Path(row.location, "data"))
    lance_datasets.clear_caches()
    assert "The rows cannot be read" in lead(browser, url(row, "preview"))
    assert facts(browser, url(row))["Rows"] == "3"
    assert len(rows(browser, url(row, "fragments"))) == 1


def test_unreadable_tags_are_reported(browser, row):
    Path(row.location, "_refs").mkdir()
    Path(row.location, "_refs", "tags").write_text("no directory")
    Path(row.location, "_refs", "branches").mkdir()
    assert browser.get(url(row, "refs")).status_code == 200


def test_a_version_outside_the_table_is_reported(browser, warehouse, db):
    row = make_table("prod", "events")
    commit(
        [
            version_operations.CreateVersion(
                table=("prod", "events"), version=1, manifest_path="elsewhere/1.x"
            )
        ],
        actor=SYSTEM,
    )
    row.refresh_from_db()
    assert row.state == TableState.LIVE
    assert facts(browser, url(row))["Fault"]


# --- strange input


@pytest.mark.parametrize("tab", TABS)
def test_names_and_data_are_escaped(browser, warehouse, db, tab):
    field = pa.field(EVIL, pa.string(), metadata={EVIL: EVIL})
    nested = pa.field("n", pa.struct([pa.field(EVIL, pa.list_(pa.string()))]))
    schema = pa.schema([field, nested, pa.field("b", pa.binary())], metadata={EVIL: EVIL})
    data = pa.table([[EVIL], [{EVIL: [EVIL]}], [EVIL.encode()]], schema=schema)
    row = make_lance_table(("prod", EVIL), data)
    index(row, EVIL)
    page = browser.get(url(row, tab)).content.decode()
    assert EVIL not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


@shared_cases(
    "query",
    [
        "tab=schema&field=x&after=%00",
        "tab=schema&version=x&branch=%00",
        "tab=schema&version=999999999999999999",
        "tab=schema&version=-1",
        "tab=schema&branch=../../etc",
        "tab=fragments&after=%FF",
        "tab=indexes&after=%00",
        "tab=refs&tag=%00&from=%FF",
        "tab=preview&rows=-5&column=%00&column=",
        "tab=preview&branch=<script>alert(1)</script>&filter=<script>alert(1)</script>",
        "tab=preview&column=<script>alert(1)</script>",
        "tab=nonsense",
    ],
)
def test_invalid_parameters_do_not_break_a_page(browser, row, query):
    answer = browser.get(f"/admin/catalog/table/{row.pk}/change/?{query}")
    assert answer.status_code == 200
    assert EVIL not in answer.content.decode()


def test_the_schemas_of_two_versions_are_compared(browser):
    make_lance_table(("x", "compared"), pa.table({"a": [1], "b": ["x"]}))
    row = Table.objects.get(name="compared")
    rows = pa.table({"a": [1], "c": [1.5]})
    lance_data.insert(actor=SYSTEM, table=row.identifier, data=rows.to_reader(), overwrite=True)

    def compared(query: str) -> Panel:
        response = browser.get(f"/admin/catalog/table/{row.pk}/change/?tab=schema{query}")
        return response.context["panels"][-1]

    assert "Enter a version" in compared("").empty
    panel = compared("&compare=1")
    assert list(panel.columns) == ["Change", "Version 1", "Version 2"]
    kinds = [re.sub("<[^>]*>", "", str(line[0])) for line in panel.rows]
    assert kinds
    text = re.sub("<[^>]*>", " ", str(panel.rows))
    assert "b" in text
    assert "double" in text
    assert "same columns" in compared("&compare=2").empty
    assert "99" in compared("&compare=99").empty
