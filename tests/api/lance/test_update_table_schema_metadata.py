import orjson
import pytest

from catalog.models import AuditEvent, Transaction
from tests.api.client import Lance
from tests.cases import shared_cases
from tests.factories import make_lance_table, make_table

pytestmark = [pytest.mark.django_db, pytest.mark.operation("UpdateTableSchemaMetadata")]

PATH = "/v1/table/w$t/schema_metadata/update"


def detailed(lance: Lance, **body: object) -> dict:
    return lance.post("/v1/table/w$t/describe", {"load_detailed_metadata": True, **body})


def test_the_map_replaces_the_former_map(lance):
    make_lance_table(("w", "t"))
    assert lance.post(PATH, {"a": "1", "größe": "ü"}) == {"a": "1", "größe": "ü"}
    assert lance.post(PATH, {"b": ""}) == {"b": ""}
    metadata = detailed(lance)
    assert (metadata["version"], metadata["schema"]["metadata"]) == (3, {"b": ""})
    assert lance.post(PATH, {}) == {}
    assert "metadata" not in detailed(lance)["schema"]


def test_is_audited(lance):
    make_lance_table(("w", "t"))
    lance.post(PATH, {"b": "1", "a": "2"})
    event = AuditEvent.objects.get(action="table.schema_metadata")
    assert (event.after["version"], event.after["keys"]) == (2, ["a", "b"])
    operations = Transaction.objects.get(pk=event.transaction_id).operations
    assert [operation["operation"] for operation in operations] == ["UpdateTableSchemaMetadata"]


def test_on_a_branch(lance):
    make_lance_table(("w", "t"))
    lance.post("/v1/table/w$t/branches/create", {"name": "dev"})
    assert lance.post(f"{PATH}?branch=dev", {"a": "1"}) == {"a": "1"}
    assert detailed(lance, branch="dev")["schema"]["metadata"] == {"a": "1"}
    assert "metadata" not in detailed(lance)["schema"]
    assert lance.post(f"{PATH}?branch=main", {"a": "2"}) == {"a": "2"}
    assert detailed(lance)["schema"]["metadata"] == {"a": "2"}


@shared_cases(
    "body",
    [{"a": 1}, {"a": None}, {"a": {}}, [], "a", 1, None],
    prepare=lambda: make_lance_table(("w", "t")),
)
def test_invalid_maps_are_refused(lance, body):
    lance.refused(400, 13, "", PATH, raw=orjson.dumps(body))


def test_refusals(lance):
    make_lance_table(("w", "t"))
    make_table("w", "declared")
    lance.refused(404, 22, "no branch 'x'", f"{PATH}?branch=x", {"a": "1"})
    lance.refused(404, 4, "w.u", "/v1/table/w$u/schema_metadata/update", {"a": "1"})
    lance.refused(409, 19, "declared", "/v1/table/w$declared/schema_metadata/update", {"a": "1"})
