import pyarrow as pa
import pytest

from catalog.access import SYSTEM
from catalog.models import AuditEvent, TableVersion, Transaction
from catalog.services.lance import datasets as lance_datasets
from tests.api.client import stream
from tests.factories import make_lance_table, make_table

pytestmark = [pytest.mark.django_db, pytest.mark.operation("RestoreTable")]

PATH = "/v1/table/w$t/restore"


@pytest.fixture
def table(lance):
    """Version 1 with row 1, version 2 with rows 1 and 2, version 3 with another column."""
    make_lance_table(("w", "t"), pa.table({"x": [1]}))
    lance.post("/v1/table/w$t/insert", raw=stream(pa.table({"x": [2]})))
    columns = [{"name": "y", "expression": "x"}]
    lance.post("/v1/table/w$t/add_columns", {"new_columns": columns})


def rows(**options) -> dict:
    return lance_datasets.read(actor=SYSTEM, table=("w", "t"), **options).to_table().to_pydict()


def test_a_new_version_has_the_old_content(lance, table):
    answer = lance.post(PATH, {"version": 1})
    assert rows() == {"x": [1]}
    assert rows(version=3) == {"x": [1, 2], "y": [1, 2]}
    event = AuditEvent.objects.get(action="table.restore")
    assert answer == {"transaction_id": str(event.transaction_id)}
    assert (event.after["version"], event.after["restored"]) == (4, 1)
    operations = Transaction.objects.get(pk=answer["transaction_id"]).operations
    assert [operation["operation"] for operation in operations] == ["RestoreTable"]
    assert sorted(TableVersion.objects.values_list("version", flat=True)) == [1, 2, 3, 4]


def test_restore_can_be_reverted(lance, table):
    lance.post(PATH, {"version": 1})
    lance.post(PATH, {"version": 3})
    assert rows() == {"x": [1, 2], "y": [1, 2]}
    lance.post("/v1/table/w$t/insert", raw=stream(pa.table({"x": [3], "y": [4]})))
    assert rows() == {"x": [1, 2, 3], "y": [1, 2, 4]}


def test_the_newest_version(lance, table):
    lance.post(PATH, {"version": 3})
    assert rows() == rows(version=3) == rows(version=4)


def test_on_a_branch(lance, table):
    lance.post("/v1/table/w$t/branches/create", {"name": "dev"})
    lance.post("/v1/table/w$t/insert?branch=dev", raw=stream(pa.table({"x": [9], "y": [9]})))
    assert rows(branch="dev")["x"] == [1, 2, 9]
    first = TableVersion.objects.filter(branch="dev").order_by("version").first()
    lance.post(PATH, {"version": first.version, "branch": "dev"})
    assert rows(branch="dev")["x"] == [1, 2]
    lance.post(PATH, {"version": 1, "branch": "main"})
    assert rows() == {"x": [1]}


@pytest.mark.parametrize("body", [{}, {"version": -1}, {"version": "1"}, {"version": 1.5}])
def test_malformed_requests(lance, table, body):
    lance.refused(400, 13, "version", PATH, body)


def test_refusals(lance, table):
    make_table("w", "declared")
    lance.refused(404, 11, "no version 9", PATH, {"version": 9})
    lance.refused(404, 11, "no version 0", PATH, {"version": 0})
    lance.refused(404, 22, "no branch 'x'", PATH, {"version": 1, "branch": "x"})
    lance.refused(404, 4, "w.u", "/v1/table/w$u/restore", {"version": 1})
    lance.refused(404, 11, "no version 1", "/v1/table/w$declared/restore", {"version": 1})
    for huge in (2**63 - 1, 2**63, 2**64):
        lance.refused(404, 11, "no version", PATH, {"version": huge})
