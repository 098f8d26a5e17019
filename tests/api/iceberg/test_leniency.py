"""Every field of the requests, absent, null and empty, compared with Java's parsers.

The reference is Iceberg 1.11: CreateNamespaceRequest, UpdateNamespacePropertiesRequest,
CreateTableRequest, RegisterTableRequestParser, RenameTableRequest, TableIdentifierParser,
UpdateTableRequestParser, CommitTransactionRequestParser, CreateViewRequestParser,
RegisterViewRequestParser, PlanTableScanRequestParser, FetchScanTasksRequestParser. A row has the
request, the field, and for absent, null and empty ``.`` for accepted and ``x`` for refused with 400;
then the same of Java. ``-`` is a number or a flag, which is never empty.
"""

from typing import Any

import pytest
from django.http import HttpResponse

from catalog.access import SYSTEM
from catalog.privileges import Privilege
from catalog.services.iceberg import tables as iceberg_tables
from tests.access.protocols import KEY, give, make_requester
from tests.api.iceberg.client import Iceberg
from tests.api.iceberg.test_views import make_view, version
from tests.factories import ICEBERG_SCHEMA, make_iceberg_table, make_namespace, unchanged
from tests.leniency import ABSENT, EMPTY, NULL, changed, rows

pytestmark = pytest.mark.django_db

SET = {"action": "set-properties", "updates": {"a": "b"}}
SPEC = {"spec-id": 0, "fields": [{"source-id": 1, "transform": "identity", "name": "p"}]}
ORDER = {
    "order-id": 1,
    "fields": [
        {"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-last"}
    ],
}
CHANGE = {
    "identifier": {"namespace": ["ns"], "name": "t"},
    "requirements": [],
    "updates": [SET],
}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "createNamespace": ("namespaces", {"namespace": ["new"], "properties": {"a": "b"}}),
    "updateProperties": ("namespaces/ns/properties", {"removals": ["x"], "updates": {"a": "b"}}),
    "createTable": (
        "namespaces/ns/tables",
        {
            "name": "new",
            "location": "new",
            "schema": ICEBERG_SCHEMA,
            "partition-spec": SPEC,
            "write-order": ORDER,
            "stage-create": False,
            "properties": {"a": "b"},
        },
    ),
    "registerTable": (
        "namespaces/ns/register",
        {"name": "again", "metadata-location": "", "overwrite": False},
    ),
    "renameTable": (
        "tables/rename",
        {
            "source": {"namespace": ["ns"], "name": "t"},
            "destination": {"namespace": ["ns"], "name": "u"},
        },
    ),
    "updateTable": ("namespaces/ns/tables/t", CHANGE),
    "commitTransaction": ("transactions/commit", {"table-changes": [CHANGE]}),
    "createView": (
        "namespaces/ns/views",
        {
            "name": "new",
            "location": "new",
            "schema": ICEBERG_SCHEMA,
            "view-version": version(),
            "properties": {"a": "b"},
        },
    ),
    "replaceView": (
        "namespaces/ns/views/v",
        {
            "identifier": {"namespace": ["ns"], "name": "v"},
            "requirements": [],
            "updates": [SET],
        },
    ),
    "planTableScan": (
        "namespaces/ns/tables/t/plan",
        {
            "select": ["id"],
            "filter": True,
            "case-sensitive": True,
            "use-snapshot-schema": False,
            "stats-fields": ["id"],
            "min-rows-requested": 1,
        },
    ),
}

ROWS = """
createNamespace namespace xxx xx.
createNamespace properties ... ...
updateProperties removals ... ...
updateProperties updates ... ...
createTable name xxx xx.
createTable location ..x ..x
createTable schema xxx xxx
createTable partition-spec ..x ..x
createTable partition-spec.fields xx. xx.
createTable write-order ..x ..x
createTable write-order.fields xx. xx.
createTable stage-create ..- .x-
createTable properties ... ...
registerTable name xxx xx.
registerTable metadata-location xxx xxx
registerTable overwrite ..- ..-
renameTable source xxx xxx
renameTable destination xxx xxx
renameTable source.name xxx xxx
renameTable destination.name xxx xxx
updateTable identifier ..x ..x
updateTable identifier.name xxx xx.
updateTable requirements ... ...
updateTable updates ... ...
commitTransaction table-changes xx. xx.
commitTransaction table-changes.0.identifier xxx xxx
commitTransaction table-changes.0.identifier.name xxx xxx
commitTransaction table-changes.0.requirements ... ...
commitTransaction table-changes.0.updates ... ...
createView name xxx xx.
createView location ..x ..x
createView schema xxx xxx
createView view-version xxx xxx
createView properties ... .x.
replaceView identifier ..x ..x
replaceView requirements ... ...
replaceView updates ... ...
planTableScan select ... ...
planTableScan filter ..- .x-
planTableScan case-sensitive ..- .x-
planTableScan use-snapshot-schema ..- .x-
planTableScan stats-fields ... ...
planTableScan min-rows-requested ..- ..-
"""
EXCEPTIONS = {
    # Names must not be empty, and the root already exists.
    *(("createNamespace", "namespace"), ("createTable", "name"), ("registerTable", "name")),
    *(("updateTable", "identifier.name"), ("createView", "name")),
}


@pytest.mark.usefixtures("warehouse")
@pytest.mark.parametrize("row", rows(ROWS), ids="-".join)
@pytest.mark.parametrize("form", [ABSENT, NULL, EMPTY])
def test_fields_of_requests(iceberg: Iceberg, row, form):
    request_, path, here, _ = row
    if here[form] == "-":
        return
    make_namespace("ns")
    table = make_iceberg_table("ns", "t")
    make_view("ns", "v")
    url, body = REQUESTS[request_]
    if request_ == "registerTable":
        iceberg_tables.drop_table(actor=SYSTEM, table=("ns", "t"))
        body = {**body, "metadata-location": table.metadata_location}
    expected = changed(body, path, form)
    if here[form] == ".":
        answer = iceberg.call("POST", url, expected)
        assert answer.status_code in (200, 204), answer.content
        return
    with unchanged():
        answer = iceberg.call("POST", url, expected)
    assert is_bad_request(answer), answer.content


def is_bad_request(answer: HttpResponse) -> bool:
    error = answer.json()["error"]
    # Views: the only type that the Java client converts to an IllegalArgumentException.
    types = {"BadRequestException", "IllegalArgumentException"}
    return answer.status_code == 400 and error["type"] in types


def test_input_accepted_by_java_is_accepted():
    stricter = {
        (request_, path)
        for request_, path, here, java in rows(ROWS)
        for form in range(3)
        if java[form] == "." and here[form] == "x"
    }
    assert stricter == EXCEPTIONS


# --- spellings ---------------------------------------------------------------------------------


@pytest.fixture
def table(iceberg, warehouse) -> str:
    make_iceberg_table("ns", "t", properties={"old": "x"})
    return "namespaces/ns/tables/t"


def test_actions_and_types_in_any_case(iceberg: Iceberg, table):
    requirement = {"type": "Assert-Ref-Snapshot-Id", "ref": "main", "snapshot-id": None}
    update = {"action": "Set-Properties", "updates": {"a": "b"}}
    made = iceberg.post(table, {"requirements": [requirement], "updates": [update]})
    assert made["metadata"]["properties"] == {"old": "x", "a": "b"}


def test_paths_are_checked_for_every_spelling_of_the_action(iceberg: Iceberg, table, warehouse):
    """Another spelling of an action does not bypass its checks."""
    other = make_iceberg_table("ns", "other")
    update = {
        "action": "SET-PROPERTIES",
        "updates": {"write.data.path": f"file://{other.location}/x"},
    }
    body = {"requirements": [], "updates": [update]}
    iceberg.refused(409, "AlreadyExistsException", "belongs to", f"POST {table}", body)


def test_former_names_of_fields_are_accepted(iceberg: Iceberg, table):
    updates = [
        {"action": "set-properties", "updated": {"a": "b"}},
        {"action": "remove-properties", "removed": ["old"]},
    ]
    made = iceberg.post(table, {"requirements": [], "updates": updates})
    assert made["metadata"]["properties"] == {"a": "b"}
    both = {"action": "set-properties", "updated": {"a": "old"}, "updates": {"a": "new"}}
    made = iceberg.post(table, {"requirements": [], "updates": [both]})
    assert made["metadata"]["properties"] == {"a": "new"}


@pytest.mark.parametrize("namespace", [{}, {"namespace": None}, {"namespace": []}])
def test_a_table_without_a_namespace_is_at_the_top_of_the_warehouse(
    iceberg: Iceberg, table, namespace
):
    body = {
        "source": {"name": "t", **namespace},
        "destination": {"name": "u", "namespace": []},
    }
    assert iceberg.at("ns").call("POST", "tables/rename", body).status_code == 204
    assert iceberg.call("HEAD", "namespaces/ns/tables/u").status_code == 204


# --- referenced-by -----------------------------------------------------------------------------

REFERENCES = [
    ("ns%1Fv", 200),
    ("ns%251Fv", 200),
    ("a%1Fb%1Fv,ns%1Fw", 200),
    ("a%251Fb%251Fv%2Cns%251Fw", 200),
    ("ns%1Fwith%2Ccomma,ns%1Fv", 200),
    ("nowhere%1Fnothing", 200),
    ("", 200),
    ("v", 400),
    ("ns%1Fv,", 400),
    ("%1Fv", 400),
    ("ns%1F", 400),
    ("ns%1F%00", 400),
    (",".join(["ns%1Fv"] * 101), 400),
]


@pytest.mark.parametrize(("text", "status"), REFERENCES)
@pytest.mark.parametrize("path", ["tables/t", "tables/t/credentials", "views/v"])
def test_the_referenced_by_parameter_is_checked(iceberg: Iceberg, table, path, text, status):
    make_view("ns", "v")
    answer = iceberg.call("GET", f"namespaces/ns/{path}?referenced-by={text}")
    assert answer.status_code == status, answer.content
    if status == 400:
        assert is_bad_request(answer)
    else:
        assert answer.content == iceberg.call("GET", f"namespaces/ns/{path}").content


def test_a_view_grants_no_privilege_on_its_tables(table, warehouse):
    principal = make_requester()
    make_view("shown", "v")
    give(principal, Privilege.READ, make_namespace("shown"))
    for path in ("tables/t", "tables/t/credentials"):
        url = f"namespaces/ns/{path}?referenced-by=shown%1Fv"
        assert Iceberg(KEY).call("GET", url).status_code == 404
