import pyarrow as pa
import pytest

from catalog.models import AuditEvent, TableVersion, Transaction
from tests.api.client import stream

pytestmark = [pytest.mark.django_db, pytest.mark.operation("InsertIntoTable")]


def test_rows_are_added_in_one_audited_version(lance):
    lance.post("/v1/namespace/w/create", {})
    lance.post("/v1/table/w$t/create", raw=stream(pa.table({"a": [1, 2]})))
    added = lance.post("/v1/table/w$t/insert", raw=stream(pa.table({"a": [3]})))
    assert (added["version"], added["num_inserted_rows"]) == (2, 1)
    event = AuditEvent.objects.get(action="table.insert")
    assert str(event.transaction_id) == added["transaction_id"]
    assert event.after["version"] == 2
    done = Transaction.objects.get(pk=added["transaction_id"]).operations
    assert [operation["operation"] for operation in done] == ["InsertIntoTable"]
    assert list(TableVersion.objects.values_list("version", flat=True)) == [1, 2]
