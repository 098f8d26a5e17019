"""Maintenance policies, and their effective values."""

import pytest

from catalog.access import SYSTEM, Principal
from catalog.errors import InvalidInput, NamespaceNotFound, PermissionDenied, TableNotFound
from catalog.models import AuditEvent, JobStatus, MaintenancePolicy, Table, TableVersion
from catalog.policies import Unit, rules
from catalog.privileges import READ_ONLY
from catalog.services.maintenance import job_runner, policies, scheduler
from tests.factories import (
    make_iceberg_table,
    make_namespace,
    make_root,
    make_table,
    make_version,
    unchanged,
)

pytestmark = pytest.mark.django_db
READER = Principal("reader", READ_ONLY)


@pytest.fixture(autouse=True)
def _catalog(db):
    make_root()
    make_namespace("prod", "raw")
    make_table("prod", "raw", "t")


def set_policy(*path: str, **values: object) -> dict:
    return policies.set_namespace_policy(actor=SYSTEM, namespace=path, values=values)


def effective_values(*table: str) -> dict[str, tuple[object, str]]:
    policy, _ = policies.policy_of_table(actor=SYSTEM, table=table)
    return {name: (value.value, value.source) for name, value in policy.values.items()}


def test_the_nearest_policy_applies_and_is_the_source():
    set_policy(compaction="on", keep_versions=3)
    set_policy("prod", keep_versions=5)
    policies.set_table_policy(
        actor=SYSTEM, table=("prod", "raw", "t"), values={"target_rows": 2048}
    )
    settings = effective_values("prod", "raw", "t")
    assert settings["compaction"] == ("on", "(root)")
    assert settings["keep_versions"] == (5, "prod")
    assert settings["target_rows"] == (2048, "prod.raw.t")
    assert settings["cleanup"] == ("dry_run", "")
    of_namespace, own = policies.policy_of_namespace(actor=SYSTEM, namespace=("prod", "raw"))
    assert (of_namespace["keep_versions"], own) == (5, {})
    assert policies.policy_of_namespace(actor=SYSTEM, namespace=("prod",))[1] == {
        "keep_versions": 5
    }


def test_a_change_of_a_policy_is_audited_once():
    set_policy("prod", keep_versions=5)
    event = AuditEvent.objects.get(action="policy.set")
    assert (event.target, event.before, event.after) == (
        "prod",
        {"policy": {}},
        {"policy": {"keep_versions": 5}},
    )
    with unchanged():
        assert set_policy("prod", keep_versions=5) == {"keep_versions": 5}
    assert set_policy("prod") == {}
    assert not MaintenancePolicy.objects.exists()
    assert AuditEvent.objects.filter(action="policy.set").count() == 2


def test_tables_of_both_formats_have_policies():
    make_iceberg_table("prod", "ice")
    policy = policies.set_table_policy(
        actor=SYSTEM, table=("prod", "ice"), values={"manifests": "on"}
    )
    assert policy == {"manifests": "on"}
    assert effective_values("prod", "ice")["manifests"] == ("on", "prod.ice")


@pytest.mark.parametrize(
    ("call", "refusal"),
    [
        (lambda: set_policy("prod", keep_versions=0), InvalidInput),
        (lambda: set_policy("prod", nonsense=1), InvalidInput),
        (lambda: set_policy("no", keep_versions=1), NamespaceNotFound),
        (
            lambda: policies.set_table_policy(actor=SYSTEM, table=("prod", "no"), values={}),
            TableNotFound,
        ),
        (
            lambda: policies.set_namespace_policy(
                actor=READER, namespace=("prod",), values={"keep_versions": 1}
            ),
            PermissionDenied,
        ),
    ],
)
def test_invalid_policies_are_refused(call, refusal):
    with unchanged(), pytest.raises(refusal):
        call()


WHOLE = {Unit.COUNT: 2**31 - 1, Unit.BYTES: 2**53, Unit.SECONDS: 2**53}


@pytest.mark.parametrize(
    "rule", [rule for rule in rules() if rule.unit in WHOLE], ids=lambda rule: rule.name
)
def test_whole_numbers_that_an_engine_cannot_represent_are_refused(rule):
    most = int(rule.high or WHOLE[rule.unit])
    assert most <= WHOLE[rule.unit]
    assert rule.check(most) == most
    for value in (most + 1, 2**63, 2**64):
        with pytest.raises(InvalidInput, match=f"'{rule.name}' must be a whole number from"):
            rule.check(value)


def test_a_count_beyond_the_limit_changes_nothing():
    with unchanged(), pytest.raises(InvalidInput, match="from 1 to 2147483647, not 2147483648"):
        set_policy("prod", keep_versions=2**31)


def test_a_stored_value_that_is_no_longer_valid_fails_the_job_with_its_name(monkeypatch):
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    make_version(("prod", "raw", "t"), 1)
    started = scheduler.start(actor=SYSTEM, table=("prod", "raw", "t"), kind="clean_up")
    started.parameters["policy"]["keep_versions"] = 2**31
    started.save()
    versions = list(TableVersion.objects.values())
    job_runner.run_job(started.pk)
    started.refresh_from_db()
    message = "Policy 'keep_versions' must be a whole number from 1 to 2147483647, not 2147483648"
    assert (started.status, started.error) == (JobStatus.FAILED, message)
    assert list(TableVersion.objects.values()) == versions

    set_policy("prod", keep_versions=5)
    MaintenancePolicy.objects.update(values={"keep_versions": 2**31})
    with unchanged(), pytest.raises(InvalidInput, match=message):
        scheduler.start(actor=SYSTEM, table=("prod", "raw", "t"), kind="clean_up")
    with unchanged(), pytest.raises(InvalidInput, match=message):
        scheduler.retry(actor=SYSTEM, job=started.pk)
    assert effective_values("prod", "raw", "t")["keep_versions"] == (2**31, "prod")


def test_policies_of_many_tables_take_two_statements(django_assert_num_queries):
    for number in range(10):
        make_table("prod", f"t{number}")
    rows = list(Table.objects.present().select_related("namespace"))
    with django_assert_num_queries(2):
        assert len(policies.effective_policies(rows)) == 11


def test_policies_of_dropped_namespaces_do_not_apply():
    set_policy("prod", keep_versions=5)
    from catalog.services.engine.commit import commit
    from catalog.services.tables import namespace_operations

    commit([namespace_operations.DropNamespace(namespace=("prod",), cascade=True)], actor=SYSTEM)
    make_table("prod", "t")
    assert effective_values("prod", "t")["keep_versions"] == (10, "")
