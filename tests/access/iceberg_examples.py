"""A request of every operation of the Iceberg protocol that succeeds, and the catalog it needs."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from catalog.access import SYSTEM, Principal
from catalog.models import StorageProfile, Table
from catalog.privileges import Privilege
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import functions, scans
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg import views as iceberg_views
from catalog.services.iceberg.functions import Content
from catalog.services.storage import profiles
from catalog.storage import locations
from tests.catalog.formats.iceberg.scans.test_planning import SIMPLE, row
from tests.catalog.formats.iceberg.written import Written
from tests.catalog.services.iceberg.test_scans import register
from tests.factories import ICEBERG_SCHEMA, make_namespace

_VERSION = {
    "version-id": 1,
    "schema-id": 0,
    "timestamp-ms": 2_000,
    "summary": {"engine-name": "spark"},
    "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}],
    "default-namespace": ["ws"],
}
DEFINITION = {
    "parameters": [{"name": "x", "type": "int"}],
    "return-type": "int",
    "versions": [
        {
            "representations": [{"type": "sql", "dialect": "spark", "sql": "x + 1"}],
            "timestamp-ms": 7,
        }
    ],
}
_COUNT = {"unit": "count", "value": 1}
_REPORT = {
    "report-type": "scan-report",
    "table-name": "ws.t",
    "snapshot-id": 1,
    "filter": {"type": "eq", "term": "id", "value": 1},
    "schema-id": 0,
    "projected-field-ids": [1],
    "projected-field-names": ["id"],
    "metrics": {"result-data-files": _COUNT},
}
_SIGN = {
    "method": "GET",
    "uri": "https://lake.s3.eu-central-1.amazonaws.com/tables/t/data/1.parquet",
    "region": "eu-central-1",
    "headers": {"x-amz-checksum-mode": ["ENABLED"]},
}
_SET = [{"action": "set-properties", "updates": {"key": "value"}}]
T, V = "namespaces/ws/tables/t", "namespaces/ws/views/v"


@dataclass(frozen=True)
class Example:
    method: str
    path: str
    """``PLAN``, ``TASK`` and ``TABLEFILE``, here and in the body, are placeholders for actual
    values."""
    body: dict[str, Any] | None = None
    status: int = 200


def _name(name: str) -> dict[str, Any]:
    return {"namespace": ["ws"], "name": name}


EXAMPLES: dict[str, Example] = {
    "getConfig": Example("GET", "config?warehouse=ws"),
    "createNamespace": Example("POST", "namespaces", {"namespace": ["new"], "properties": {}}),
    "listNamespaces": Example("GET", "namespaces?parent=ws"),
    "loadNamespaceMetadata": Example("GET", "namespaces/ws"),
    "namespaceExists": Example("HEAD", "namespaces/ws", status=204),
    "dropNamespace": Example("DELETE", "namespaces/ws", status=204),
    "updateProperties": Example("POST", "namespaces/ws/properties", {"updates": {"k": "v"}}),
    "listTables": Example("GET", "namespaces/ws/tables"),
    "createTable": Example(
        "POST", "namespaces/ws/tables", {"name": "new", "schema": ICEBERG_SCHEMA}
    ),
    "registerTable": Example(
        "POST", "namespaces/ws/register", {"name": "new", "metadata-location": "TABLEFILE"}
    ),
    "loadTable": Example("GET", T),
    "tableExists": Example("HEAD", T, status=204),
    "updateTable": Example("POST", T, {"requirements": [], "updates": _SET}),
    "dropTable": Example("DELETE", T, status=204),
    "unregisterTable": Example("POST", f"{T}/unregister"),
    "renameTable": Example(
        "POST", "tables/rename", {"source": _name("t"), "destination": _name("u")}, 204
    ),
    "loadCredentials": Example("GET", f"{T}/credentials"),
    "signRequest": Example("POST", f"{T}/sign", _SIGN),
    "planTableScan": Example("POST", f"{T}/plan", {}),
    "fetchPlanningResult": Example("GET", f"{T}/plan/PLAN"),
    "cancelPlanning": Example("DELETE", f"{T}/plan/PLAN", status=204),
    "fetchScanTasks": Example("POST", f"{T}/tasks", {"plan-task": "TASK"}),
    "reportMetrics": Example("POST", f"{T}/metrics", _REPORT, 204),
    "commitTransaction": Example(
        "POST",
        "transactions/commit",
        {"table-changes": [{"identifier": _name("t"), "requirements": [], "updates": _SET}]},
        204,
    ),
    "listViews": Example("GET", "namespaces/ws/views"),
    "createView": Example(
        "POST",
        "namespaces/ws/views",
        {"name": "new", "schema": ICEBERG_SCHEMA, "view-version": _VERSION, "properties": {}},
    ),
    "registerView": Example(
        "POST", "namespaces/ws/register-view", {"name": "new", "metadata-location": "VIEWFILE"}
    ),
    "loadView": Example("GET", V),
    "viewExists": Example("HEAD", V, status=204),
    "replaceView": Example("POST", V, {"updates": _SET}),
    "dropView": Example("DELETE", V, status=204),
    "renameView": Example(
        "POST", "views/rename", {"source": _name("v"), "destination": _name("u")}, 204
    ),
    "listFunctions": Example("GET", "namespaces/ws/functions"),
    "loadFunction": Example("GET", "namespaces/ws/functions/f"),
}
EMPTY = {"dropNamespace"}
"""Operations that require an empty namespace."""


def make_catalog(requester: Principal) -> dict[str, str]:
    """Namespace ``ws`` with table ``t`` of a few files, view ``v`` and function ``f``.

    Returns what stands for the words of the examples. Plans are kept for ``who``.
    """
    make_namespace("ws")
    made = Written(Path(locations.new_location("t")), SIMPLE)
    for number in range(3):
        made.commit([made.file([row(number, number)])])
    register(made, "ws", "t")
    functions.create_function(
        actor=SYSTEM, function=("ws", "f"), content=Content(definitions=[DEFINITION], doc="adds")
    )
    view = iceberg_views.create_view(
        actor=SYSTEM, view=("ws", "v"), schema=ICEBERG_SCHEMA, view_version=_VERSION
    )
    lost = iceberg_commits.create_table(actor=SYSTEM, table=("ws", "gone"), schema=ICEBERG_SCHEMA)
    iceberg_tables.unregister_table(actor=SYSTEM, table=("ws", "gone"))
    everything = replace(requester, everywhere=Privilege.ALL)
    plan = scans.plan_scan(actor=everything, table=("ws", "t"), request={})
    return {
        "VIEWFILE": _elsewhere(view.metadata_location),
        "TABLEFILE": _elsewhere(lost.metadata_location),
        "PLAN": plan.plan,
        "TASK": plan.plan_tasks[0],
    }


def prepare(operation: str) -> dict[str, str]:
    if operation == "signRequest":
        _place_in_object_store()
    return {}


def _place_in_object_store() -> None:
    """Let the table be in a bucket for whose requests the server signs. Nothing is sent there."""
    StorageProfile.objects.create(
        name="lake",
        kind="s3",
        roots=["s3://lake/tables"],
        region="eu-central-1",
        identity="key",
        key_id="id",
        secret=profiles.sealed("secret"),
        client_access="signing",
    )
    profiles.discard_cache()
    Table.objects.named(("ws", "t")).update(location="s3://lake/tables/t")


def _elsewhere(metadata_location: str) -> str:
    """The same metadata for a table unknown to the catalog, since former tables belong to their
    managers."""
    path = locations.iceberg_path(metadata_location)
    content = orjson.loads(Path(path).read_bytes())
    found_directory = Path(locations.new_location("found"))
    file = found_directory / "metadata" / Path(path).name
    file.parent.mkdir(parents=True)
    file.write_bytes(orjson.dumps({**content, "location": f"file://{found_directory}"}))
    return f"file://{file}"
