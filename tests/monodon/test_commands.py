"""The commands that work over HTTP."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from django.utils import timezone

from catalog.access import SYSTEM
from catalog.models import (
    ApiKey,
    ApprovalRequest,
    FileReference,
    Grant,
    Job,
    JobEvent,
    StorageTest,
    Table,
    TableVersion,
)
from catalog.services.governance import annotations
from catalog.services.iceberg import view_sources
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance import schemas
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.maintenance import job_runner
from catalog.services.recovery import undrop
from catalog.services.search import documents
from catalog.services.storage.profile_checks import tests as profile_tests
from catalog.services.tables import lineage
from monodon.client import Client, RequestFailed
from monodon.commands import following, storage
from tests import clocks
from tests.factories import (
    final_path,
    make_iceberg_table,
    make_lance_table,
    make_namespace,
    make_root,
    make_table,
    unchanged,
)
from tests.lineage import make_view
from tests.monodon.conftest import CommandLine

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _catalog(monodon):
    make_root()
    make_lance_table(("prod", "users"))
    make_iceberg_table("prod", "orders")


def test_ls(monodon):
    make_namespace("prod", "a.b")
    assert monodon.lines("ls") == [["namespace", "", "prod"]]
    rows = [
        ["namespace", "", 'prod."a.b"'],
        ["table", "iceberg", "prod.orders"],
        ["table", "lance", "prod.users"],
    ]
    assert monodon.lines("ls", "prod") == rows
    assert monodon.lines("ls", "-r") == [["namespace", "", "prod"], *rows]
    assert monodon.lines("ls", "prod$a.b") == monodon.lines("ls", 'prod."a.b"') == []
    assert monodon.json("ls", "prod")[2] == {
        "kind": "table",
        "format": "lance",
        "name": ["prod", "users"],
    }
    monodon.refused(4, "no", "ls", "no")


def test_describe_tables_of_both_formats_and_namespaces(monodon):
    users = monodon.json("describe", "prod.users")
    assert (users["format"], users["version"]) == ("lance", 1)
    assert users["columns"][0] == {"name": "id", "type": "int64", "required": False}
    orders = monodon.run("describe", "prod$orders").stdout
    assert "format    iceberg\n" in orders
    assert "\nid\t" in orders
    assert monodon.json("describe", "prod")["kind"] == "namespace"
    assert "storage_options" not in json.dumps(users)
    monodon.refused(4, "prod.no", "describe", "prod.no")


def test_history_and_diff_of_a_lance_table(monodon):
    name = schemas.NewColumn("extra", expression="'x'")
    schemas.add_columns(actor=SYSTEM, table=("prod", "users"), columns=[name])
    assert [row[0] for row in monodon.lines("history", "prod.users")] == ["2", "1"]
    changes = monodon.json("diff", "prod.users", "1", "2")
    assert [(row["change"], row["column"]) for row in changes] == [("added", "extra")]
    assert monodon.run("diff", "prod.users", "1").stdout.startswith("+ extra ")
    assert monodon.run("diff", "prod.users", "2", "2").stdout == "The schemas are equal.\n"
    monodon.run("diff", "prod.users", "1", "2", "--exit-code", status=8)
    monodon.refused(4, "9", "diff", "prod.users", "1", "9")
    monodon.refused(4, "no snapshot 9", "diff", "prod.orders", "9")


def test_search(monodon):
    documents.update()
    assert [row[2] for row in monodon.lines("search", "orders")] == ["prod.orders"]
    assert monodon.json("search", "users")["results"][0]["identifier"] == ["prod", "users"]


def test_lineage(monodon):
    view = make_view(("prod", "daily"), "SELECT * FROM prod.orders JOIN `x\u202ey`")
    assert monodon.lines("lineage", "prod.orders") == []
    view_sources.read_due()
    assert monodon.lines("lineage", "prod.orders", "--hops", "1") == [
        ["prod.orders", "prod.daily", "view", "1"]
    ]
    assert monodon.lines("lineage", "prod.orders", "--direction", "upstream") == []
    output = monodon.run("lineage", "prod.daily").stdout
    assert "Not an object that you may browse: x�y\n" in output
    graph = monodon.json("lineage", "prod.daily")
    assert [node["id"] for node in graph["nodes"]][1] == view.pk
    monodon.refused(4, "prod.no", "lineage", "prod.no")
    monodon.run("lineage", "prod.orders", "--hops", "11", status=2)
    with unchanged():
        question = "Dependent views: prod.daily. Drop table prod.orders?"
        monodon.refused(2, question, "drop", "prod.orders")


def test_a_drop_names_only_the_views_that_it_affects(monodon, monkeypatch):
    """Not those of a shallow clone of the table: the drop keeps the files that it needs."""
    copy = make_table("prod", "copy")
    source = Table.objects.named(("prod", "orders")).get()
    FileReference.objects.create(table=copy, source=source, principal="x")
    for name, of in (("daily", "orders"), ("weekly", "daily"), ("other", "copy")):
        make_view(("prod", name), f"SELECT * FROM prod.{of}")
    view_sources.read_due()
    arguments = ("drop", "prod.orders")
    with unchanged():
        monodon.refused(2, "Dependent views: prod.daily, prod.weekly. Drop", *arguments)
        with monkeypatch.context() as patch:
            patch.setattr(lineage, "MAX_NODES", 2)  # prod.copy, prod.daily
            monodon.refused(2, "Dependent views: at least prod.daily. Drop", *arguments)
            patch.setattr(lineage, "MAX_NODES", 0)
            monodon.refused(2, "There may be dependent views. Drop", *arguments)


@pytest.mark.parametrize(("status", "error"), [(404, ""), (500, "no lineage")])
def test_a_drop_names_no_views_if_the_server_has_no_lineage(monodon, monkeypatch, status, error):
    def fail(*_args: object, **_options: object) -> None:
        raise RequestFailed("no lineage", status=status)

    monkeypatch.setattr(Client, "get_table_lineage", fail)
    with unchanged():
        if error:
            monodon.refused(6, error, "drop", "prod.orders")
        else:
            monodon.refused(2, "monodon: Drop table prod.orders?", "drop", "prod.orders")


def test_labels_and_protection(monodon):
    monodon.json("label", "prod.users")
    with unchanged():
        monodon.refused(4, "pii", "label", "prod.users", "pii=yes")
        monodon.refused(2, "is not KEY=VALUE", "label", "prod.users", "pii")
    annotations.create_label(actor=SYSTEM, key="pii", values=["yes", "no"])
    assert monodon.lines("label", "prod.users", "pii=yes") == [["", "pii", "yes", "prod.users"]]
    assert monodon.lines("label", "prod.users", "--remove", "pii") == []
    assert monodon.lines("label", "prod.users", "pii=no", "--column", "id")[0][:3] == [
        "id",
        "pii",
        "no",
    ]
    monodon.run("protect", "prod.users")
    with unchanged():
        monodon.refused(5, "protected", "drop", "prod.users", "--yes")
    monodon.run("protect", "prod.users", "--off")
    monodon.run("drop", "prod.users", "--yes")


def test_drop_and_undrop(monodon):
    with unchanged():
        monodon.refused(2, "Confirm with --yes", "drop", "prod.users")
        monodon.refused(5, "prod is not empty: drop it with --cascade.", "drop", "prod", "--yes")
        monodon.refused(4, "not in the trash", "undrop", "prod.users")
    for name in ("prod.users", "prod.orders"):
        assert "monodon undrop" in monodon.run("drop", name, "--yes").stdout
    assert monodon.lines("ls", "prod") == []
    assert {row[2] for row in monodon.lines("trash")} == {"prod.users", "prod.orders"}
    monodon.run("undrop", "prod.users")
    monodon.run("undrop", "prod.orders", "--new", "prod.sales")
    assert [row[2] for row in monodon.lines("ls", "prod")] == ["prod.sales", "prod.users"]
    monodon.run("drop", "prod", "--cascade", "--yes")
    assert monodon.lines("ls") == []


def test_a_dry_run_of_a_drop_names_the_objects_and_the_obstacles(monodon):
    make_view(("prod", "daily"), "SELECT * FROM prod.orders")
    view_sources.read_due()
    with unchanged():
        result = monodon.run("drop", "prod.orders", "--dry-run")
        assert result.stdout == "table\ticeberg\tprod.orders\n"
        assert result.stderr == "Dependent views: prod.daily.\n"
        answer = monodon.json("drop", "prod.orders", "--dry-run")
        assert answer["objects"] == [
            {"kind": "table", "format": "iceberg", "name": ["prod", "orders"]}
        ]
        assert answer["dependent_views"] == "Dependent views: prod.daily."
        assert answer["obstacles"] == []
        refused = monodon.run("drop", "prod", "--dry-run", status=5)
        assert refused.stdout == "namespace\t\tprod\n"
        assert refused.stderr == "monodon: prod is not empty: drop it with --cascade.\n"
        listed = monodon.lines("drop", "prod", "--cascade", "--dry-run")
        assert [row[2] for row in listed] == ["prod", "prod.daily", "prod.orders", "prod.users"]
        monodon.refused(4, "does not exist", "drop", "prod.none", "--dry-run")
    monodon.run("protect", "prod.users")
    with unchanged():
        refused = monodon.run("drop", "prod", "--cascade", "--dry-run", status=5)
        assert refused.stderr == "monodon: prod.users is protected.\n"
        assert len(refused.stdout.splitlines()) == 4


def test_a_dry_run_of_labels_prints_the_changes(monodon):
    annotations.create_label(actor=SYSTEM, key="certified", values=["true", "false"])
    with unchanged():
        change = ("label", "prod.users", "certified=true", "--dry-run")
        assert monodon.lines(*change) == [["", "certified", "", "true"]]
        assert monodon.json(*change) == [
            {"column": "", "key": "certified", "before": None, "after": ["true"]}
        ]
        monodon.refused(4, "no-such-label", "label", "prod.users", "no-such-label=1", "--dry-run")
        monodon.refused(4, "does not exist", "label", "prod.none", "certified=true", "--dry-run")
    monodon.run("label", "prod", "certified=true")
    monodon.run("label", "prod.users", "certified=false")
    with unchanged():
        removal = ("label", "prod.users", "--remove", "certified", "--dry-run")
        assert monodon.lines(*removal) == [["", "certified", "false", "true"]]  # that of prod
        assert monodon.lines("label", "prod", "certified=true", "--dry-run") == []


def test_dry_runs_of_protection(monodon, make_key):
    etl = CommandLine(make_key("etl"))
    monodon.run("grant", "etl", "write", "prod")
    for name in ("prod", "prod.users"):
        with unchanged():
            result = monodon.run("protect", name, "--dry-run")
            assert result.stdout == f"{name} would be protected.\n"
            assert monodon.json("protect", name, "--dry-run") == {"before": False, "after": True}
            result = monodon.run("protect", name, "--off", "--dry-run")
            assert result.stdout == f"{name} is already not protected.\n"
            etl.refused(3, "'etl' may not", "protect", name, "--dry-run")


def test_a_dry_run_names_the_required_approval_without_a_request(monodon):
    monodon.run("protect", "prod")
    undrop.set_approval_rule(actor=SYSTEM, namespace=("prod",), actions=["drop_protected"])
    command = ("protect", "prod", "--off")
    with unchanged():
        result = monodon.run(*command, "--dry-run", status=5)
        assert "needs the approval of a second person" in result.stderr
        assert "request" not in result.stderr
    assert not ApprovalRequest.objects.exists()
    assert "waits for it" in monodon.run(*command, status=5).stderr
    assert ApprovalRequest.objects.count() == 1


def test_a_table_whose_newest_manifest_is_missing_is_repaired(monodon, make_key):
    table = Table.objects.get(name="users")
    lance_versions.settle(table)
    TableVersion.objects.create(
        table=table, version=2, manifest_path=str(final_path(table, 2)).lstrip("/")
    )
    lance_datasets.clear_caches()
    etl = CommandLine(make_key("etl"))
    fault = "version 2, the newest: its manifest is missing"
    with unchanged():
        assert monodon.lines("repair", "prod.users", "--dry-run") == [
            ["main", "2", fault, "1", "2", "", "3"]
        ]
        assert monodon.json("repair", "prod.users", "--dry-run")["published"] == {"": 3}
        monodon.refused(4, "does not exist", "repair", "prod.orders")
        etl.refused(4, "does not exist", "repair", "prod.users")
    assert monodon.lines("repair", "prod$users") == [["main", "2", fault, "1", "2", "", "3"]]
    assert final_path(table, 3).exists()
    assert monodon.lines("repair", "prod.users") == [["main", "3", "", "3", "", "", ""]]


def test_dry_runs_of_undrop(monodon, make_key):
    etl = CommandLine(make_key("etl"))
    monodon.run("drop", "prod", "--cascade", "--yes")
    with unchanged():
        rows = monodon.lines("undrop", "prod", "--new", "old", "--dry-run")
        assert rows == [
            ["namespace", "", "old"],
            ["table", "iceberg", "old.orders"],
            ["table", "lance", "old.users"],
        ]
        listed = monodon.json("undrop", "prod", "--dry-run")
        assert [row["name"] for row in listed] == [
            ["prod"],
            ["prod", "orders"],
            ["prod", "users"],
        ]
        monodon.refused(4, "not in the trash", "undrop", "prod.none", "--dry-run")
        etl.refused(4, "not in the trash", "undrop", "prod.users", "--dry-run")


def test_a_dry_run_of_a_grant_needs_the_privileges_of_the_grant(monodon, make_key):
    etl = CommandLine(make_key("etl"))
    make_key("ada")
    monodon.run("grant", "etl", "read,grant", "prod")
    with unchanged():
        assert etl.json("grant", "ada", "read", "prod", "--dry-run")[0]["after"] != []
        etl.refused(3, "'etl'", "grant", "ada", "manage", "prod", "--dry-run")
        monodon.refused(4, "nobody", "grant", "nobody", "read", "prod", "--dry-run")
        monodon.refused(1, "reed", "grant", "ada", "reed", "prod", "--dry-run")


def test_grants(monodon, make_key):
    etl = CommandLine(make_key("etl"))
    etl.refused(4, "does not exist", "describe", "prod.users")
    with unchanged():
        assert monodon.json("grant", "etl", "read", "prod.users", "--dry-run")[0]["lost"] == []
    monodon.run("grant", "etl", "read,write", "prod.users")
    assert etl.json("describe", "prod.users")["kind"] == "table"
    rows = monodon.lines("explain", "prod.users", "--principal", "etl")
    assert rows[0][0] == "etl"
    assert "write" in rows[0][1]
    with unchanged():
        (loss,) = monodon.json("revoke", "etl", "prod.users", "--dry-run")
        assert "write" in loss["lost"]
        etl.refused(3, "", "grant", "etl", "manage", "prod.users")
    monodon.run("revoke", "etl", "prod.users")
    etl.refused(4, "does not exist", "describe", "prod.users")


def test_grants_with_an_end(monodon, make_key):
    etl = CommandLine(make_key("etl"))
    make_key("ada")
    end = "2100-01-01T00:00:00Z"
    granted = monodon.run("grant", "etl", "read,grant", "prod.users", "--until", end).stdout
    assert granted == f"etl has browse, read, grant on prod.users until {end}.\n"
    (row,) = monodon.lines("explain", "prod.users", "--principal", "etl")
    assert row[-1] == end
    with unchanged():
        etl.refused(3, "for a limited time", "grant", "ada", "read", "prod.users")
        later = ("grant", "ada", "read", "prod.users", "--until", "2100-01-02T00:00:00Z")
        etl.refused(3, "for a limited time", *later)
        etl.refused(3, "for a limited time", *later, "--dry-run")
        monodon.refused(1, "in the past", *later[:-1], "2020-01-01T00:00:00Z")
        for text in ("tomorrow", "2100-01-01", "2100-01-01T00:00:00", "", "\x1b[31m"):
            monodon.refused(2, "--until: ", *later[:-1], text)
            monodon.refused(2, "is not a time with a zone", *later[:-1], text, "--dry-run")
    etl.run(*later[:-1], end)
    assert {grant.expires_at for grant in Grant.objects.all()} == {datetime(2100, 1, 1, tzinfo=UTC)}


def test_a_key_is_replaced_by_one_that_ends_with_the_presented_key(monodon, make_key):
    make_key("etl")
    short = monodon.json("keys", "create", "short", "--principal", "etl", "--days", "3")["key"]
    with unchanged():
        CommandLine(short).refused(3, "set an end that is not later", "keys", "rotate", "etl")
        monodon.refused(2, "too large", "keys", "rotate", "etl", "--days", "99999999")
    CommandLine(short).run("keys", "rotate", "etl", "--days", "2")
    ends = ApiKey.objects.get(name="etl-2").expires_at - timezone.now()
    assert timedelta(days=1) < ends <= timedelta(days=2)


def test_keys(monodon, make_key):
    make_key("etl")
    created = monodon.run("keys", "create", "nightly", "--principal", "etl", "--days", "3")
    key = created.stdout.strip()
    assert created.stderr == "The key is shown only once:\n"
    assert CommandLine(key).run("ls").stdout == ""
    assert ("nightly", "etl") in {tuple(row[:2]) for row in monodon.lines("keys", "ls")}
    replaced = monodon.json("keys", "rotate", "nightly")
    assert CommandLine(replaced["key"]).run("ls").stdout == ""
    with unchanged():
        monodon.refused(2, "Confirm with --yes", "keys", "revoke", "nightly")
    monodon.run("keys", "revoke", "nightly", "--yes")
    assert ApiKey.objects.get(name="nightly").revoked_at is not None
    monodon.refused(4, "no", "keys", "revoke", "no", "--yes")


def test_dry_runs_of_keys(monodon, make_key):
    etl = CommandLine(make_key("etl"))
    with unchanged():
        create = ("keys", "create", "nightly", "--principal", "etl", "--scope", "read", "--dry-run")
        result = monodon.run(*create)
        assert "mnd_" not in result.output
        facts = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
        assert (facts["name"], facts["principal"]) == ("nightly", "etl")
        assert "read" in facts["scopes"]
        assert monodon.json(*create)["prefix"] == ""
        assert monodon.json("keys", "rotate", "etl", "--dry-run")["name"] == "etl-2"
        revoked = monodon.run("keys", "revoke", "etl", "--dry-run").stdout
        assert revoked.endswith("It would be revoked.\n")
        monodon.refused(4, "'no'", "keys", "revoke", "no", "--dry-run")
        monodon.refused(4, "'no'", "keys", "rotate", "no", "--dry-run")
        monodon.refused(4, "nobody", "keys", "create", "x", "--principal", "nobody", "--dry-run")
        monodon.refused(
            1, "exists already", "keys", "create", "etl", "--principal", "etl", "--dry-run"
        )
        etl.refused(3, "etl", "keys", "create", "x", "--principal", "tester", "--dry-run")
        etl.refused(4, "'tester'", "keys", "revoke", "tester", "--dry-run")
    assert etl.run("ls").stdout == ""


def test_maintenance_and_jobs(monodon, monkeypatch):
    assert "health" in monodon.run("maintain", "plan", "prod.users").stdout
    monodon.run("maintain", "plan")
    text = monodon.run("maintain", "run", "prod.users", "compact", "--dry-run", "--no-wait").stdout
    job = Job.objects.get()
    assert text.startswith(f"Started job {job.pk}.")
    assert job.is_dry_run
    assert monodon.lines("jobs", "ls", "--status", "queued")[0][1:4] == [
        "compact",
        "prod.users",
        "queued",
    ]
    assert "kind        compact\n" in monodon.run("jobs", "show", str(job.pk)).stdout

    def work(seconds: float) -> None:
        JobEvent.objects.create(job=job, message="3 files merged")
        job_runner.run_job(job.pk)

    clocks.replace(monkeypatch, following, sleep=work)
    watched = monodon.run("maintain", "watch", str(job.pk)).stdout.splitlines()
    assert watched[0] == "queued"
    assert watched[-1].startswith(f"Job {job.pk} succeeded")
    log = monodon.run("jobs", "logs", "-f", str(job.pk)).stdout
    assert log == monodon.run("jobs", "logs", str(job.pk)).stdout
    assert "  info     3 files merged\n" in log
    monodon.run("maintain", "run", "prod.users", "compact", "--no-wait")
    other = Job.objects.latest("pk")
    monodon.run("jobs", "cancel", str(other.pk))
    monodon.run("jobs", "logs", "-f", str(other.pk), status=7)
    with unchanged():
        monodon.refused(1, "wash", "maintain", "run", "prod.users", "wash")
        monodon.refused(4, "999", "jobs", "show", "999999")


def test_audit_export(monodon, tmp_path):
    file = tmp_path / "audit.jsonl"
    monodon.run("audit", "export", "--action", "table.create", "--output", str(file))
    assert [json.loads(line)["action"] for line in file.read_text().splitlines()] == [
        "table.create"
    ] * len(file.read_text().splitlines())
    csv = monodon.run("audit", "export", "--format", "csv").stdout.splitlines()
    assert csv[0].startswith("id,")


def test_governance_files(monodon, tmp_path):
    file = tmp_path / "governance.yaml"
    file.write_text("version: 1\nnamespaces:\n- {name: [prod], description: Shop}\n")
    with unchanged():
        diff = monodon.run("governance", "diff", str(file)).stdout
        assert diff.endswith("1 would change\n")
        assert "'Shop'" in diff
        monodon.run("governance", "diff", str(file), "--exit-code", status=8)
        monodon.run("governance", "apply", str(file), "--dry-run")
        result = monodon.run("governance", "apply", str(file), status=2)
        assert "Confirm with --yes" in result.stderr
        for text in ("- a", "version: 1\nnamespace: []\n", "principals: []", "a: ["):
            (tmp_path / "bad.yaml").write_text(text)
            monodon.refused(2, "bad.yaml", "governance", "diff", str(tmp_path / "bad.yaml"))
    assert monodon.run("governance", "apply", str(file), "--yes").stdout.endswith("1 changed\n")
    assert monodon.run("governance", "diff", str(file), "--exit-code").stdout == (
        "nothing would change\n"
    )
    assert "description: Shop" in monodon.run("governance", "export").stdout


def test_register(monodon, warehouse, settings, tmp_path):
    lake = tmp_path / "lake"
    settings.MONODON_ALLOWED_ROOTS = [str(lake)]
    lance.write_dataset(pa.table({"id": [1]}), str(lake / "old.lance"))
    with unchanged():
        plan = monodon.json("register", str(lake), "--into", "prod", "--dry-run")
        assert [row["table"] for row in plan["candidates"]] == [["prod", "old"]]
        monodon.run("register", str(lake), "--into", "prod", "--output", str(tmp_path / "plan"))
        monodon.refused(2, "Name either", "register")
        assert monodon.json("import", str(lake), "--into", "prod", "--dry-run") == plan
    output = monodon.run("register", "--plan", str(tmp_path / "plan"), "--yes").stdout
    assert output.split("\t")[:2] == ["prod.old", "registered"]
    assert ["table", "lance", "prod.old"] in monodon.lines("ls", "prod")


def test_storage_test(monodon, make_profile, monkeypatch):
    make_profile(
        name="lake",
        roots=["s3://bucket/root"],
        endpoint="http://127.0.0.1:9",
        path_style=True,
        identity="key",
        key_id="id",
        secret="the-secret-key",
    )
    assert monodon.lines("storage", "ls")[-1][0] == "lake"

    def work(seconds: float) -> None:
        profile_tests.run_test(StorageTest.objects.get().pk)

    clocks.replace(monkeypatch, storage, sleep=work)
    output = monodon.run("storage", "test", "lake", status=7).stdout
    assert "failed" in output
    assert "refuses the connection" in output


# -- the connection


def test_login_stores_a_key_that_the_server_accepts(monodon, monkeypatch):
    path = Path(os.environ["MONODON_CONFIG"])
    key, monodon.key = monodon.key, ""
    monodon.refused(3, "monodon login", "ls")
    result = monodon.run("login", "http://localhost", text="wrong\n", status=3)
    assert "monodon: " in result.stderr
    assert not path.exists()
    for address in ("localhost", "localhost:2333", "ftp://localhost", "postgresql://localhost"):
        monodon.refused(2, f"'{address}' is not a URL such as https://", "login", address)
    monodon.run("login", "http://localhost", text=f"{key}\n")
    assert path.stat().st_mode & 0o777 == 0o600
    assert monodon.lines("ls") == [["namespace", "", "prod"]]
    assert monodon.lines("profiles") == [["default", "http://localhost", "key", "*"]]
    monodon.run("--profile", "b", "login", "http://localhost", text=f"{key}\n")
    assert [row["current"] for row in monodon.json("profiles")] == [False, True]
    monodon.run("profiles", "--use", "default")
    monodon.run("logout", "b")
    assert monodon.lines("profiles") == [["default", "http://localhost", "key", "*"]]
    assert key not in monodon.run("profiles").output
    monodon.refused(1, "There is no profile 'no'", "--profile", "no", "ls")


def test_a_principal_without_grants_may_log_in(monodon, make_key):
    key, monodon.key = make_key("etl"), ""
    monodon.run("login", "http://localhost", text=f"{key}\n")
    assert monodon.run("ls").stdout == ""


def test_control_characters_are_not_printed(monodon):
    annotations.annotate_table(
        actor=SYSTEM,
        table=("prod", "users"),
        changes=annotations.Changes(description="red \x1b[31m"),
    )
    assert "\x1b" not in monodon.run("describe", "prod.users").stdout
