"""The pages of engine profiles, the forms that choose one, and the layout of compactions."""

import re
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext

from catalog.access import SYSTEM
from catalog.engine_profiles import EngineKind
from catalog.models import EngineProfile, Heartbeat, Job, MaintenancePolicy, ProcessRole, Table
from catalog.services.engine import processes
from catalog.services.maintenance import policies
from catalog.services.maintenance.engine_profiles import profiles
from tests.catalog.services.iceberg.writing import open_table, rows
from tests.factories import make_iceberg_table, make_table, unchanged

LIST = "/admin/catalog/engineprofile/"
FORM = {
    "name": "nightly",
    "master": "spark://one:7077",
    "cores": "8",
    "memory": "4g",
    "concurrency": "2",
    "conf": "spark.sql.shuffle.partitions = 64\n",
}


@pytest.fixture(autouse=True)
def _cluster(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.MONODON_SPARK_MASTERS = ["spark://one:7077"]
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)


def text_of(browser: Client, url: str) -> str:
    answer = browser.get(url)
    assert answer.status_code == 200
    content: str = answer.content.decode()
    return content


def test_a_profile_is_created_edited_and_deleted(browser):
    form = text_of(browser, f"{LIST}add/")
    assert "spark://one:7077: a standalone cluster of Spark" in form
    assert "spark.sql.shuffle.partitions=64. Allowed: spark.default.parallelism" in form
    browser.post(f"{LIST}add/", FORM)
    row = EngineProfile.objects.get()
    assert (row.kind, row.cores, row.concurrency) == ("standalone", 8, 2)
    assert row.conf == {"spark.sql.shuffle.partitions": "64"}
    page = text_of(browser, f"{LIST}{row.pk}/change/")
    assert "available" in page
    edit = text_of(browser, f"{LIST}{row.pk}/edit/")
    assert "spark.sql.shuffle.partitions=64</textarea>" in edit
    browser.post(f"{LIST}{row.pk}/edit/", {**FORM, "master": "local", "conf": ""})
    row.refresh_from_db()
    assert (row.kind, row.master, row.conf, row.version) == ("local", "", {}, 2)
    assert "No policy and no active job uses it" in text_of(browser, f"{LIST}{row.pk}/remove/")
    browser.post(f"{LIST}{row.pk}/remove/", {})
    assert not EngineProfile.objects.exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"master": "spark://two:7077"}, "Select a valid choice"),
        ({"conf": "spark.jars=/tmp/a.jar"}, "profiles may not set"),
        ({"conf": "nonsense"}, "does not have the form name=value"),
        ({"cores": "0"}, "greater than or equal to 1"),
        ({"name": "default"}, "exists already"),
    ],
)
def test_refused_forms_change_nothing(browser, changed, message):
    with unchanged():
        answer = browser.post(f"{LIST}add/", {**FORM, **changed})
    assert message in answer.content.decode()


def test_a_profile_in_use_shows_what_would_break(browser):
    profiles.create_profile(actor=SYSTEM, name="small", kind=EngineKind.LOCAL)
    make_table("ws", "t")
    policies.set_namespace_policy(
        actor=SYSTEM, namespace=("ws",), values={"engine_profile": "small"}
    )
    row = EngineProfile.objects.get()
    users = "policies of namespaces choose it: 1 (ws)"
    assert users in text_of(browser, f"{LIST}{row.pk}/change/")
    assert users in text_of(browser, f"{LIST}{row.pk}/remove/")
    with unchanged():
        browser.post(f"{LIST}{row.pk}/remove/", {})


def test_the_list_costs_a_fixed_number_of_statements(browser):
    counts = []
    for number in range(2):
        profiles.create_profile(actor=SYSTEM, name=f"p{number}", kind=EngineKind.LOCAL)
        with CaptureQueriesContext(connection) as captured:
            text_of(browser, LIST)
        counts.append(len(captured))
    assert counts[0] == counts[1]


def report(**missing: str) -> None:
    row = Heartbeat(
        name="jobs@a",
        role=ProcessRole.JOB_WORKER,
        seen_at=Now(),
        started_at=Now(),
        missing_for_profiles=missing,
    )
    processes.report(row, is_first=True)


def test_policies_offer_the_profiles_that_workers_can_use(browser):
    for name in ("small", "broken"):
        profiles.create_profile(actor=SYSTEM, name=name, kind=EngineKind.LOCAL)
    report(broken="no cluster")
    row = make_table("ws", "t")
    url = f"/admin/catalog/table/{row.pk}/policy/"
    field = re.search(
        r'<select name="engine_profile".*?</select>', text_of(browser, url), re.DOTALL
    )
    assert field is not None
    assert re.findall(r'value="([^"]*)"', field[0]) == ["", "default", "small"]
    browser.post(url, {"engine_profile": "small", "engine": "spark"})
    assert MaintenancePolicy.objects.get().values == {"engine_profile": "small", "engine": "spark"}
    assert "no cluster" in text_of(browser, LIST)


def test_the_sort_order_of_a_policy_keeps_its_case(browser):
    make_iceberg_table("ws", "t")
    row = Table.objects.get()
    url = f"/admin/catalog/table/{row.pk}/policy/"
    with unchanged():
        assert "no column &#x27;Name&#x27;" in browser.post(
            url, {"strategy": "sort", "sort_order": "Name desc"}, follow=True
        ).content.decode().replace("'Name'", "&#x27;Name&#x27;")
    browser.post(url, {"strategy": "sort", "sort_order": "name desc"})
    assert MaintenancePolicy.objects.get().values == {
        "strategy": "sort",
        "sort_order": "name desc",
    }


def test_a_compaction_is_started_with_a_layout_which_its_page_shows(browser):
    make_iceberg_table("ws", "t")
    open_table("ws", "t").append(rows(1))
    row = Table.objects.get()
    url = f"/admin/catalog/table/{row.pk}/compact/"
    assert 'name="sort_order"' in text_of(browser, url)
    browser.post(url, {"strategy": "sort", "sort_order": "name"})
    job = Job.objects.get()
    assert job.parameters["overrides"] == {"strategy": "sort", "sort_order": "name"}
    job.result = {"layout": {"strategy": "sort", "sort_order": "name", "files": "all"}}
    job.save()
    assert "sort by name (all)" in text_of(browser, f"/admin/catalog/job/{job.pk}/change/")
