"""The buttons of Iceberg tables and views, which call the services as the user."""

import pytest

from catalog.access import SYSTEM
from catalog.models import AuditEvent, JobStatus, Table, TableState, TrashItem
from catalog.services.iceberg import tables as iceberg_tables
from tests.catalog.admin.iceberg.iceberg_rows import make_view
from tests.catalog.admin.test_actions import last_event, messages_of, url
from tests.factories import make_iceberg_table, make_namespace, make_table, unchanged


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch):
    monkeypatch.setattr("celery.current_app.send_task", lambda *a, **k: None)


def table(*identifier: str) -> Table:
    return Table.objects.get(pk=make_iceberg_table(*identifier).pk)


def undrop_link(row: Table) -> str:
    item = TrashItem.objects.get(table=row)
    return f'<a class="m-link" href="{url(item, "undrop")}">Undrop</a>'


def test_the_form_to_drop_a_table_offers_to_remove_its_data(browser):
    row = table("prod", "t")
    with unchanged():
        page = browser.get(url(row, "drop")).content.decode()
    assert "Drop table &#x27;prod.t&#x27;?" in page
    assert f"The data at {row.location} is kept" in page
    assert 'name="purge"' in page


def test_a_drop_keeps_the_data(browser):
    row = table("prod", "t")
    answer = browser.post(url(row, "drop"), headers={"x-request-id": "press-1"})
    assert answer.headers["location"] == url(row)
    row.refresh_from_db()
    assert row.state == TableState.DROPPED
    assert not row.jobs.exists()
    assert messages_of(answer) == [f"Table &#x27;prod.t&#x27; was dropped. {undrop_link(row)}"]
    event = last_event()
    assert (event.action, event.target, event.actor) == ("table.drop", "prod.t", "user:ada")
    assert event.request_id == "press-1"


def test_a_drop_with_purge_starts_a_job(browser):
    row = table("prod", "t")
    answer = browser.post(url(row, "drop"), {"purge": "on"})
    assert answer.headers["location"] == f"{url(row)}?tab=jobs"
    row.refresh_from_db()
    assert row.state == TableState.DROPPED
    assert row.jobs.get().status == JobStatus.QUEUED
    assert messages_of(answer) == [
        "Table &#x27;prod.t&#x27; was dropped; its data is removed when its retention ends. "
        + undrop_link(row)
    ]
    assert browser.get(answer.headers["location"]).context["panels"][0].rows


def test_a_deregistration_keeps_the_data(browser):
    row = table("prod", "t")
    assert browser.post(url(row, "deregister")).status_code == 302
    row.refresh_from_db()
    assert row.state == TableState.DROPPED
    assert not row.jobs.exists()
    assert (last_event().action, last_event().actor) == ("table.deregister", "user:ada")


def test_a_table_is_renamed_into_another_namespace(browser):
    row = table("prod", "t")
    make_namespace("prod", "old")
    answer = browser.post(url(row, "rename"), {"namespace": "prod$old", "name": "t2"})
    assert answer.status_code == 302
    row = Table.objects.select_related("namespace").get(pk=row.pk)
    assert row.identifier == ("prod", "old", "t2")
    assert (last_event().action, last_event().actor) == ("table.rename", "user:ada")


def test_renaming_a_table_to_an_existing_name_is_a_message(browser):
    row = table("prod", "t")
    make_table("prod", "u")
    make_view("prod", "v")
    for name, holder in (("u", "Table"), ("v", "View")):
        with unchanged():
            answer = browser.post(url(row, "rename"), {"namespace": "prod", "name": name})
        assert answer.status_code == 200
        assert messages_of(answer) == [
            f"Cannot rename prod.t to prod.{name}. {holder} already exists"
        ]


def test_a_view_is_dropped_without_a_job(browser):
    row = make_view("prod", "v")
    page = browser.get(url(row, "drop")).content.decode()
    assert "Drop view &#x27;prod.v&#x27;?" in page
    assert 'name="purge"' not in page
    answer = browser.post(url(row, "drop"), {"purge": "on"})
    assert messages_of(answer) == ["View 'prod.v' was dropped"]
    row.refresh_from_db()
    assert row.state == TableState.DROPPED
    assert not row.jobs.exists()
    event = last_event()
    assert (event.action, event.target, event.actor) == ("view.drop", "prod.v", "user:ada")


def test_a_view_is_renamed(browser):
    row = make_view("prod", "v")
    answer = browser.post(url(row, "rename"), {"namespace": "prod", "name": "w"})
    assert messages_of(answer) == ["View 'prod.v' is now 'prod.w'"]
    assert Table.objects.select_related("namespace").get(pk=row.pk).identifier == ("prod", "w")
    event = last_event()
    assert (event.action, event.target, event.actor) == ("view.rename", "prod.w", "user:ada")


def test_renaming_a_view_to_an_existing_name_is_a_message(browser):
    row = make_view("prod", "v")
    make_table("prod", "u")
    with unchanged():
        answer = browser.post(url(row, "rename"), {"namespace": "prod", "name": "u"})
    assert messages_of(answer) == ["Cannot rename prod.v to prod.u. Table already exists"]


def test_a_view_cannot_be_deregistered(browser):
    row = make_view("prod", "v")
    with unchanged():
        answer = browser.post(url(row, "deregister"))
    assert messages_of(answer) == ["Table 'prod.v' does not exist. A view of this name exists."]


@pytest.mark.parametrize("action", ["drop", "deregister", "rename"])
def test_the_page_of_a_dropped_table_does_not_change_a_new_table_of_its_name(browser, action):
    row = table("prod", "t")
    iceberg_tables.drop_table(actor=SYSTEM, table=("prod", "t"))
    table("prod", "t")
    with unchanged():
        answer = browser.post(url(row, action), {"namespace": "prod", "name": "u"})
    assert messages_of(answer) == ["Table 'prod.t' does not exist"]


def test_the_page_of_a_dropped_view_does_not_change_a_new_view_of_its_name(browser):
    row = make_view("prod", "v")
    Table.objects.filter(pk=row.pk).update(state=TableState.DROPPED)
    make_view("prod", "v")
    with unchanged():
        answer = browser.post(url(row, "drop"))
    assert messages_of(answer) == ["View 'prod.v' does not exist"]


def test_the_page_of_a_dropped_table_has_facts_but_no_buttons(browser):
    row = table("prod", "t")
    iceberg_tables.drop_table(actor=SYSTEM, table=("prod", "t"), purge=True)
    page = browser.get(url(row))
    assert [line[1] for line in page.context["panels"][0].rows]
    assert "/drop/" not in page.content.decode()
    assert "load_catalog" not in page.content.decode()


@pytest.mark.parametrize("make", [table, make_view])
def test_buttons_require_privileges(sign_in, make):
    row = make("prod", "t")
    browser = sign_in("read")
    events = AuditEvent.objects.count()
    for action in ("drop", "deregister", "rename"):
        assert browser.post(url(row, action)).status_code == 403
    assert AuditEvent.objects.count() == events
