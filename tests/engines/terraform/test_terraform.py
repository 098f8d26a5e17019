"""The example of deploy/terraform, applied by OpenTofu to a live server."""

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3

from tests.engines import terraform as engine
from tests.engines import toolkit
from tests.engines.conftest import serving
from tests.live import LiveServer

pytestmark = [pytest.mark.engines, pytest.mark.timeout(7200)]

SECRET = "a-secret-of-the-lake"
MANAGEMENT = "/management/v1/"
APPLY = ("apply", "-no-color", "-input=false", "-auto-approve")
Request = Callable[..., Any]


@pytest.fixture(scope="module")
def server(live_template: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A separate server: principals are never deleted."""
    with serving(tmp_path_factory.mktemp("warehouse")) as server:
        yield server


@pytest.fixture(scope="module")
def request_json(server: LiveServer) -> Request:
    http = urllib3.PoolManager(retries=False)

    def send(method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        answer = http.request(
            method,
            server.url + (path if path.startswith("/") else MANAGEMENT + path),
            body=None if body is None else json.dumps(body).encode(),
            headers={"x-api-key": server.key, "content-type": "application/json"},
            timeout=60,
        )
        assert answer.status == status, (answer.status, answer.data)
        return json.loads(answer.data) if answer.data else None

    return send


@pytest.fixture
def workspace(server: LiveServer, tmp_path: Path) -> Iterator[engine.Workspace]:
    toolkit.require(engine.prepare)
    workspace = engine.Workspace(
        tmp_path, MONODON_URL=server.url, MONODON_API_KEY=server.key, TF_VAR_lake_secret=SECRET
    )
    workspace.run("init", "-no-color", "-input=false")
    yield workspace
    workspace.destroy()


def edit(file: Path, before: str, after: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count(before) == 1
    file.write_text(text.replace(before, after), encoding="utf-8")


def test_the_tests_of_the_provider() -> None:
    toolkit.require(engine.prepare)
    engine.run_provider_tests()


def test_the_example(
    workspace: engine.Workspace, request_json: Request, server: LiveServer
) -> None:
    workspace.run("fmt", "-check", "-recursive", str(workspace.root))
    assert "The configuration is valid" in workspace.run("validate", "-no-color")
    planned = workspace.changes()
    assert set(map(tuple, planned.values())) == {("create",)}
    assert request_json("GET", "labels") == {"labels": []}
    workspace.apply()

    analysts = request_json("GET", "principals/group:analysts/members")["principals"]
    assert [member["name"] for member in analysts] == ["dashboards"]
    label = request_json("GET", "labels/domain")
    assert (label["values"], label["colour"]) == (["finance", "sales"], "blue")
    profile = request_json("GET", "storage-profiles/lake")
    assert profile["roots"] == ["s3://lake/tables"]
    assert (profile["key_id"], profile["has_secret"]) == ("AKIAEXAMPLE", True)
    assert profile["client_access"] == "signing"
    properties = request_json("GET", "/v1/namespaces/shop")["properties"]
    assert properties["cost_center"] == "4711"
    annotations = request_json("GET", "namespaces/shop/annotations")
    assert (annotations["owner"], annotations["direct_sensitivity"]) == ("etl", "internal")
    assert [(label["key"], label["values"]) for label in annotations["labels"]] == [
        ("domain", ["sales"])
    ]
    assert request_json("GET", "namespaces/shop/policy")["direct"] == {
        "compaction": "on",
        "keep_versions": 20,
        "window_from": "01:00",
        "window_to": "05:00",
    }
    assert request_json("GET", "namespaces/shop/retention")["direct"] == 604800
    storage = request_json("GET", "namespaces/shop$reports.daily/storage-profile")
    assert (storage["profile"], storage["bound_namespace"]) == ("lake", ["shop"])
    grants = request_json("GET", "namespaces/shop$reports.daily/grants")["grants"]
    assert [(grant["principal"], "write" in grant["privileges"]) for grant in grants] == [
        ("group:analysts", True)
    ]

    assert workspace.changes() == {}
    state = (workspace.example / "terraform.tfstate").read_text(encoding="utf-8")
    addresses = {address.partition("[")[0] for address in planned}
    assert len(json.loads(state)["resources"]) == len(addresses)
    with zipfile.ZipFile(workspace.example / "changes.tfplan") as plan:
        texts = [state, *(plan.read(name).decode(errors="ignore") for name in plan.namelist())]
    assert not [text for text in texts if SECRET in text or server.key in text]


def test_drift_is_shown_and_repaired(workspace: engine.Workspace, request_json: Request) -> None:
    workspace.apply()
    request_json(
        "PATCH", "labels/domain", {"colour": "red", "values": ["finance", "legal", "sales"]}
    )
    request_json("PUT", "namespaces/shop/grants", {"principal": "etl", "privileges": ["read"]})
    request_json("PUT", "namespaces/shop/policy", {"values": {"keep_versions": 5}})
    request_json("PATCH", "namespaces/shop/annotations", {"labels": {"domain": ["finance"]}})
    request_json("DELETE", "principals/group:analysts/members/dashboards", status=204)
    request_json("PATCH", "principals/dashboards", {"is_active": False})
    request_json("DELETE", "namespaces/shop/storage-profile", status=204)
    request_json(
        "POST",
        "/v1/namespaces/shop/properties",
        {"updates": {"cost_center": "1", "other": "x"}, "removals": []},
    )
    assert workspace.changes() == {
        "monodon_group_member.dashboards": ["create"],
        "monodon_label.domain": ["update"],
        "monodon_principal.dashboards": ["create"],
        "module.shop.monodon_namespace.this": ["update"],
        "module.shop.monodon_namespace_annotations.this": ["update"],
        'module.shop.monodon_namespace_grant.this["etl"]': ["update"],
        "module.shop.monodon_namespace_policy.this[0]": ["update"],
        "module.shop.monodon_namespace_storage_profile.this[0]": ["create"],
    }
    workspace.apply()
    assert workspace.changes() == {}
    assert request_json("GET", "labels/domain")["values"] == ["finance", "sales"]
    assert request_json("GET", "namespaces/shop/policy")["direct"]["keep_versions"] == 20
    assert request_json("GET", "principals/dashboards")["is_active"] is True
    properties = request_json("GET", "/v1/namespaces/shop")["properties"]
    assert (properties["cost_center"], properties["other"]) == ("4711", "x")


def test_a_grant_that_got_an_end_is_repaired(
    workspace: engine.Workspace, request_json: Request, server: LiveServer
) -> None:
    workspace.apply()
    with server.database() as connection:
        connection.execute("UPDATE catalog_grant SET expires_at = now() + interval '1 day'")
    assert set(map(tuple, workspace.changes().values())) == {("create",)}
    workspace.apply()
    assert workspace.changes() == {}
    grants = request_json("GET", "namespaces/shop/grants")["grants"]
    assert [(grant["principal"], grant["expires_at"]) for grant in grants] == [
        ("etl", None),
        ("group:analysts", None),
    ]


def test_changes_and_removals(workspace: engine.Workspace, request_json: Request) -> None:
    workspace.apply()
    example = workspace.example / "main.tf"
    edit(example, '{ cost_center = "4711" }', '{ team = "shop" }')
    edit(example, "    keep_versions = 20\n", "")
    edit(example, '{ (monodon_label.domain.key) = ["sales"] }', "{}")
    edit(example, '= "reader"', '= "browser"')
    edit(example, '  sensitivity       = "internal"\n', "  protected = true\n")
    assert {tuple(actions) for actions in workspace.changes().values()} == {
        ("update",),
        ("create",),
    }
    workspace.apply()
    assert workspace.changes() == {}
    properties = request_json("GET", "/v1/namespaces/shop")["properties"]
    assert properties["team"] == "shop"
    assert "cost_center" not in properties
    assert "keep_versions" not in request_json("GET", "namespaces/shop/policy")["direct"]
    annotations = request_json("GET", "namespaces/shop/annotations")
    assert (annotations["labels"], annotations["direct_sensitivity"]) == ([], None)
    grants = request_json("GET", "namespaces/shop/grants?principal=group:analysts")["grants"]
    assert [grant["privileges"] for grant in grants] == [["browse"]]
    assert request_json("GET", "namespaces/shop/protection") == {"protected": True}


def test_destroy_removes_everything_but_principals(
    workspace: engine.Workspace, request_json: Request
) -> None:
    workspace.apply()
    workspace.destroy()
    request_json("GET", "labels/domain", status=404)
    request_json("GET", "storage-profiles/lake", status=404)
    request_json("GET", "/v1/namespaces/shop", status=404)
    assert request_json("GET", "principals/etl")["is_active"] is False
    workspace.apply()
    assert request_json("GET", "principals/etl")["is_active"] is True
    assert workspace.changes() == {}


TABLES = """
terraform {
  required_providers {
    monodon = { source = "terraform.local/monodon/monodon" }
  }
}

locals {
  table = ["team", "a$b/c", "orders 1"]
}

resource "monodon_namespace" "inner" {
  namespace = ["team", "a$b/c"]
}

resource "monodon_table_annotations" "orders" {
  table       = local.table
  description = "One row for each *order*"
  labels      = { unit = ["shop", "sales"] }
}

resource "monodon_table_grant" "orders" {
  table      = local.table
  principal  = "guest"
  privileges = ["all"]
}

resource "monodon_table_policy" "orders" {
  table  = local.table
  values = { keep_versions = 7 }
}

resource "monodon_table_protection" "orders" {
  table = local.table
}
"""


def test_a_team_with_a_limited_key_declares_rules_of_tables(
    server: LiveServer, request_json: Request, tmp_path: Path
) -> None:
    """Names contain the delimiter, a slash and a blank."""
    toolkit.require(engine.prepare)
    for name in ("team-key", "guest"):
        request_json("POST", "principals", {"name": name, "kind": "service"}, status=201)
    key = request_json("POST", "keys", {"principal": "team-key", "name": "team"}, status=201)["key"]
    label = {"key": "unit", "values": ["sales", "shop"], "is_multiple": True}
    request_json("POST", "labels", label, status=201)
    request_json("POST", "/v1/namespaces", {"namespace": ["team"]})
    request_json("PUT", "namespaces/team/grants", {"principal": "team-key", "privileges": ["all"]})
    workspace = engine.Workspace(tmp_path, MONODON_URL=server.url, MONODON_API_KEY=key)
    (workspace.example / "main.tf").write_text(TABLES, encoding="utf-8")
    workspace.run("init", "-no-color", "-input=false")
    workspace.run(*APPLY, "-target=monodon_namespace.inner")
    schema = {"type": "struct", "fields": []}
    path = "/v1/namespaces/team%1Fa$b%2Fc/tables"
    request_json("POST", path, {"name": "orders 1", "schema": schema})
    workspace.apply()
    assert workspace.changes() == {}
    table = "tables/team|a$b%2Fc|orders%201"
    annotations = request_json("GET", f"{table}/annotations?delimiter=|")
    assert annotations["identifier"] == ["team", "a$b/c", "orders 1"]
    assert annotations["description"] == "One row for each *order*"
    assert annotations["labels"][0]["values"] == ["sales", "shop"]
    (grant,) = request_json("GET", f"{table}/grants?delimiter=|")["grants"]
    assert (grant["principal"], len(grant["privileges"])) == ("guest", 7)
    assert request_json("GET", f"{table}/policy?delimiter=|")["direct"] == {"keep_versions": 7}
    assert request_json("GET", f"{table}/protection?delimiter=|") == {"protected": True}
    request_json("PUT", f"{table}/protection?delimiter=|", {"protected": False})
    request_json("DELETE", f"{table}/policy?delimiter=|", status=204)
    assert workspace.changes() == {
        "monodon_table_policy.orders": ["update"],
        "monodon_table_protection.orders": ["create"],
    }
    workspace.apply()
    refusal = workspace.run("destroy", *APPLY[1:], status=1)
    assert "409" in refusal  # the namespace is not empty
    assert request_json("GET", f"{table}/protection?delimiter=|") == {"protected": False}
    assert request_json("GET", f"{table}/grants?delimiter=|")["grants"] == []
    annotations = request_json("GET", f"{table}/annotations?delimiter=|")
    assert (annotations["description"], annotations["labels"]) == ("", [])
    request_json("DELETE", f"{path}/orders%201", status=204)
    workspace.destroy()


def test_import(workspace: engine.Workspace, request_json: Request) -> None:
    request_json("POST", "labels", {"key": "domain"}, status=201)
    request_json("POST", "/v1/namespaces", {"namespace": ["shop"], "properties": {"a": "b"}})
    refusal = workspace.run(*APPLY, status=1)
    assert "Label 'domain' exists already" in " ".join(refusal.replace("│", " ").split())
    workspace.run("import", "-no-color", "monodon_label.domain", '{"key": "domain"}')
    workspace.run(
        *("import", "-no-color", "module.shop.monodon_namespace.this", '{"namespace": ["shop"]}')
    )
    workspace.apply()
    assert workspace.changes() == {}
    assert request_json("GET", "labels/domain")["colour"] == "blue"
    properties = request_json("GET", "/v1/namespaces/shop")["properties"]
    assert properties["cost_center"] == "4711"
    assert "a" not in properties


def test_a_new_version_sends_the_new_secret(
    workspace: engine.Workspace, request_json: Request
) -> None:
    workspace.apply()
    before = request_json("GET", "storage-profiles/lake")["version"]
    example = workspace.example / "main.tf"
    edit(example, "key_version   = 1", "key_version   = 2")
    assert workspace.changes() == {"monodon_storage_profile.lake": ["update"]}
    workspace.run(*APPLY, TF_VAR_lake_secret="another")
    assert request_json("GET", "storage-profiles/lake")["version"] == before + 1
    assert workspace.changes() == {}


def test_a_refusal_names_the_cause(workspace: engine.Workspace) -> None:
    output = workspace.run("plan", "-no-color", "-input=false", status=1, MONODON_API_KEY="")
    assert "Set the environment variable MONODON_API_KEY" in " ".join(output.split())
