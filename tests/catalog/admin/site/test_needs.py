"""Open tasks on the first page: each kind with its count, link, and access."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F, Model
from django.test import Client
from django.utils import timezone

from catalog import models
from catalog.access import SYSTEM, On, Principal
from catalog.models import (
    ApiKey,
    ApprovalRequest,
    DeliveryStatus,
    Job,
    JobStatus,
    PrincipalLevel,
    TrashItem,
    Webhook,
    WebhookDelivery,
)
from catalog.privileges import Privilege
from catalog.services.access import api_keys, grants
from catalog.services.audit import chain
from catalog.services.engine.commit import commit
from catalog.services.events import webhooks
from catalog.services.maintenance import job_control
from catalog.services.recovery import undrop
from catalog.services.tables import namespace_operations, table_operations
from tests.factories import make_lance_table, make_namespace, make_root, make_table

GRACE = Principal("user:grace", Privilege.ALL)
DECIDE = "Pending approvals"
FAILED = "Failed jobs in the last 7 days"
PURGED = "Purges within 2 days"
DEAD = "Undelivered events"
KEYS = "API keys that expire within 2 weeks"


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch, settings):
    settings.MONODON_TRASH_SECONDS = 7 * 86_400
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)


def needs(browser: Client) -> dict[str, str]:
    return {need.text: need.count for need in browser.get("/admin/").context["needs"]}


def rows_behind(browser: Client, text: str) -> set[Model]:
    """The rows of the list, or the row, to which an open task links."""
    needed = next(n for n in browser.get("/admin/").context["needs"] if n.text == text)
    assert f'href="{needed.url.replace("&", "&amp;")}"' in browser.get("/admin/").content.decode()
    answer = browser.get(needed.url)
    assert answer.status_code == 200
    if "cl" not in answer.context:
        return {answer.context["original"]}
    return set(answer.context["cl"].result_list)


# Each function creates a row with an open task, in namespace "a", and a similar row without one.


def a_request() -> Model:
    for name in ("mine", "theirs"):
        make_namespace("a", name)
        undrop.set_namespace_protection(actor=SYSTEM, namespace=("a", name), is_protected=True)
    undrop.set_approval_rule(actor=SYSTEM, namespace=("a",), actions=["drop_protected"])
    for name, who in (("theirs", GRACE), ("mine", Principal("user:ada", Privilege.ALL))):
        with pytest.raises(Exception, match="second person"):
            commit([namespace_operations.DropNamespace(namespace=("a", name))], actor=who)
    return ApprovalRequest.objects.get(requester="user:grace")


def a_failed_job() -> Model:
    table = make_table("a", "t")
    made = {
        status: Job.objects.create(table=table, kind="compact", status=status)
        for status in (JobStatus.FAILED, JobStatus.SUCCEEDED, JobStatus.QUEUED)
    }
    old = Job.objects.create(table=table, kind="clean_up", status=JobStatus.FAILED)
    Job.objects.filter(pk=old.pk).update(created_at=timezone.now() - timedelta(days=8))
    return made[JobStatus.FAILED]


def a_purge() -> Model:
    for name in ("soon", "later"):
        make_lance_table(("a", name))
        commit([table_operations.DropTable(table=("a", name))], actor=SYSTEM)
    soon = TrashItem.objects.get(table__name="soon")
    TrashItem.objects.filter(pk=soon.pk).update(purge_at=timezone.now() + timedelta(hours=47))
    return soon


def a_dead_letter() -> Model:
    for name in ("deaf", "well"):
        webhooks.create_webhook(
            actor=SYSTEM, name=name, url="https://example.com/hook", types=["table.*"]
        )
    deaf, well = (Webhook.objects.get(name=name) for name in ("deaf", "well"))
    for row, status in ((deaf, DeliveryStatus.DEAD), (well, DeliveryStatus.PENDING)):
        WebhookDelivery.objects.create(
            webhook=row,
            event=1,
            event_at=timezone.now(),
            type="monodon.table.create",
            target="a.t",
            status=status,
        )
    return deaf


def a_key() -> Model:
    now = timezone.now()
    for name, days in (("soon", 13), ("later", 15), ("revoked", 3), ("rotated", 3), ("over", 1)):
        api_keys.create_api_key(actor=SYSTEM, name=name, expires_at=now + timedelta(days=days))
    keys = {row.name: row for row in ApiKey.objects.all()}
    ApiKey.objects.filter(name="revoked").update(revoked_at=now)
    ApiKey.objects.filter(name="rotated").update(replaced_by=keys["later"])
    ApiKey.objects.filter(name="over").update(expires_at=now - timedelta(days=1))
    api_keys.create_api_key(actor=SYSTEM, name="for ever")
    return keys["soon"]


KINDS: dict[str, Callable[[], Model]] = {
    DECIDE: a_request,
    FAILED: a_failed_job,
    PURGED: a_purge,
    DEAD: a_dead_letter,
    KEYS: a_key,
}
REQUIRED: dict[str, Privilege | None] = {
    DECIDE: Privilege.MANAGE,
    FAILED: Privilege.BROWSE,
    PURGED: Privilege.BROWSE,
    DEAD: None,
    KEYS: None,
}
"""The privilege that is required on the namespace. None: only administrators see the task."""


@pytest.mark.parametrize("text", KINDS)
def test_open_tasks_are_counted_and_linked(browser, text):
    assert needs(browser) == {}
    needed = KINDS[text]()
    assert needs(browser) == {text: "1"}
    assert rows_behind(browser, text) == {needed}


@pytest.mark.parametrize("text", KINDS)
def test_open_tasks_are_visible_with_the_required_privilege(sign_in, text):
    bob = sign_in()
    needed = KINDS[text]()
    make_namespace("b")

    def hold(privileges: Privilege, *namespace: str) -> None:
        grants.set_grant(
            actor=SYSTEM, on=On.namespace(namespace), principal="user:bob", privileges=privileges
        )

    assert needs(bob) == {}
    hold(Privilege.ALL, "b")
    assert needs(bob) == {}
    privilege = REQUIRED[text]
    if privilege is None:
        hold(Privilege.ALL)
        assert text not in needs(bob)
        models.Principal.objects.filter(name="user:bob").update(level=PrincipalLevel.ADMIN)
    else:
        if privilege != Privilege.BROWSE:
            hold(Privilege.ALL & ~privilege, "a")
            assert text not in needs(bob)
        hold(privilege, "a")
    assert text in needs(bob)
    assert needed in rows_behind(bob, text)


def fail(table: models.Table, number: int = 1) -> list[Job]:
    return Job.objects.bulk_create(
        Job(table=table, kind="compact", status=JobStatus.FAILED) for _ in range(number)
    )


def test_counts_end_at_a_hundred(browser):
    fail(make_table("a", "t"), 101)
    assert needs(browser) == {FAILED: "100+"}


@pytest.mark.parametrize("most", [20_000, 0])  # with few tables, and with many
def test_failed_jobs_of_others_do_not_hide_those_of_a_user(browser, sign_in, monkeypatch, most):
    monkeypatch.setattr("catalog.admin.actor._MOST_FEW", most)
    bob = sign_in()
    own, other, dropped = make_table("a", "t"), make_table("b", "u"), make_table("a", "dropped")
    for on in (On.namespace(("a",)), On.table(("b", "u"))):
        grants.set_grant(actor=SYSTEM, on=on, principal="user:bob", privileges=Privilege.BROWSE)
    hidden = make_table("c", "v")
    commit([table_operations.DropTable(table=("a", "dropped"))], actor=SYSTEM)
    needed = [*fail(own), *fail(other), *fail(dropped)]
    # The numbers of jobs are those of the whole catalog: others have as many as they like.
    Job.objects.filter(pk__in=[row.pk for row in needed]).update(id=-F("id") - 1_000_000)
    fail(hidden, 300)
    assert needs(bob) == {FAILED: "3"}
    assert {row.table_id for row in rows_behind(bob, FAILED)} == {own.pk, other.pk, dropped.pk}
    shown = bob.get("/admin/").context["failed_jobs"].rows
    assert len(shown) == 3
    assert needs(browser)[FAILED] == "100+"


def test_failed_jobs_of_a_user_are_found_by_an_index(db):
    make_root()
    tables = [make_table("a", f"t{number}") for number in range(3)]
    hidden = make_table("b", "u")
    fail(hidden, 3000)
    newest = [row.pk for table in tables for row in fail(table, 3)]
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE catalog_job")
        parameters = {
            "tables": [table.pk for table in tables],
            "since": timezone.now() - timedelta(days=7),
            "limit": 2,
        }
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {job_control._NEWEST_FAILED}", parameters)
        ((plan,),) = cursor.fetchall()
    nodes = [*_nodes(plan[0]["Plan"])]
    (scan,) = [node for node in nodes if node.get("Relation Name") == "catalog_job"]
    assert scan["Index Name"] == "job_failed_of_table"
    assert scan["Actual Rows"] <= 2
    assert scan["Actual Loops"] == 3
    failed = job_control.newest_failed(
        actor=SYSTEM,
        since=timezone.now() - timedelta(days=7),
        limit=100,
        few_tables=[table.pk for table in tables],
    )
    assert sorted(failed) == sorted(newest)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


def test_users_without_privileges_have_no_open_tasks(browser):
    assert "Nothing needs attention." in browser.get("/admin/").content.decode()


UNSEALED = "Audit events wait for a seal; check the worker of tasks and beat. Minutes"


def test_events_without_a_seal_are_an_alarm_for_administrators(browser, sign_in, monkeypatch):
    assert UNSEALED not in needs(browser)
    monkeypatch.setattr(chain, "lag_seconds", lambda: 150.0)
    assert needs(browser)[UNSEALED] == "2"
    assert UNSEALED not in needs(sign_in("read"))
    monkeypatch.setattr(chain, "lag_seconds", lambda: 59.0)
    assert UNSEALED not in needs(browser)
