"""Rules of policies, direct values, and effective values."""

import pytest

from catalog.access import SYSTEM
from catalog.models import AuditEvent, MaintenancePolicy
from catalog.policies import rules
from catalog.services.maintenance import policies
from tests.api.management.client import Management
from tests.cases import shared_cases
from tests.factories import make_iceberg_table, make_namespace, make_root, make_table, unchanged


@pytest.fixture(autouse=True)
def _catalog(db):
    make_root()
    make_namespace("ws", "inner")
    make_table("ws", "inner", "t")
    make_iceberg_table("ws", "i")


@pytest.mark.operation("ListRules")
def test_the_rules_are_listed(reader: Management):
    listed = {rule.pop("name"): rule for rule in reader.get("rules")["rules"]}
    assert list(listed) == [rule.name for rule in rules()]
    assert listed["compaction"] == {
        "unit": "mode",
        "default": "dry_run",
        "help": "Rewrite small files and remove deleted rows.",
        "formats": ["iceberg", "lance"],
        "minimum": None,
        "maximum": None,
    }
    assert listed["target_rows"] | {"help": ""} == {
        "unit": "count",
        "default": 1_048_576,
        "help": "",
        "formats": ["lance"],
        "minimum": 1024,
        "maximum": 2**31 - 1,
    }
    assert (listed["small_ratio"]["minimum"], listed["small_ratio"]["maximum"]) == (0.01, 0.99)
    assert (listed["window_from"]["unit"], listed["window_from"]["minimum"]) == ("time", None)


@pytest.mark.operation("GetTablePolicy")
@pytest.mark.operation("GetNamespacePolicy")
def test_each_value_has_its_source(management: Management, reader: Management):
    management.put("namespaces/$/policy", {"values": {"keep_versions": 3, "cleanup": "on"}})
    management.put("namespaces/ws/policy", {"values": {"keep_versions": 4}})
    management.put("tables/ws$inner$t/policy", {"values": {"target_rows": 4096}})
    with unchanged():
        policy = reader.get("tables/ws$inner$t/policy")
    assert policy["direct"] == {"target_rows": 4096}
    assert policy["effective"]["target_rows"] == {"value": 4096, "source": "ws.inner.t"}
    assert policy["effective"]["keep_versions"] == {"value": 4, "source": "ws"}
    assert policy["effective"]["cleanup"] == {"value": "on", "source": "(root)"}
    assert policy["effective"]["orphans"] == {"value": "dry_run", "source": ""}
    assert list(policy["effective"]) == [rule.name for rule in rules()]
    inner = reader.get("namespaces/ws$inner/policy")
    assert inner["direct"] == {}
    assert inner["effective"]["keep_versions"] == {"value": 4, "source": "ws"}
    assert reader.get("namespaces/$/policy")["direct"] == {"keep_versions": 3, "cleanup": "on"}


@pytest.mark.operation("SetTablePolicy")
@pytest.mark.parametrize("table", ["ws$inner$t", "ws$i"])
def test_a_table_of_either_format_has_a_policy(management: Management, table):
    path = f"tables/{table}/policy"
    answer = management.put(path, {"values": {"compaction": "on", "keep_versions": 5}})
    assert answer == management.get(path)
    assert answer["direct"] == {"compaction": "on", "keep_versions": 5}
    event = AuditEvent.objects.get(action="policy.set")
    assert (event.actor, event.target) == ("tester", table.replace("$", "."))
    management.put(path, {"values": {"compaction": "off"}})
    assert management.get(path)["direct"] == {"compaction": "off"}
    assert management.put(path, {"values": {}})["direct"] == {}
    assert not MaintenancePolicy.objects.exists()


@pytest.mark.operation("SetNamespacePolicy")
def test_a_namespace_has_a_policy(management: Management):
    path = "namespaces/ws/policy"
    answer = management.put(path, {"values": {"window_from": "22:00", "window_to": "04:00"}})
    assert answer == management.get(path)
    assert answer["effective"]["window_from"] == {"value": "22:00", "source": "ws"}
    assert MaintenancePolicy.objects.get().updated_by == "tester"
    with unchanged():
        assert management.put(path, {"values": answer["direct"]}) == answer


@pytest.mark.operation("DeleteNamespacePolicy")
@pytest.mark.operation("DeleteTablePolicy")
@pytest.mark.parametrize("path", ["namespaces/ws/policy", "tables/ws$i/policy"])
def test_a_policy_is_deleted(management: Management, path):
    management.put(path, {"values": {"keep_versions": 5}})
    management.delete(path)
    assert management.get(path)["direct"] == {}
    assert not MaintenancePolicy.objects.exists()
    with unchanged():
        management.delete(path)


@shared_cases("path", ["namespaces/ws/policy", "tables/ws$i/policy"])
@shared_cases(
    ("values", "text"),
    [
        ({"nothing": 1}, "Policy setting 'nothing' does not exist"),
        ({"compaction": "yes"}, "one of off, dry_run, on, not 'yes'"),
        ({"compaction": ["on"]}, "one of off, dry_run, on"),
        ({"keep_versions": 0}, "a whole number from 1"),
        ({"keep_versions": 2.5}, "a whole number"),
        ({"keep_versions": True}, "a whole number"),
        ({"keep_versions": None}, "a whole number"),
        ({"keep_versions": 2**60}, "a whole number"),
        ({"small_ratio": 1.5}, "a number from 0.01 to 0.99"),
        ({"small_ratio": "1"}, "a number from"),
        ({"window_from": "25:00"}, "a time such as 22:30"),
        ({"window_from": "22:00+02:00"}, "a time such as 22:30"),
        ({"window_from": 22}, "a time such as 22:30"),
    ],
)
def test_invalid_values_are_refused(management: Management, path, values, text):
    management.refused(400, "invalid-input", text, f"PUT {path}", {"values": values})


def test_names_with_slashes_and_delimiters(management: Management):
    make_table("ws", "a/policy")
    make_table("ws", "b$c")
    management.put("tables/ws$a%2Fpolicy/policy", {"values": {"keep_versions": 7}})
    management.put("tables/ws:b$c/policy?delimiter=:", {"values": {"keep_versions": 8}})
    stored = {
        row.table.name: row.values for row in MaintenancePolicy.objects.select_related("table")
    }
    assert stored == {"a/policy": {"keep_versions": 7}, "b$c": {"keep_versions": 8}}
    effective, _ = policies.policy_of_table(actor=SYSTEM, table=("ws", "b$c"))
    assert effective["keep_versions"] == 8
