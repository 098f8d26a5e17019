"""Versions in the ledger whose manifest is missing: every operation answers that they do not
exist."""

from pathlib import Path

import pytest

from catalog.models import TableVersion
from tests.api.client import Lance
from tests.factories import make_table

MANIFESTS = [
    "18446744073709551613.manifest",
    "18446744073709551613.manifest-gone",
    "18446744073709551613.manifest-3f1e9c1c-1b5e-4b6e-8a55-0c9d3c1f0a11",
    "2.manifest",
    "2.manifest-gone",
]
"""Manifest names of version 2, in both naming schemes and as clients stage them."""
READS = [
    ("describe?load_detailed_metadata=true", {}),
    ("count_rows", {}),
    ("query", {"k": 1, "vector": {}}),
    ("stats", {}),
    ("index/list", {}),
    ("explain_plan", {"query": {"k": 1, "vector": {}}}),
    ("update", {"updates": [["id", "1"]]}),
    ("delete", {"predicate": "true"}),
]


@pytest.mark.parametrize("manifest", MANIFESTS)
@pytest.mark.parametrize(("route", "body"), READS)
def test_a_missing_manifest_is_reported(lance: Lance, warehouse, route, body, manifest):
    table = make_table("ws", "t")
    Path(table.location, "_versions").mkdir(parents=True)
    path = f"{table.location}/_versions/{manifest}".lstrip("/")
    TableVersion.objects.create(table=table, version=2, manifest_path=path)
    table.state = "live"
    table.save()
    path = f"/v1/table/ws$t/{route}"
    lance.refused(404, 11, "Version 2 of table 'ws.t' has no manifest", path, body)
