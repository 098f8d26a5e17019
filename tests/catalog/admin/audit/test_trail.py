"""The pages of the audit trail: search, changes, export."""

import html
import json
import re
import uuid
from datetime import UTC, datetime

import pytest

from catalog.models import AuditEvent
from catalog.models.transactions import new_transaction_id
from catalog.services.audit import chain as audit_chain
from tests.factories import make_table
from tests.sealing import seal_all

LIST = "/admin/catalog/auditevent/"


def make(**facts) -> AuditEvent:
    values = {
        "actor": "ada",
        "action": "tag.create",
        "target": "ws.t",
        "interface": "lance",
        **facts,
    }
    return AuditEvent.objects.create(**values)


def text(response) -> str:
    assert response.status_code == 200, response.status_code
    return html.unescape(response.content.decode())


def listed(browser, query: str = "") -> list[int]:
    page = text(browser.get(f"{LIST}?{query}"))
    keys = re.findall(rf'href="{LIST}(\d+)/change/', page)
    return [int(pk) for pk in dict.fromkeys(keys)]


def test_each_filter_selects_events(browser, warehouse):
    table = make_table("ws", "t")
    at = datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC)
    event = make(
        at=at,
        actor="bob",
        action="tag.delete",
        target="old.name",
        interface="iceberg",
        outcome="refused",
        error="PermissionDenied: 'bob' may not write 'old.name'",
        key="laptop",
        request_id="req-7",
        transaction_id=new_transaction_id(),
        table_uuid=table.uuid,
    )
    make(target="old.names")
    for query in (
        "actor=bob",
        "action=tag.delete",
        "target=old",
        "interface=iceberg",
        "outcome=refused",
        "key=laptop",
        "request_id=req-7",
        f"transaction={event.transaction_id}",
        "at_from=2026-01-31&at_to=2026-01-31",
        f"q={event.transaction_id}",
        "q=bob",
        "q=laptop",
        "q=req-7",
        "q=OLD.NAME&actor=bob",
        "outcome=refused&actor=bob&interface=iceberg&action=tag.delete&key=laptop",
    ):
        keys = listed(browser, query)
        if query == "target=old":
            assert event.pk in keys
        else:
            assert keys == [event.pk], query
    for query in ("q=ws.t", f"q={table.uuid}"):
        keys = listed(browser, query)
        assert event.pk in keys, "under every name that it had"
        assert len(keys) == 2
    page = text(browser.get(f"{LIST}?outcome=refused"))
    assert "PermissionDenied: 'bob' may not write" in page
    for query in (
        "transaction=nonsense",
        "at_from=nonsense",
        "at_to=9999-12-31",
        "actor=%00",
        "before=nonsense",
        f"q={uuid.uuid4()}",
        "at_from=2026-02-01&at_to=2026-02-28",
    ):
        assert browser.get(f"{LIST}?{query}").status_code == 200, query


def test_a_slow_search_is_limited_and_links_to_earlier_events(browser, monkeypatch):
    monkeypatch.setattr("catalog.admin.audit.trail.SEARCHED", 5)
    old = make(key="wanted")
    rows = [make() for _ in range(8)]
    page = text(browser.get(f"{LIST}?key=wanted"))
    assert "Search earlier events" in page
    floor = rows[-1].pk + 1 - 5
    assert f"key=wanted&before={floor}" in page
    assert listed(browser, "key=wanted") == []
    assert listed(browser, f"key=wanted&before={floor}") == [old.pk]
    assert len(listed(browser, "actor=ada")) == 9, "an index leads to them"
    assert "Search earlier events" not in text(browser.get(LIST))


def test_a_list_takes_a_fixed_number_of_queries(browser, django_assert_num_queries):
    for _ in range(40):
        make(outcome="refused")
    for query, count in (("", 3), ("outcome=refused", 3), ("key=a", 4), ("q=nobody", 5)):
        with django_assert_num_queries(count):
            browser.get(f"{LIST}?{query}")


@pytest.mark.django_db(transaction=True)
def test_an_event_shows_its_changes_and_its_seal(browser):
    row = make(
        before={"properties": {"owner": "ada", "same": 1}, "location": "a"},
        after={"properties": {"owner": "bob", "same": 1, "new": [1]}, "location": ""},
        outcome="refused",
        error="Conflict: no",
        key="laptop",
    )
    url = f"{LIST}{row.pk}/change/"
    assert "pending" in text(browser.get(url))
    seal_all()
    page = text(browser.get(url))
    assert audit_chain.newest_seal().hash.hex() in page
    assert "Conflict: no" in page
    assert "laptop" in page
    cells = re.sub(r"<[^>]+>|\s+", " ", page)
    assert re.search(r"properties\.owner\s+− ada\s+\+ bob", cells)
    assert re.search(r"properties\.new\s+–\s+\+\s+1\s", cells)
    assert re.search(r"location\s+− a\s+\+\s+empty", cells)
    assert re.search(r"properties\.same\s+1\s+unchanged", cells)


def test_texts_of_events_are_escaped(browser):
    bad = "<script>alert(1)</script>"
    row = make(actor=bad, target=bad, key=bad, error=bad, request_id=bad, after={bad: bad})
    for url in (LIST, f"{LIST}{row.pk}/change/"):
        page = browser.get(url).content.decode()
        assert bad not in page
        assert html.escape(bad) in page


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_an_export_applies_the_filter(browser, kind):
    matching = [make(key="laptop"), make(key="laptop")]
    make()
    page = text(browser.get(f"{LIST}?key=laptop"))
    (url,) = re.findall(rf'href="([^"]+export/\?[^"]*format={kind})"', page)
    assert "key=laptop" in url
    response = browser.get(url)
    assert response.status_code == 200
    assert f".{kind}" in response["content-disposition"]
    lines = b"".join(response.streaming_content).decode().splitlines()
    if kind == "jsonl":
        assert [json.loads(line)["id"] for line in lines] == [row.pk for row in matching]
    else:
        assert [line.split(",")[0] for line in lines] == ["id", *(str(row.pk) for row in matching)]
    event = AuditEvent.objects.get(action="audit.export")
    assert (event.actor, event.interface) == ("user:ada", "admin")
    assert event.after["search"] == {"key": "laptop"}


def test_an_export_requires_access_to_the_trail(sign_in, browser):
    make()
    stranger = sign_in()
    assert stranger.get(f"{LIST}export/?format=csv").status_code == 403
    assert browser.get(f"{LIST}export/?format=xml").status_code == 302
    assert browser.get(f"{LIST}export/?format=csv&transaction=x").status_code == 400
    assert not AuditEvent.objects.filter(action="audit.export").exists()


def test_events_are_read_only(browser):
    row = make()
    for url in (f"{LIST}add/", f"{LIST}{row.pk}/delete/"):
        assert browser.get(url).status_code == 403
    browser.post(f"{LIST}{row.pk}/change/", {"actor": "mallory"})
    assert AuditEvent.objects.get(pk=row.pk).actor == "ada"
