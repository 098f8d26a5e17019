import pyarrow as pa
import pytest

from catalog.access import SYSTEM
from catalog.models import AuditEvent, TableVersion, Transaction
from catalog.services.lance import datasets as lance_datasets
from tests.api.lance.test_concurrency import WON, key, post, race  # noqa: F401 -- a fixture
from tests.cases import shared_cases
from tests.factories import make_lance_table, make_table, register_lance_table

pytestmark = [pytest.mark.django_db, pytest.mark.operation("UpdateFieldMetadata")]

PATH = "/v1/table/w$t/update_field_metadata"
STRUCT = pa.struct([("a b", pa.int64()), ("c.e", pa.int64()), ("l", pa.list_(pa.int8()))])


@pytest.fixture
def table(db):
    types = {"x": pa.int64(), "n": STRUCT, "we`ird": pa.int64(), 'größe "x"': pa.int64()}
    schema = pa.schema(list(types.items())).set(0, pa.field("x", pa.int64(), metadata={"k": "v"}))
    register_lance_table(("w", "t"), schema.empty_table())


def update(lance, *updates, **more):
    return lance.post(PATH, {"updates": list(updates), **more})


def test_merge_replace_and_delete_in_one_version(lance, table):
    answer = update(
        lance,
        {"path": "x", "metadata": {"new": "1"}},
        {"path": "n", "metadata": {"a": "1", "b": "2"}},
    )
    assert answer == {
        "version": 2,
        "fields": {"x": {"k": "v", "new": "1"}, "n": {"a": "1", "b": "2"}},
    }
    answer = update(
        lance,
        {"path": "x", "metadata": {"only": "1", "gone": None}, "replace": True},
        {"path": "n", "metadata": {"a": None, "c": ""}},
    )
    assert answer == {"version": 3, "fields": {"x": {"only": "1"}, "n": {"b": "2", "c": ""}}}
    described = lance.post("/v1/table/w$t/describe", {"load_detailed_metadata": True})
    assert described["schema"]["fields"][0]["metadata"] == {"only": "1"}
    assert answer == update(lance, {"path": "x", "metadata": {}}, {"path": "n", "metadata": {}}) | {
        "version": 3
    }


def test_entries_of_one_field_are_applied_in_order(lance, table):
    answer = update(
        lance,
        {"path": "x", "metadata": {"a": "1", "b": "1"}, "replace": True},
        {"path": "`x`", "metadata": {"a": None, "b": "2"}},
    )
    assert answer == {"version": 2, "fields": {"x": {"b": "2"}}}


def test_is_audited(lance, table):
    update(lance, {"path": "n.`a b`", "metadata": {"a": "1"}})
    event = AuditEvent.objects.get(action="table.field_metadata")
    assert (event.after["version"], event.after["fields"]) == (2, ["n.`a b`"])
    operations = Transaction.objects.get(pk=event.transaction_id).operations
    assert [operation["operation"] for operation in operations] == ["UpdateFieldMetadata"]
    assert sorted(TableVersion.objects.values_list("version", flat=True)) == [1, 2]


@pytest.mark.parametrize(
    ("path", "canonical"),
    [
        ("n.`c.e`", "n.`c.e`"),
        ("n.a b", "n.`a b`"),
        ("`n`.l.item", "n.l.item"),
        ("`we``ird`", "`we``ird`"),
        ('größe "x"', '`größe "x"`'),
    ],
)
def test_paths(lance, table, path, canonical):
    assert update(lance, {"path": path, "metadata": {"a": "ü"}})["fields"] == {
        canonical: {"a": "ü"}
    }


def test_on_a_branch(lance, table):
    lance.post("/v1/table/w$t/branches/create", {"name": "dev"})
    answer = update(lance, {"path": "x", "metadata": {"k": None}}, branch="dev")
    assert answer["fields"] == {"x": {}}
    answer = update(lance, {"path": "x", "metadata": {"m": "1"}}, branch="main")
    assert answer["fields"] == {"x": {"k": "v", "m": "1"}}


@shared_cases("path", ["nope", "X", "item", "n.nope", "c.e", "n.c.e", "x.y", "n.l.nope"])
def test_unknown_columns(lance, table, path):
    body = {"updates": [{"path": path, "metadata": {"a": "1"}}]}
    lance.refused(404, 12, "does not exist", PATH, body)


@shared_cases(
    ("updates", "error"),
    [
        ([], "nothing to update"),
        ([{"path": "", "metadata": {}}], "path"),
        ([{"path": "n..l", "metadata": {}}], "malformed"),
        ([{"path": "n.`l", "metadata": {}}], "malformed"),
        ([{"path": "x."}], "metadata"),
        ([{"path": "x", "metadata": {"a": 1}}], "metadata"),
        ([{"path": "x", "metadata": {}, "replace": "yes"}], "replace"),
        ([{"path": "x", "metadata": {"ARROW:extension:name": "arrow.uuid"}}], "storage type"),
        ([{"path": "x", "metadata": {"ARROW:extension:name": "lance.blob.v2"}}], "struct"),
        ([{"path": "x", "metadata": {"lance-schema:unenforced-primary-key": "true"}}], "nullable"),
        ([{"path": "x", "metadata": {"computed_column.expression": "1"}}], "cannot be edited"),
    ],
)
def test_malformed_updates(lance, table, updates, error):
    lance.refused(400, 13, error, PATH, {"updates": updates})


def test_a_computed_column_keeps_its_declaration(lance, table):
    lance.post("/v1/table/w$t/add_columns", {"new_columns": [{"name": "c", "computed": "x + 1"}]})
    entry = {"path": "c", "metadata": {"computed_column.expression": None}}
    lance.refused(400, 13, "cannot be edited", PATH, {"updates": [entry]})
    entry = {"path": "c", "metadata": {"a": "1"}, "replace": True}
    lance.refused(400, 13, "would erase its declaration", PATH, {"updates": [entry]})
    fields = update(lance, {"path": "c", "metadata": {"a": "1"}})["fields"]
    assert (fields["c"]["a"], fields["c"]["computed_column.expression"]) == ("1", "x + 1")


def test_refusals(lance, table):
    make_table("w", "declared")
    body = {"updates": [{"path": "x", "metadata": {}}]}
    lance.refused(404, 22, "no branch 'x'", PATH, {**body, "branch": "x"})
    lance.refused(404, 4, "w.u", "/v1/table/w$u/update_field_metadata", body)
    lance.refused(409, 19, "declared", "/v1/table/w$declared/update_field_metadata", body)


@pytest.mark.django_db(transaction=True)
def test_rivals_all_succeed(key):  # noqa: F811
    make_lance_table(("w", "t"))
    entries = [{"path": "id", "metadata": {f"key{n}": "1"}} for n in range(4)]
    outcome = race(key, *(post(PATH, {"updates": [entry]}) for entry in entries))
    assert outcome == [WON] * 4
    dataset = lance_datasets.read(actor=SYSTEM, table=("w", "t"))
    assert dataset.version == 5
    assert sorted(dataset.schema.field("id").metadata) == [b"key0", b"key1", b"key2", b"key3"]
