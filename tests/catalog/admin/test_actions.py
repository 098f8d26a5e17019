"""The buttons of the admin, which call the services as the user."""

import re
from datetime import timedelta

import pytest
from django.contrib.messages import get_messages
from django.utils import timezone

from catalog import access
from catalog.access import SYSTEM, credentials
from catalog.models import (
    ApiKey,
    AuditEvent,
    Job,
    JobStatus,
    Namespace,
    Table,
    TableState,
    TableVersion,
    TransactionStatus,
)
from catalog.privileges import NOTHING, SINGLE
from catalog.services.access import authentication
from catalog.services.engine.commit import commit
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.ledger import version_operations
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.tables import namespace_operations, table_operations
from tests.cases import shared_cases
from tests.factories import (
    final_path,
    make_lance_table,
    make_namespace,
    make_table,
    make_version,
    unchanged,
)


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch):
    monkeypatch.setattr("celery.current_app.send_task", lambda *a, **k: None)


def messages_of(answer) -> list[str]:
    return [str(message) for message in get_messages(answer.wsgi_request)]


def last_event() -> AuditEvent:
    return AuditEvent.objects.order_by("-pk")[0]


def url(row, action: str = "change") -> str:
    return f"/admin/catalog/{row._meta.model_name}/{row.pk}/{action}/"


# --- tables


def test_a_drop_requires_confirmation(browser):
    row = make_table("prod", "t")
    with unchanged():
        page = browser.get(url(row, "drop")).content.decode()
    assert "Drop table &#x27;prod.t&#x27;?" in page
    assert re.search(r'<button type="submit"[^>]*>\s*Drop\s*</button>', page)
    assert row.location in page


def test_a_table_is_dropped(browser):
    row = make_table("prod", "t")
    answer = browser.post(url(row, "drop"), headers={"x-request-id": "press-1"})
    assert answer.status_code == 302
    row.refresh_from_db()
    assert row.state == TableState.DROPPED
    assert row.jobs.get().status == JobStatus.QUEUED
    event = last_event()
    assert (event.action, event.target, event.actor) == ("table.drop", "prod.t", "user:ada")
    assert event.request_id == "press-1"
    assert answer.headers["x-request-id"] == "press-1"


def test_a_deregistration_keeps_the_data(browser):
    row = make_table("prod", "t")
    assert browser.post(url(row, "deregister")).status_code == 302
    row.refresh_from_db()
    assert row.state == TableState.DROPPED
    assert not row.jobs.exists()
    event = last_event()
    assert (event.action, event.actor) == ("table.deregister", "user:ada")


def test_a_table_is_renamed_into_another_namespace(browser):
    row = make_table("prod", "t")
    make_namespace("prod", "old")
    answer = browser.post(url(row, "rename"), {"namespace": "prod$old", "name": "t2"})
    assert answer.status_code == 302
    row = Table.objects.select_related("namespace").get(pk=row.pk)
    assert row.identifier == ("prod", "old", "t2")
    event = last_event()
    assert (event.action, event.actor) == ("table.rename", "user:ada")


def test_renaming_to_an_existing_name_is_a_message(browser):
    row = make_table("prod", "t")
    make_table("prod", "u")
    with unchanged():
        answer = browser.post(url(row, "rename"), {"namespace": "prod", "name": "u"})
    assert answer.status_code == 200
    assert messages_of(answer) == ["Table 'prod.u' exists already"]


@pytest.mark.parametrize(
    ("namespace", "name"), [("$$", "t"), ("", "t"), ("prod", ""), ("prod", "x" * 300)]
)
def test_renaming_to_an_invalid_name_is_reported_at_the_field(browser, namespace, name):
    row = make_table("prod", "t")
    with unchanged():
        answer = browser.post(url(row, "rename"), {"namespace": namespace, "name": name})
    assert answer.status_code == 200
    assert answer.context["form"].errors


def test_a_table_that_was_dropped_in_the_meantime_is_a_message(browser):
    row = make_table("prod", "t")
    commit([table_operations.DeregisterTable(table=("prod", "t"))], actor=SYSTEM)
    for action in ("drop", "deregister"):
        with unchanged():
            answer = browser.post(url(row, action))
        assert answer.status_code == 200
        assert messages_of(answer) == ["Table 'prod.t' does not exist"]


@pytest.mark.parametrize("action", ["drop", "deregister", "rename"])
def test_the_page_of_a_dropped_table_does_not_change_a_new_table_of_its_name(browser, action):
    row = make_table("prod", "t")
    commit([table_operations.DeregisterTable(table=("prod", "t"))], actor=SYSTEM)
    make_table("prod", "t")
    with unchanged():
        answer = browser.post(url(row, action), {"namespace": "prod", "name": "u"})
    assert messages_of(answer) == ["Table 'prod.t' does not exist"]


def test_the_page_of_a_dropped_namespace_does_not_change_a_new_namespace_of_its_name(browser):
    row = make_namespace("prod")
    commit([namespace_operations.DropNamespace(namespace=("prod",))], actor=SYSTEM)
    make_namespace("prod")
    with unchanged():
        answer = browser.post(url(row, "drop"))
    assert messages_of(answer) == ["Namespace 'prod' does not exist"]


def test_a_dropped_table_has_no_buttons(browser):
    row = make_table("prod", "t")
    assert url(row, "drop") in browser.get(url(row)).content.decode()
    commit([table_operations.DeregisterTable(table=("prod", "t"))], actor=SYSTEM)
    assert url(row, "drop") not in browser.get(url(row)).content.decode()


@pytest.mark.parametrize("action", ["drop", "deregister", "rename"])
def test_staff_without_privileges_may_not_change_tables(sign_in, action):
    row = make_table("prod", "t")
    browser = sign_in("read")
    page = browser.get(url(row))
    assert page.status_code == 200
    assert url(row, action) not in page.content.decode()
    with unchanged():
        answer = browser.post(url(row, action), {"namespace": "prod", "name": "u"})
    assert answer.status_code == 403


def test_staff_with_privileges_may_change_tables(sign_in):
    row = make_table("prod", "t")
    browser = sign_in("manage")
    assert browser.post(url(row, "drop")).status_code == 302
    assert last_event().actor == "user:bob"


# --- namespaces


def test_a_namespace_is_created(browser):
    parent = make_namespace("prod")
    answer = browser.post(
        f"/admin/catalog/namespace/add/?parent={parent.pk}",
        {"name": "new one", "properties": "a=1\n\nb = x=y\n"},
    )
    row = Namespace.objects.named(("prod", "new one")).get()
    assert answer.status_code == 302
    assert answer.headers["location"] == url(row)
    assert row.properties == {"a": "1", "b": "x=y"}
    event = last_event()
    assert (event.action, event.actor) == ("namespace.create", "user:ada")


def test_a_namespace_is_created_in_the_root(browser):
    assert browser.post("/admin/catalog/namespace/add/", {"name": "prod"}).status_code == 302
    assert Namespace.objects.named(("prod",)).get().owner == "user:ada"


def test_creating_an_existing_namespace_is_a_message(browser):
    make_namespace("prod")
    with unchanged():
        answer = browser.post("/admin/catalog/namespace/add/", {"name": "prod"})
    assert answer.status_code == 200
    assert messages_of(answer) == ["Namespace 'prod' exists already"]
    assert answer.context["form"].data["name"] == "prod"


@pytest.mark.parametrize(
    "form",
    [{"name": ""}, {"name": "a\x00b"}, {"name": "x" * 300}, {"name": "n", "properties": "no"}],
)
def test_invalid_namespaces_are_refused_in_the_form(browser, form):
    with unchanged():
        answer = browser.post("/admin/catalog/namespace/add/", form)
    assert answer.status_code == 200
    assert answer.context["form"].errors or messages_of(answer)


def test_a_namespace_is_dropped(browser):
    row = make_namespace("prod")
    assert browser.post(url(row, "drop")).status_code == 302
    row.refresh_from_db()
    assert row.dropped_at is not None
    event = last_event()
    assert (event.action, event.actor) == ("namespace.drop", "user:ada")


def test_dropping_a_namespace_with_content_is_a_message(browser):
    row = make_table("prod", "t").namespace
    with unchanged():
        answer = browser.post(url(row, "drop"))
    assert answer.status_code == 200
    (text,) = messages_of(answer)
    assert text.startswith("Namespace 'prod' is not empty: it holds 1 table and 0 namespaces. ")


def test_a_namespace_is_dropped_with_its_content(browser):
    table = make_table("prod", "deep", "t")
    row = Namespace.objects.named(("prod",)).get()
    assert browser.post(url(row, "drop"), {"cascade": "on"}).status_code == 302
    table.refresh_from_db()
    assert table.state == TableState.DROPPED


def test_the_root_is_not_dropped(browser):
    root = Namespace.objects.named(()).get()
    assert url(root, "drop") not in browser.get(url(root)).content.decode()
    with unchanged():
        answer = browser.post(url(root, "drop"))
    assert messages_of(answer) == ["The root namespace cannot be dropped"]


def test_staff_without_privileges_may_not_create_or_drop_namespaces(sign_in):
    row = make_namespace("prod")
    browser = sign_in("read")
    with unchanged():
        assert browser.post(url(row, "drop")).status_code == 403
        assert browser.post("/admin/catalog/namespace/add/", {"name": "x"}).status_code == 403


# --- jobs


def test_a_job_is_canceled(browser):
    row = make_table("prod", "t")
    commit([table_operations.DropTable(table=("prod", "t"))], actor=SYSTEM)
    job = row.jobs.get()
    assert browser.post(url(job, "cancel")).status_code == 302
    job.refresh_from_db()
    assert job.status == JobStatus.CANCELED
    assert job.transaction.status == TransactionStatus.CANCELED
    event = last_event()
    assert (event.action, event.actor) == ("transaction.alter", "user:ada")


def test_canceling_a_finished_job_is_a_message(browser):
    row = make_table("prod", "t")
    commit([table_operations.DropTable(table=("prod", "t"))], actor=SYSTEM)
    job = row.jobs.get()
    Job.objects.update(status=JobStatus.SUCCEEDED)
    job.transaction.status = TransactionStatus.SUCCEEDED
    job.transaction.save()
    assert url(job, "cancel") not in browser.get(url(job)).content.decode()
    with unchanged():
        answer = browser.post(url(job, "cancel"))
    assert messages_of(answer) == [
        f"Transaction '{job.transaction_id}' is Succeeded and cannot become Canceled"
    ]


# --- API keys


def test_a_new_key_is_shown_once(browser):
    answer = browser.post(
        "/admin/catalog/apikey/add/", {"name": "spark", "access": "read", "expires": ""}
    )
    assert answer.status_code == 200
    key = answer.context["key"]
    assert answer.content.decode().count(key) == 1
    assert "no-store" in answer.headers["cache-control"]
    row = ApiKey.objects.get(name="spark")
    assert row.digest == credentials.key_digest(key)
    assert key not in str(ApiKey.objects.filter(pk=row.pk).values()[0])
    assert authentication.authenticate(key).name == "spark"
    for page in ("/admin/catalog/apikey/", url(row), "/admin/", "/admin/catalog/auditevent/"):
        assert key not in browser.get(page).content.decode()
    assert key not in str(answer.cookies) + str(dict(browser.session))
    event = last_event()
    assert (event.action, event.actor) == ("api_key.create", "user:ada")
    assert key not in str(event.after)


def test_a_key_may_expire(browser):
    later = (timezone.now() + timedelta(days=3)).replace(second=0, microsecond=0)
    form = {"name": "spark", "access": "admin", "expires": later.strftime("%Y-%m-%dT%H:%M")}
    assert browser.post("/admin/catalog/apikey/add/", form).status_code == 200
    assert ApiKey.objects.get(name="spark").expires_at == later


def test_a_key_has_few_rights_and_an_expiry_by_default(browser):
    make_table("prod", "t")
    answer = browser.post("/admin/catalog/apikey/add/", {"name": "spark"})
    row = ApiKey.objects.select_related("principal").get(name="spark")
    lifetime = row.expires_at - timezone.now()
    assert timedelta(days=89, hours=23) < lifetime <= timedelta(days=90)
    assert row.principal.level == "granted"
    principal = authentication.authenticate(answer.context["key"])
    assert principal.everywhere == NOTHING
    for target in (access.On.table(("prod", "t")), access.On.namespace(("prod",))):
        for privilege in SINGLE:
            assert not access.holds(principal, privilege, target)
    assert not access.is_visible(principal, access.On.namespace(("prod",)))


def test_a_key_never_expires_only_if_the_box_is_checked(browser):
    form = {"name": "spark", "never_expires": "on"}
    assert browser.post("/admin/catalog/apikey/add/", form).status_code == 200
    assert ApiKey.objects.get(name="spark").expires_at is None
    page = browser.get("/admin/catalog/apikey/add/")
    assert page.context["form"].initial.get("never_expires") is None
    assert 'value="granted" selected' in page.content.decode()


@shared_cases(
    "form",
    [
        {"name": "a", "never_expires": "on", "expires": "2099-01-01T00:00"},
        {"name": "", "access": "read"},
        {"name": "a", "access": "root"},
        {"name": "a", "access": "read", "expires": "soon"},
        {"name": "a", "access": "read", "expires": "2001-01-01T00:00"},
        {"name": "x" * 101, "access": "read"},
    ],
)
def test_invalid_keys_are_refused_in_the_form(browser, form):
    with unchanged():
        answer = browser.post("/admin/catalog/apikey/add/", form)
    assert answer.status_code == 200
    assert answer.context["form"].errors


def test_a_duplicate_key_name_is_a_message(browser):
    form = {"name": "spark", "access": "read"}
    browser.post("/admin/catalog/apikey/add/", form)
    with unchanged():
        answer = browser.post("/admin/catalog/apikey/add/", form)
    assert messages_of(answer) == ["Principal 'spark' exists already, or another has its subject"]


def test_a_key_is_revoked(browser):
    browser.post("/admin/catalog/apikey/add/", {"name": "spark", "access": "read"})
    row = ApiKey.objects.get(name="spark")
    assert browser.post(url(row, "revoke")).status_code == 302
    row.refresh_from_db()
    assert row.revoked_at is not None
    event = last_event()
    assert (event.action, event.actor) == ("api_key.revoke", "user:ada")
    assert url(row, "revoke") not in browser.get(url(row)).content.decode()


def test_staff_without_privileges_may_not_create_or_revoke_keys(sign_in, browser):
    browser.post("/admin/catalog/apikey/add/", {"name": "spark", "access": "read"})
    row = ApiKey.objects.get(name="spark")
    other = sign_in("all")
    with unchanged():
        assert other.post(url(row, "revoke")).status_code == 403
        form = {"name": "x", "access": "read"}
        assert other.post("/admin/catalog/apikey/add/", form).status_code == 403


def test_a_table_is_repaired(browser):
    row = make_lance_table(("prod", "t"))
    lance_versions.settle(row)
    newest = str(final_path(row, 2)).lstrip("/")
    TableVersion.objects.create(table=row, version=2, manifest_path=newest)
    lance_datasets.clear_caches()
    page = browser.get(url(row, "repair")).content.decode()
    fault = "version 2, the newest: its manifest is missing"
    assert f"Main: newest version 2, last complete version 1, {fault}." in page
    assert TableVersion.objects.visible().count() == 2
    answer = browser.post(url(row, "repair"))
    assert answer.status_code == 302
    event = last_event()
    assert (event.action, event.actor) == ("version.repair", "user:ada")
    assert event.after["retired"] == [[2, 3]]
    numbers = TableVersion.objects.visible().order_by("version").values_list("version", flat=True)
    assert list(numbers) == [1, 3]
    assert (
        messages_of(browser.post(url(row, "repair")))[-1] == "Table 'prod.t' does not need repair."
    )


def test_versions_show_their_events(browser):
    row = make_table("prod", "t")
    for version in range(1, 4):
        make_version(("prod", "t"), version)
    commit([version_operations.DeleteVersions(table=("prod", "t"), ranges=((1, 2),))], actor=SYSTEM)
    page = browser.get(f"{url(row)}?tab=versions").content.decode()
    assert page.count("deleted") == 1
