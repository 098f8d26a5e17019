"""Engine profiles: their life, who may manage them, what uses them, and the jobs that run on them."""

from typing import Any

import pytest
from django.db.models.functions import Now

from catalog.access import SYSTEM, Principal
from catalog.engine_profiles import EngineKind
from catalog.errors import (
    EngineProfileAlreadyExists,
    EngineProfileInUse,
    EngineProfileNotFound,
    InvalidInput,
    PermissionDenied,
    Unsupported,
)
from catalog.models import AuditEvent, EngineProfile, Heartbeat, Job, JobStatus, ProcessRole
from catalog.privileges import Privilege
from catalog.services.engine import job_queue, jobs, processes
from catalog.services.maintenance import job_control, job_runner, policies
from catalog.services.maintenance import scheduler as maintenance_scheduler
from catalog.services.maintenance.engine_profiles import engines, profiles
from catalog.services.maintenance.engine_profiles.profiles import Changes
from catalog.services.maintenance.requests.arguments import Overrides
from tests.factories import make_iceberg_table, make_table, make_version, unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
CLUSTER = "spark://one:7077"


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch, settings: Any) -> list[tuple[str, list[Any]]]:
    """Messages to the broker: names of tasks with their arguments."""
    settings.MONODON_SPARK_MASTERS = [CLUSTER, "yarn", "k8s://https://one:6443"]
    messages: list[tuple[str, list[Any]]] = []
    monkeypatch.setattr(
        "celery.current_app.send_task",
        lambda name, args=(), **_: messages.append((name.rpartition(".")[2], list(args))),
    )
    return messages


def create(name: str = "nightly", **values: Any) -> EngineProfile:
    fields = {"kind": EngineKind.STANDALONE, "master": CLUSTER} | values
    return profiles.create_profile(actor=SYSTEM, name=name, **fields)


def choose(name: str, *namespace: str) -> None:
    values = {"engine_profile": name}
    policies.set_namespace_policy(actor=SYSTEM, namespace=namespace or ("ws",), values=values)


def start(name: str = "t", **options: Any) -> Job:
    table = ("ws", name)
    return maintenance_scheduler.start(actor=SYSTEM, table=table, kind="compact", **options)


def test_the_life_of_a_profile_is_audited() -> None:
    row = create(cores=4, conf={"spark.yarn.priority": "3"})
    changed = profiles.update_profile(
        actor=SYSTEM, name="nightly", changes=Changes(cores=8, memory="4g")
    )
    assert (row.version, changed.version, changed.cores) == (1, 2, 8)
    listed, token = profiles.list_profiles(actor=SYSTEM)
    assert [profile.name for profile in listed] == ["default", "nightly"]
    assert token is None
    profiles.delete_profile(actor=SYSTEM, name="nightly")
    trail = AuditEvent.objects.filter(action__startswith="engine_profile.").order_by("pk")
    facts = [(event.action, event.before, event.after) for event in trail]
    assert facts[1] == (
        "engine_profile.update",
        {"cores": 4, "memory": ""},
        {"cores": 8, "memory": "4g"},
    )
    assert [action for action, _, _ in facts] == [
        "engine_profile.create",
        "engine_profile.update",
        "engine_profile.delete",
    ]
    assert facts[0][2]["conf"] == facts[2][1]["conf"] == {"spark.yarn.priority": "3"}
    with pytest.raises(EngineProfileNotFound):
        profiles.find_profile(actor=SYSTEM, name="nightly")


def test_pages_of_the_list() -> None:
    for name in ("b", "a", "c"):
        create(name)
    names: list[str] = []
    token: str | None = None
    for _ in range(4):
        page, token = profiles.list_profiles(actor=SYSTEM, limit=1, page_token=token)
        names += [row.name for row in page]
    assert (names, token) == (["default", "a", "b", "c"], None)


def test_refused_changes_change_nothing() -> None:
    create()
    with unchanged():
        for name in ("nightly", "default"):
            with pytest.raises(EngineProfileAlreadyExists):
                create(name)
        with pytest.raises(InvalidInput, match=r"^master: 'spark://two:7077'"):
            create("other", master="spark://two:7077")
        for changes, message in (
            (Changes(), "changes nothing"),
            (Changes(conf={"spark.jars": "/tmp/a.jar"}), "'spark.jars'"),
            (Changes(kind=EngineKind.YARN), "^master: "),
        ):
            with pytest.raises(InvalidInput, match=message):
                profiles.update_profile(actor=SYSTEM, name="nightly", changes=changes)
        for call in (
            lambda: profiles.update_profile(actor=SYSTEM, name="default", changes=Changes(cores=9)),
            lambda: profiles.delete_profile(actor=SYSTEM, name="default"),
        ):
            with pytest.raises(InvalidInput, match="described by the settings"):
                call()


def test_only_administrators_of_everything_manage_profiles() -> None:
    create()
    manager = Principal("manager", everywhere=Privilege.ALL & ~Privilege.GRANT)
    with unchanged():
        for call in (
            lambda: profiles.create_profile(actor=manager, name="x", kind=EngineKind.LOCAL),
            lambda: profiles.update_profile(
                actor=manager, name="nightly", changes=Changes(cores=9)
            ),
            lambda: profiles.delete_profile(actor=manager, name="nightly"),
            lambda: profiles.find_profile(actor=manager, name="nightly"),
            lambda: profiles.list_profiles(actor=manager),
        ):
            with pytest.raises(PermissionDenied):
                call()


def test_a_profile_in_use_is_not_deleted() -> None:
    create()
    make_iceberg_table("ws", "t")
    choose("nightly")
    job = start()
    with (
        unchanged(),
        pytest.raises(
            EngineProfileInUse,
            match=r"policies of namespaces choose it: 1 \(ws\); jobs have it: 1 queued, 0 running",
        ),
    ):
        profiles.delete_profile(actor=SYSTEM, name="nightly")
    choose("default")
    policies.set_table_policy(actor=SYSTEM, table=("ws", "t"), values={"engine_profile": "nightly"})
    job_control.cancel_job(actor=SYSTEM, job=job.pk)
    with pytest.raises(EngineProfileInUse, match=r"policies of tables choose it: 1 \(ws\.t\)$"):
        profiles.delete_profile(actor=SYSTEM, name="nightly")
    policies.set_table_policy(actor=SYSTEM, table=("ws", "t"), values={})
    profiles.delete_profile(actor=SYSTEM, name="nightly")
    assert not EngineProfile.objects.exists()


def test_a_policy_may_choose_existing_profiles_only() -> None:
    make_iceberg_table("ws", "t")
    with unchanged():
        for call in (
            lambda: choose("missing"),
            lambda: policies.set_table_policy(
                actor=SYSTEM, table=("ws", "t"), values={"engine_profile": "missing"}
            ),
            lambda: start(overrides=Overrides(engine_profile="missing")),
        ):
            with pytest.raises(InvalidInput, match="there is no engine profile 'missing'"):
                call()


def test_jobs_keep_the_profile_of_their_policy() -> None:
    create()
    make_iceberg_table("ws", "t")
    assert start().engine_profile == "default"
    choose("nightly")
    job = start()
    assert (job.engine_profile, job.parameters["policy"]["engine_profile"]) == (
        "nightly",
        "nightly",
    )
    override = start(overrides=Overrides(engine_profile="default"))
    assert override.engine_profile == "default"
    choose("default")
    job.refresh_from_db()
    assert job.engine_profile == "nightly"
    assert engines.engine_of_job(job).master == CLUSTER


def test_jobs_that_stay_in_the_worker_have_no_profile() -> None:
    create()
    make_table("ws", "t")
    make_version(("ws", "t"), 1)
    choose("nightly")
    assert start().engine_profile == "nightly"
    job = maintenance_scheduler.start(actor=SYSTEM, table=("ws", "t"), kind="optimize_indexes")
    assert job.engine_profile == ""
    with pytest.raises(InvalidInput, match="it runs in the worker"):
        maintenance_scheduler.start(
            actor=SYSTEM,
            table=("ws", "t"),
            kind="optimize_indexes",
            overrides=Overrides(engine_profile="nightly"),
        )
    policies.set_table_policy(actor=SYSTEM, table=("ws", "t"), values={"engine": "worker"})
    assert start().engine_profile == ""


def test_the_concurrency_of_a_profile_limits_its_jobs(sent: list[tuple[str, list[Any]]]) -> None:
    create(concurrency=1)
    rows = [
        Job.objects.create(
            kind="compact", table=make_table("ws", f"t{number}"), engine_profile=profile
        )
        for number, profile in enumerate(["nightly", "nightly", "default", "default", ""])
    ]
    assert [row.pk for row in job_queue.next_jobs(9)] == [rows[n].pk for n in (0, 2, 3, 4)]
    first = jobs.take(rows[0].pk)
    assert first is not None
    assert jobs.take(rows[1].pk) is None
    assert [jobs.take(row.pk) is not None for row in rows[2:]] == [True] * 3
    assert job_queue.next_jobs(9) == []
    sent.clear()
    jobs.finish(first, JobStatus.SUCCEEDED)
    assert sent == [("run_job", [rows[1].pk])]
    assert jobs.take(rows[1].pk) is not None


def test_a_job_whose_profile_was_deleted_fails_with_the_reason() -> None:
    job = Job.objects.create(kind="compact", table=make_table("ws", "t"), engine_profile="deleted")
    assert jobs.take(job.pk) is not None
    with pytest.raises(Unsupported, match="'deleted' of the job does not exist any more"):
        engines.engine_of_job(job)


def report(name: str, **missing: str) -> None:
    row = Heartbeat(
        name=name,
        role=ProcessRole.JOB_WORKER,
        seen_at=Now(),
        started_at=Now(),
        missing_for_profiles=missing,
    )
    processes.report(row, is_first=True)


def test_jobs_on_a_profile_that_no_worker_can_use_are_not_offered() -> None:
    create()
    make_iceberg_table("ws", "t")
    choose("nightly")
    policy = policies.effective_policy(make_table("ws", "other"))
    report("jobs@a", nightly="no cluster")
    assert profiles.usable_names() == ["default"]
    assert engines.obstacle("iceberg", policy) == "no cluster"
    assert engines.obstacle("lance", policy) == ""
    with unchanged(), pytest.raises(Unsupported, match="no cluster"):
        start()
    report("jobs@b")
    assert engines.obstacle("iceberg", policy) == ""
    assert profiles.usable_names() == ["default", "nightly"]
    assert start().engine_profile == "nightly"


def test_a_worker_leaves_jobs_to_workers_that_can_use_their_profile(settings: Any) -> None:
    create()
    other = Job.objects.create(kind="optimize_indexes", table=make_table("ws", "u"))
    job = Job.objects.create(kind="compact", table=make_table("ws", "t"), engine_profile="nightly")
    settings.MONODON_SPARK_MASTERS = []
    report("jobs@here", nightly="no cluster")
    report("jobs@other")
    with unchanged():
        job_runner.run_job(job.pk)
    job_runner.run_job(other.pk)
    other.refresh_from_db()
    assert other.attempts == 1
    report("jobs@other", nightly="no cluster")
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (job.status, job.attempts) == (JobStatus.FAILED, 1)


def test_a_worker_takes_jobs_that_it_can_run() -> None:
    create()
    job = Job.objects.create(kind="compact", table=make_table("ws", "t"), engine_profile="nightly")
    report("jobs@other")
    assert engines.reason_to_decline(job.pk) == ""


def test_what_a_profile_needs_on_the_machine_of_the_worker(settings: Any) -> None:
    standalone = create("standalone")
    yarn = create("yarn", kind=EngineKind.YARN, master="yarn")
    kubernetes = create("k8s", kind=EngineKind.KUBERNETES, master="k8s://https://one:6443")
    assert engines.problem(standalone, {}) == ""
    assert "HADOOP_CONF_DIR" in engines.problem(yarn, {})
    assert engines.problem(yarn, {"YARN_CONF_DIR": "/etc/yarn"}) == ""
    assert "image of the executors" in engines.problem(kubernetes, {})
    settings.MONODON_SPARK_CONF = {"spark.kubernetes.container.image": "lake/spark:4.1"}
    assert engines.problem(kubernetes, {}) == ""
    settings.MONODON_SPARK_MASTERS = []
    assert set(engines.problems()) == {"standalone", "yarn", "k8s"}
    assert "MONODON_SPARK_MASTERS" in engines.problem(standalone, {})
    with pytest.raises(Unsupported, match="'standalone' cannot be used"):
        engines.engine_of_job(Job(engine_profile="standalone"))


def test_metrics_name_existing_profiles_only() -> None:
    create()
    for number, profile in enumerate(["nightly", "deleted", "gone", ""]):
        Job.objects.create(
            kind="compact", table=make_table("ws", f"t{number}"), engine_profile=profile
        )
    counts = {key[3]: number for key, number in job_control.count_active().items()}
    assert counts == {"nightly": 1, "other": 2, "": 1}


def test_the_number_of_profiles_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "MAX_PROFILES", 1)
    create()
    with unchanged(), pytest.raises(InvalidInput, match="delete one first"):
        create("second")
