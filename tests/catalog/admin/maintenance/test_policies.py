"""Forms of maintenance policies in the admin, and the effective values."""

import re

import pytest
from django.contrib.messages import get_messages
from django.db import connection
from django.test.utils import CaptureQueriesContext

from catalog.access import SYSTEM
from catalog.admin.maintenance.policies import grouped
from catalog.models import AuditEvent, MaintenancePolicy, Namespace, Table
from catalog.policies import rules, rules_by_name
from catalog.services.engine.commit import commit
from catalog.services.maintenance import policies
from catalog.services.tables import namespace_operations, table_operations
from tests.cases import shared_cases
from tests.factories import make_iceberg_table, make_namespace, make_table, unchanged


def url(row, action: str = "policy") -> str:
    return f"/admin/catalog/{row._meta.model_name}/{row.pk}/{action}/"


def messages_of(answer) -> list[str]:
    return [str(message) for message in get_messages(answer.wsgi_request)]


def text(answer) -> str:
    assert answer.status_code == 200
    return answer.content.decode()


def line(page: str, name: str) -> str:
    """The text beside a field, without tags."""
    match = re.search(rf'<p id="effective_{name}">(.*?)</p>', page)
    return re.sub(r"<[^>]*>", "", match[1])


def root() -> Namespace:
    return Namespace.objects.named(()).get()


def test_every_rule_is_in_a_group():
    groups = grouped(rules())
    assert sorted(rule.name for _, group in groups for rule in group) == sorted(rules_by_name())


def test_effective_values_are_shown_with_their_source(browser):
    row = make_table("prod", "raw", "t")
    prod = row.namespace.parent
    say = policies.set_namespace_policy
    say(actor=SYSTEM, namespace=(), values={"keep_for": 86_400, "compaction": "on"})
    say(actor=SYSTEM, namespace=("prod",), values={"keep_for": 2 * 86_400})
    policies.set_table_policy(actor=SYSTEM, table=row.identifier, values={"small_ratio": 0.3})
    page = text(browser.get(url(row)))
    assert line(page, "keep_for") == "Effective: 2 days · prod"
    assert f'href="{url(prod, "change")}?tab=maintenance"' in page
    assert line(page, "compaction") == "Effective: On · (root)"
    assert f'href="{url(root(), "change")}?tab=maintenance"' in page
    assert line(page, "small_ratio") == "Effective: 30 % · set here (inherited: 50 %)"
    assert line(page, "keep_versions") == "Effective: 10 · default"
    assert 'placeholder="inherited: 2 days"' in page
    assert re.search(r'name="small_ratio" value="30 %"', page)
    assert "Inherit (on)" in page
    content = text(browser.get(f"{url(row, 'change')}?tab=maintenance"))
    assert "Effective policy" in content
    assert f'href="{url(prod, "change")}?tab=maintenance"' in content
    of_namespace = text(browser.get(f"{url(row.namespace, 'change')}?tab=maintenance"))
    assert "2 days" in of_namespace


def test_every_field_has_a_label_and_a_help_text(browser):
    page = text(browser.get(url(make_namespace("prod"))))
    for name in rules_by_name():
        assert f'<label for="id_{name}">' in page, name
        assert f'aria-describedby="help_{name} effective_{name}"' in page, name
        assert f'id="help_{name}"' in page, name
    assert page.count("<fieldset") == len(grouped(rules()))


@pytest.mark.parametrize(
    ("table_format", "absent"), [("lance", "target_bytes"), ("iceberg", "target_rows")]
)
def test_the_form_of_a_table_has_only_fields_of_its_format(browser, table_format, absent):
    make = make_table if table_format == "lance" else make_iceberg_table
    make("prod", "t")
    row = Table.objects.get(name="t")
    page = text(browser.get(url(row)))
    assert f"id_{absent}" not in page
    assert "id_keep_for" in page


def test_a_policy_is_saved(browser):
    row = make_table("prod", "t")
    form = {
        "compaction": "on",
        "target_rows": "2,048",
        "small_ratio": "30 %",
        "keep_for": "36 hours",
        "window_from": "22:30",
        "window_to": "any time",
        "cleanup": "",
    }
    answer = browser.post(url(row), form)
    assert answer.status_code == 302
    assert answer.headers["location"] == f"{url(row, 'change')}?tab=maintenance"
    assert messages_of(answer) == ["Maintenance policy of table 'prod.t' was saved"]
    assert MaintenancePolicy.objects.get(table=row).values == {
        "compaction": "on",
        "target_rows": 2048,
        "small_ratio": 0.3,
        "keep_for": 129_600,
        "window_from": "22:30",
        "window_to": "",
    }
    event = AuditEvent.objects.get(action="policy.set")
    assert (event.target, event.actor) == ("prod.t", "user:ada")
    page = text(browser.get(url(row)))
    assert re.search(r'<option value="on" selected', page)
    assert re.search(r'name="window_to" value="any time"', page)


def test_the_policy_of_the_root_is_saved_and_removed(browser):
    assert url(root()) in text(browser.get(url(root(), "change")))
    assert browser.post(url(root()), {"cleanup": "off"}).status_code == 302
    assert policies.policy_of_namespace(actor=SYSTEM, namespace=())[1] == {"cleanup": "off"}
    assert browser.post(url(root()), {}).status_code == 302
    assert policies.policy_of_namespace(actor=SYSTEM, namespace=())[1] == {}


def test_values_for_the_other_format_are_kept(browser):
    row = make_table("prod", "t")
    policies.set_table_policy(
        actor=SYSTEM, table=("prod", "t"), values={"min_manifests": 7, "keep_versions": 3}
    )
    assert browser.post(url(row), {"keep_versions": "4"}).status_code == 302
    saved_values = MaintenancePolicy.objects.get(table=row).values
    assert saved_values == {"min_manifests": 7, "keep_versions": 4}


@shared_cases(
    ("name", "value", "message"),
    [
        ("keep_for", "7", "Enter a value such as 7 days."),
        ("orphan_age", "1 hour", "The value must be at least 1 day."),
        ("small_ratio", "200 %", "The value must be from 1 % to 99 %."),
        ("max_jobs", "0", "The value must be from 1 to 1,000."),
        ("target_rows", "9" * 60, "Ensure this value has at most 40 characters (it has 60)."),
        ("window_from", "late", "Enter a value such as 22:30 (UTC), or any time."),
        ("keep_versions", "a\x00", "Null characters are not allowed."),
    ],
)
def test_an_invalid_value_is_reported_at_its_field(browser, name, value, message):
    row = make_namespace("prod")
    policies.set_namespace_policy(actor=SYSTEM, namespace=("prod",), values={"cleanup": "on"})
    with unchanged():
        answer = browser.post(url(row), {name: value, "compaction": "on"})
    page = text(answer)
    assert answer.context["form"].errors == {name: [message]}
    assert "The policy was not saved" in page
    assert line(page, "compaction") == "Effective: Dry run · default"
    assert re.search(r'<option value="on" selected', page)


def test_an_invalid_mode_is_refused(browser):
    row = make_namespace("prod")
    with unchanged():
        answer = browser.post(url(row), {"compaction": "<b>"})
    assert "compaction" in answer.context["form"].errors
    assert "<b>" not in text(answer)


def test_policies_require_maintain(sign_in, browser):
    row = make_table("prod", "t")
    bob = sign_in("read")
    for subject in (row, row.namespace):
        assert url(subject) not in bob.get(url(subject, "change")).content.decode()
        with unchanged():
            assert bob.get(url(subject)).status_code == 403
            assert bob.post(url(subject), {"cleanup": "on"}).status_code == 403
    assert "Effective policy" in text(bob.get(f"{url(row, 'change')}?tab=maintenance"))


def test_the_page_of_a_dropped_table_does_not_change_a_new_table_of_its_name(browser):
    row = make_table("prod", "t")
    commit([table_operations.DeregisterTable(table=("prod", "t"))], actor=SYSTEM)
    make_table("prod", "t")
    with unchanged():
        answer = browser.post(url(row), {"cleanup": "on"})
    assert answer.status_code == 302
    assert messages_of(answer) == ["Table 'prod.t' does not exist"]


def test_the_page_of_a_dropped_namespace_does_not_change_a_new_namespace_of_its_name(browser):
    row = make_namespace("prod")
    commit([namespace_operations.DropNamespace(namespace=("prod",))], actor=SYSTEM)
    make_namespace("prod")
    with unchanged():
        answer = browser.post(url(row), {"cleanup": "on"})
    assert messages_of(answer) == ["Namespace 'prod' does not exist"]
    content = text(browser.get(f"{url(row, 'change')}?tab=maintenance"))
    assert "Namespace &#x27;prod&#x27; does not exist" in content


def test_a_missing_row_gets_404(browser):
    for noun in ("table", "namespace"):
        assert browser.get(f"/admin/catalog/{noun}/0/policy/").status_code == 404
        assert browser.post(f"/admin/catalog/{noun}/x/policy/").status_code == 404


def test_the_number_of_queries_does_not_depend_on_the_depth(browser):
    def cost(row: Table) -> list[int]:
        counts = []
        pages = (
            url(row),
            f"{url(row, 'change')}?tab=maintenance",
            url(row.namespace),
            f"{url(row.namespace, 'change')}?tab=maintenance",
        )
        for page in pages:
            with CaptureQueriesContext(connection) as queries:
                assert browser.get(page).status_code == 200
            counts.append(len(queries))
        return counts

    paths = (("prod",), ("a", "b"), ("a", "b", "c", "d"))
    top, second, deep = (make_table(*path, "t") for path in paths)
    for path in (*paths, ("a", "b", "c")):
        policies.set_namespace_policy(actor=SYSTEM, namespace=path, values={"cleanup": "on"})
    assert cost(top) == [9, 9, 10, 6]
    # One more statement: the namespaces of the path.
    assert cost(second) == cost(deep) == [10, 10, 11, 7]
