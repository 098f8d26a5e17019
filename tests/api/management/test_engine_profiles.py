"""Engine profiles over HTTP, and the arguments of jobs that use them."""

from typing import Any

import pytest

from catalog.models import EngineProfile
from tests.cases import shared_cases
from tests.catalog.services.iceberg.writing import open_table, rows
from tests.factories import make_iceberg_table, make_root

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
PROFILE = {
    "name": "nightly",
    "kind": "standalone",
    "master": "spark://one:7077",
    "cores": 8,
    "memory": "4g",
    "concurrency": 2,
    "conf": {"spark.sql.shuffle.partitions": "64"},
}


@pytest.fixture(autouse=True)
def _cluster(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make_root()
    settings.MONODON_SPARK_MASTERS = ["spark://one:7077"]
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)


@pytest.mark.operation("CreateEngineProfile")
@pytest.mark.operation("GetEngineProfile")
@pytest.mark.operation("ListEngineProfiles")
@pytest.mark.operation("UpdateEngineProfile")
@pytest.mark.operation("DeleteEngineProfile")
def test_the_life_of_a_profile(management):
    created = management.post("engine-profiles", PROFILE, status=201)
    assert {name: created[name] for name in PROFILE} == PROFILE
    assert (created["is_built_in"], created["problem"], created["version"]) == (False, "", 1)
    changed = management.send("PATCH", "engine-profiles/nightly", {"cores": 4, "conf": {}})
    assert (changed["cores"], changed["conf"], changed["memory"]) == (4, {}, "4g")
    assert management.get("engine-profiles/nightly") == changed
    built_in, listed = management.get("engine-profiles")["engine_profiles"]
    assert listed == changed
    assert (built_in["name"], built_in["is_built_in"]) == ("default", True)
    assert (built_in["concurrency"], built_in["created_at"]) == (None, None)
    assert management.get("engine-profiles/default") == built_in
    management.delete("engine-profiles/nightly")
    management.refused(404, "engine-profile-not-found", "'nightly'", "GET engine-profiles/nightly")


@shared_cases(
    ("changed", "detail"),
    [
        ({"name": "a b"}, "name: 'a b'"),
        ({"kind": "mesos"}, "kind"),
        ({"master": "spark://two:7077"}, "master: 'spark://two:7077'"),
        ({"cores": "8"}, "cores"),
        ({"cores": 0}, "cores"),
        ({"memory": "4"}, "memory"),
        ({"concurrency": 0}, "concurrency"),
        ({"conf": {"spark.jars": "http://example.com/a.jar"}}, "'spark.jars'"),
        ({"conf": {"spark.sql.shuffle.partitions": 64}}, "conf"),
        ({"conf": []}, "conf"),
        ({"jars": []}, "jars: Unknown field"),
    ],
)
def test_refused_profiles(management, changed, detail):
    management.refused(400, "invalid-input", detail, "POST engine-profiles", {**PROFILE, **changed})


def test_conflicts(management):
    management.post("engine-profiles", PROFILE, status=201)
    management.refused(
        409,
        "engine-profile-already-exists",
        "'nightly' exists already",
        "POST engine-profiles",
        PROFILE,
    )
    management.put("namespaces/$/policy", {"values": {"engine_profile": "nightly"}})
    management.refused(
        409,
        "engine-profile-in-use",
        "policies of namespaces choose it: 1 ((root))",
        "DELETE engine-profiles/nightly",
    )
    assert EngineProfile.objects.count() == 1


def test_a_job_names_its_profile_and_its_layout(management):
    management.post("engine-profiles", PROFILE, status=201)
    make_iceberg_table("ws", "t")
    open_table("ws", "t").append(rows(1))
    body = {"kind": "compact", "engine_profile": "nightly", "strategy": "zorder"}
    path = "POST tables/ws$t/maintenance"
    management.refused(400, "invalid-input", "needs the columns", path, body)
    management.refused(
        400, "invalid-input", "no column 'x'", path, {**body, "sort_order": "name, x"}
    )
    management.refused(
        400,
        "invalid-input",
        "no engine profile 'missing'",
        path,
        {"kind": "compact", "engine_profile": "missing"},
    )
    management.refused(400, "invalid-input", "strategy", path, {**body, "strategy": "hilbert"})
    job = management.post("tables/ws$t/maintenance", {**body, "sort_order": "name"}, status=202)
    assert job["engine_profile"] == "nightly"
    parameters = management.get(f"jobs/{job['id']}")["parameters"]
    assert parameters["overrides"] == {
        "engine_profile": "nightly",
        "strategy": "zorder",
        "sort_order": "name",
    }
