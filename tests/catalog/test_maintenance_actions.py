"""The registry of maintenance actions, with an action that this module declares."""

import importlib
import io
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from django.urls import clear_url_caches
from drf_spectacular.settings import patched_settings

from api.management import document
from api.management.serializers import base
from catalog import maintenance_actions, policies
from catalog.access import SYSTEM
from catalog.errors import InvalidInput
from catalog.maintenance_actions import Implementation, MaintenanceAction
from catalog.models import (
    AuditEvent,
    Job,
    JobKind,
    JobStatus,
    MaintenancePolicy,
    Table,
    TableHealth,
)
from catalog.planning import Proposal, Statistics
from catalog.policies import LANCE, EffectivePolicy, Mode, Rule, Unit
from catalog.services.access import api_keys
from catalog.services.engine import jobs
from catalog.services.lance import datasets
from catalog.services.maintenance import job_runner, measurements, scheduler
from catalog.services.maintenance import policies as policy_services
from catalog.services.maintenance.actions.results import change_of, removed_files
from tasks.jobs.iceberg.actions import ACTIONS as SCRIPT_ACTIONS
from tests.api.management.client import Management
from tests.factories import make_iceberg_table, make_lance_table, make_root, unchanged

TABLE = ("ws", "t")


def _plan(statistics: Statistics, policy: EffectivePolicy) -> Proposal | None:
    if statistics.rows < policy["min_counted_rows"]:
        return None
    return Proposal(f"{statistics.rows} rows are not counted", bytes_read=statistics.bytes)


def _count(job: Job, report: jobs.Report) -> Mapping[str, Any]:
    dataset = datasets.read(actor=jobs.principal(job), table=jobs.identify(job))
    rows = dataset.count_rows()
    report(rows, rows)
    return {"counted": rows, "minimum": job.parameters["policy"]["min_counted_rows"]}


ACTION = MaintenanceAction(
    key="count_rows",
    title="Count rows",
    help="Counts the rows of the table.",
    icon="calculate",
    group="Counting",
    rules=(
        Rule("counting", Unit.MODE, Mode.DRY_RUN, "Count rows.", LANCE),
        Rule("min_counted_rows", Unit.COUNT, 2, "Count at least this many rows.", LANCE, low=1),
    ),
    implementations={
        "lance": Implementation(
            run=f"{__name__}._count",
            help="counts the rows",
            settings="`min_counted_rows` is the threshold",
        )
    },
    summarize=lambda result: f"{result['counted']} rows counted",
    order=5,
    plan=_plan,
    unit="rows",
)


def _reload_routes() -> None:
    """Reload the routes, which the admin creates once, at Django's start."""
    importlib.reload(sys.modules["config.urls"])
    clear_url_caches()


@pytest.fixture
def action() -> Iterator[MaintenanceAction]:
    """ACTION, registered as in a release that declares it."""
    importlib.import_module("config.urls")
    maintenance_actions.register(ACTION)
    _reload_routes()
    yield ACTION
    maintenance_actions.unregister(ACTION)
    _reload_routes()


@pytest.fixture
def table(db, warehouse, monkeypatch) -> Table:
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    make_root()
    return make_lance_table(TABLE)


@pytest.fixture(autouse=True)
def _plain_static_files(settings, tmp_path: Path) -> None:
    """Disable hashed names of static files, which exist only after collectstatic."""
    settings.STATIC_ROOT = tmp_path
    settings.STORAGES = {
        **settings.STORAGES,
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    }


@pytest.fixture
def management(db) -> Management:
    _, key = api_keys.create_api_key(actor=SYSTEM, name="tester")
    return Management(key)


@pytest.fixture
def browser(db) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("ada", password="x"))
    return client


def maintain(*arguments: str) -> str:
    out = io.StringIO()
    call_command("maintain", *arguments, stdout=out)
    return out.getvalue()


# --- an action that is added by a declaration -------------------------------------------------------


def test_the_scheduler_plans_and_starts_the_action(action, table):
    measurements.measure_due()
    (planned,) = TableHealth.objects.newest().get(table=table).planned
    assert (planned["kind"], planned["mode"]) == ("count_rows", "dry_run")
    assert planned["reason"] == "3 rows are not counted"
    assert planned["bytes_read"] > 0
    assert scheduler.start_due() == 0  # a dry run is only displayed
    policy_services.set_table_policy(
        actor=SYSTEM, table=TABLE, values={"counting": "on", "min_counted_rows": 3}
    )
    assert scheduler.start_due() == 1
    job = Job.objects.get()
    assert (job.kind, job.status, job.is_dry_run) == ("count_rows", JobStatus.QUEUED, False)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    assert job.result == {"counted": 3, "minimum": 3}
    assert (job.progress, job.total, job.unit) == (3, 3, "rows")
    assert scheduler.start_due() == 0  # the last job was a moment ago


def test_the_scheduler_starts_actions_that_are_due(action, table):
    maintenance_actions.unregister(ACTION)
    is_due = {"now": False}
    timed = replace(ACTION, plan=None, is_due=lambda occasion: is_due["now"])
    maintenance_actions.register(timed)
    policy_services.set_table_policy(actor=SYSTEM, table=TABLE, values={"counting": "on"})
    measurements.measure_due()
    assert TableHealth.objects.newest().get(table=table).planned == []
    with unchanged():
        assert scheduler.start_due() == 0
    is_due["now"] = True
    assert scheduler.start_due() == 1
    assert Job.objects.get().kind == "count_rows"


def test_the_api_starts_and_shows_the_action(action, table, management):
    plan = management.post("tables/ws$t/plan")
    assert [job["kind"] for job in plan["planned"]] == ["count_rows"]
    started = management.post("tables/ws$t/maintenance", {"kind": "count_rows"}, status=202)
    job_runner.run_job(started["id"])
    answer = management.get(f"jobs/{started['id']}")
    assert (answer["kind"], answer["status"], answer["unit"]) == ("count_rows", "succeeded", "rows")
    assert answer["result"] == {"counted": 3, "minimum": 2}
    assert answer["summary"] == "3 rows counted"
    listed = management.get("jobs?kind=count_rows")["jobs"]
    assert [job["id"] for job in listed] == [started["id"]]
    assert management.get("summary")["by_kind"]["count_rows"]["succeeded"] == 1


def test_policies_validate_the_rules_of_the_action(action, table, management):
    rules = {rule["name"]: rule for rule in management.get("rules")["rules"]}
    assert rules["min_counted_rows"] == {
        "name": "min_counted_rows",
        "unit": "count",
        "default": 2,
        "help": "Count at least this many rows.",
        "formats": ["lance"],
        "minimum": 1,
        "maximum": 2**31 - 1,
    }
    with unchanged():
        for values in ({"min_counted_rows": 0}, {"counting": "perhaps"}):
            refused = management.call("PUT", "tables/ws$t/policy", {"values": values})
            assert refused.status_code == 400
            assert next(iter(values)) in refused.json()["detail"]
    management.put("tables/ws$t/policy", {"values": {"min_counted_rows": 7}})
    assert MaintenancePolicy.objects.get().values == {"min_counted_rows": 7}
    assert management.post("tables/ws$t/plan")["planned"] == []


def test_the_openapi_document_contains_the_action(action):
    base._shared.cache_clear()  # the document was generated before the action was registered
    with patched_settings(document.SETTINGS):
        generated = document.ManagementSchemaGenerator().get_schema(public=True)
    schemas = generated["components"]["schemas"]
    fields = schemas["StartMaintenance"]["properties"]
    for key in [*_keys_of_release(), "count_rows"]:
        action = maintenance_actions.require(key)
        assert f"- `{key}`: {action.help}" in fields["kind"]["description"].splitlines()
    assert "optimize_indexes and rebuild_indexes." in fields["indexes"]["description"]
    kinds = [*JobKind, *_keys_of_release(), "count_rows"]
    for model in ("Job", "JobWithLog", "PlannedJob"):
        assert schemas[model]["properties"]["kind"]["enum"] == kinds
    parameters = generated["paths"]["/management/v1/jobs"]["get"]["parameters"]
    described = {parameter["name"]: parameter["description"] for parameter in parameters}
    assert described["kind"] == f"Some of {', '.join(kinds)}, separated by commas."


def test_the_command_line_starts_and_shows_the_action(action, table):
    assert "count_rows (dry_run, by the worker): 3 rows are not counted\n" in maintain(
        "plan", "ws$t"
    )
    assert "count_rows (lance; mode: counting): Counts the rows of the table.\n" in maintain(
        "actions"
    )
    assert "count_rows succeeded 3/3 rows\n" in maintain("run", "ws$t", "count_rows", "--here")
    assert "\n3 rows counted\n" in maintain("status", str(Job.objects.get().pk))
    assert "Dry run" not in maintain("status", str(Job.objects.get().pk))
    maintain("policy", "ws$t", "--set", "min_counted_rows=9")
    assert MaintenancePolicy.objects.get().values == {"min_counted_rows": 9}


def test_the_admin_starts_and_shows_the_action(action, table, browser):
    page = f"/admin/catalog/table/{table.pk}"
    overview = browser.get(f"{page}/change/?tab=maintenance").content.decode()
    assert 'aria-label="Count rows"' in overview
    assert f'action="{page}/count_rows/"' in overview
    form = browser.get(f"{page}/count_rows/").content.decode()
    assert "Counts the rows of the table." in form
    browser.post(f"{page}/count_rows/", {"dry_run": "on"})
    job = Job.objects.get()
    assert (job.kind, job.is_dry_run) == ("count_rows", True)
    assert AuditEvent.objects.get(action="maintenance.start").after["kind"] == "count_rows"
    job_runner.run_job(job.pk)
    content = browser.get(f"/admin/catalog/job/{job.pk}/change/").content.decode()
    assert "Count rows" in content
    assert "Dry run: 3 rows counted" in content
    jobs_page = browser.get("/admin/catalog/job/?kind__exact=count_rows").content.decode()
    assert f"Job {job.pk}: Count rows (dry run)" in jobs_page
    form = {"action": "count_rows_now", "_selected_action": [table.pk]}
    browser.post("/admin/catalog/table/", form)
    assert Job.objects.filter(kind="count_rows", is_dry_run=False).count() == 1
    policy = browser.get(f"{page}/policy/").content.decode()
    assert "Counting" in policy
    assert '<label for="id_min_counted_rows">' in policy


def test_the_action_applies_only_to_its_formats(action, table, browser, management):
    make_iceberg_table("ws", "i")
    row = Table.objects.get(name="i")
    page = browser.get(f"/admin/catalog/table/{row.pk}/change/").content.decode()
    assert "count_rows" not in page
    with unchanged():
        refused = management.call("POST", "tables/ws$i/maintenance", {"kind": "count_rows"})
        assert refused.status_code == 400
        assert "format do not support 'count_rows'" in refused.json()["detail"]


def test_a_job_of_a_removed_action_fails_and_remains_readable(table, browser, management):
    maintenance_actions.register(ACTION)
    try:
        job = scheduler.start(actor=SYSTEM, table=TABLE, kind="count_rows")
    finally:
        maintenance_actions.unregister(ACTION)
    job_runner.run_job(job.pk)
    answer = management.get(f"jobs/{job.pk}")
    assert (answer["kind"], answer["status"]) == ("count_rows", "failed")
    assert answer["message"] == "This worker runs no jobs of the kind 'count_rows'"
    assert "count_rows" in browser.get(f"/admin/catalog/job/{job.pk}/change/").content.decode()
    with unchanged():
        refused = management.call("POST", "tables/ws$t/maintenance", {"kind": "count_rows"})
        assert refused.status_code == 400


def test_the_action_requires_no_migration(action, db):
    call_command("makemigrations", check_changes=True, dry_run=True, verbosity=0)


# --- declarations -----------------------------------------------------------------------------------


def _keys_of_release() -> list[str]:
    from catalog.services.maintenance.actions import ACTIONS

    return [action.key for action in ACTIONS]


def test_the_actions_of_the_release_are_registered():
    assert maintenance_actions.keys() == _keys_of_release()
    assert len({action.order for action in maintenance_actions.registered()}) == 10


@pytest.mark.parametrize("field", ["title", "help", "icon", "group"])
@pytest.mark.parametrize("key", maintenance_actions.keys())
def test_every_action_has_texts(key: str, field: str):
    text = getattr(maintenance_actions.require(key), field)
    assert text.strip() == text
    assert text
    if field == "help":
        assert text.endswith(".")


@pytest.mark.parametrize("key", maintenance_actions.keys())
def test_every_action_has_a_group_of_rules_with_texts(key: str):
    for rule in maintenance_actions.require(key).rules:
        assert rule.help.endswith("."), rule.name


@pytest.mark.parametrize(
    ("changed", "defect"),
    [
        ({"title": " "}, "title is empty"),
        ({"help": ""}, "help is empty"),
        ({"icon": ""}, "icon is empty"),
        ({"group": ""}, "group is empty"),
        ({"key": "compact"}, "the key is taken"),
        ({"rules": ()}, "the first rule is not a mode"),
        ({"rules": ACTION.rules[::-1]}, "the first rule is not a mode"),
        ({"rules": (replace(ACTION.rules[0], help=""),)}, "help of rule 'counting' is empty"),
        (
            {"implementations": {"lance": replace(ACTION.implementations["lance"], help="")}},
            "help for lance is empty",
        ),
        (
            {"implementations": {"iceberg": ACTION.implementations["lance"]}},
            "the formats of the mode differ from those of the implementations",
        ),
        (
            {"rules": (*ACTION.rules, Rule("keep_for", Unit.COUNT, 1, "Taken."))},
            "Policy setting 'keep_for' is declared twice",
        ),
        (
            {"rules": (*ACTION.rules, Rule("many", Unit.COUNT, 1, "Many.", high=2**31))},
            "rule 'many' allows more than 2147483647",
        ),
    ],
)
def test_an_incomplete_action_is_refused(changed: dict[str, Any], defect: str):
    keys, rules = maintenance_actions.keys(), policies.rules()
    with pytest.raises(ValueError, match=defect):
        maintenance_actions.register(replace(ACTION, **changed))
    assert (maintenance_actions.keys(), policies.rules()) == (keys, rules)


def test_every_action_on_spark_is_in_the_script():
    on_spark = {
        action.key
        for action in maintenance_actions.of_format("iceberg")
        if action.implementations["iceberg"].takes_spark
    }
    assert set(SCRIPT_ACTIONS) == on_spark


def test_an_unknown_key_is_refused():
    assert maintenance_actions.find("vacuum") is None
    with pytest.raises(InvalidInput, match="'vacuum' is not a kind of maintenance; use one of com"):
        maintenance_actions.require("vacuum")


@pytest.mark.parametrize("table_format", ["lance", "iceberg"])
def test_the_documentation_has_the_table_of_each_format(table_format: str):
    """If this fails, replace the table by the output of ``manage.py maintain actions --markdown
    FORMAT``."""
    text = Path("docs/maintenance.md").read_text()
    assert f"\n\n{maintenance_actions.documentation(table_format)}\n" in text


@pytest.mark.parametrize(
    ("summarize", "result", "expected"),
    [
        (change_of("files", "data files"), {}, ""),
        (change_of("files", "data files"), {"before": {"files": 1}, "after": None}, ""),
        (change_of("files", "data files"), {"before": {"files": "1"}, "after": {"files": 1}}, ""),
        (
            change_of("files", "data files"),
            {"before": {"files": 1200}, "after": {"files": 1}},
            "1,200 data files before, 1 after",
        ),
        (removed_files, {"bytes": 1}, ""),
        (removed_files, {"files": 3}, "3 files removed"),
        (removed_files, {"files": 3, "bytes": 4096}, "3 files removed, 4,096 bytes"),
    ],
)
def test_results_are_summarized(summarize: Callable[[Mapping[str, Any]], str], result, expected):
    assert summarize(result) == expected


def test_the_summary_of_a_job_contains_its_result():
    result = {"files": 3}
    summarize = maintenance_actions.summarize
    assert summarize("clean_up", result, is_dry_run=False) == "3 files removed"
    assert summarize("clean_up", result, is_dry_run=True) == "Dry run: 3 files removed"
    assert summarize("clean_up", None, is_dry_run=False) == ""
    assert summarize("purge_table", result, is_dry_run=False) == ""
