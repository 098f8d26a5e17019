"""Restoring, rolling back and tagging from the history: forms, links and privileges."""

import pytest

from catalog.access import SYSTEM
from catalog.models import Table
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.lance import datasets
from catalog.services.lance.refs import branches as lance_branches
from catalog.services.lance.refs import tags as lance_tags
from tests.cases import shared_cases
from tests.catalog.admin.iceberg.test_pages import url
from tests.catalog.admin.lance.test_page import insert
from tests.catalog.services.iceberg.writing import open_table, rows
from tests.factories import make_iceberg_table, make_lance_table, unchanged


@pytest.fixture
def lance_table(warehouse, db) -> Table:
    row = make_lance_table(("prod", "events"))
    insert(row)
    return row


@pytest.fixture
def iceberg_table(warehouse, db) -> Table:
    make_iceberg_table("prod", "visits")
    table = open_table("prod", "visits")
    table.append(rows(1))
    table.append(rows(2))
    return Table.objects.get(name="visits")


def form(row: Table, action: str, **parameters) -> str:
    query = "&".join(f"{name}={value}" for name, value in parameters.items())
    return f"/admin/catalog/table/{row.pk}/{action}/?{query}"


def document(row: Table):
    return iceberg_tables.load_table(actor=SYSTEM, table=row.identifier).document


def snapshot_ids(row: Table) -> list[int]:
    return [snapshot["snapshot-id"] for snapshot in document(row)["snapshots"]]


def messages(answer) -> list[str]:
    return [str(message) for message in answer.context["messages"]]


# --- Lance


def test_a_version_is_restored_after_a_confirmation(browser, lance_table):
    address = form(lance_table, "restore", version=1)
    assert "Restore version 1 of table" in browser.get(address).content.decode()
    newest = datasets.read(actor=SYSTEM, table=lance_table.identifier)
    assert (newest.version, newest.count_rows()) == (2, 6)
    answer = browser.post(address, follow=True)
    assert messages(answer) == ["Version 1 of table 'prod.events' was restored as version 3"]
    newest = datasets.read(actor=SYSTEM, table=lance_table.identifier)
    assert (newest.version, newest.count_rows()) == (3, 3)


def test_a_version_of_a_branch_is_restored_on_the_branch(browser, lance_table):
    name = lance_table.identifier
    lance_branches.create_branch(actor=SYSTEM, table=name, name="dev", from_version=2)
    insert(lance_table, branch="dev")
    browser.post(form(lance_table, "restore", version=2, branch="dev"))
    assert datasets.read(actor=SYSTEM, table=name, branch="dev").count_rows() == 6
    assert datasets.read(actor=SYSTEM, table=name).version == 2


def test_a_version_is_tagged(browser, lance_table):
    address = form(lance_table, "tag", version=1)
    answer = browser.post(address, {"name": "first"}, follow=True)
    assert messages(answer) == ["Tag 'first' of table 'prod.events' names version 1"]
    assert lance_tags.resolve(actor=SYSTEM, table=lance_table.identifier, tag="first") == ("", 1)
    assert messages(browser.post(address, {"name": "first"})) == [
        "Table 'prod.events' has tag 'first' already"
    ]


@shared_cases("version", ["", "9", "-1", "x", "9" * 19, "9" * 40])
def test_versions_that_do_not_exist_are_refused(browser, lance_table, version):
    with unchanged():
        for action, data in (("restore", {}), ("tag", {"name": "first"})):
            answer = browser.post(form(lance_table, action, version=version), data)
            assert answer.status_code == 200
            assert len(messages(answer)) == 1


# --- Iceberg


def test_a_table_is_rolled_back_after_a_confirmation(browser, iceberg_table):
    first, second = snapshot_ids(iceberg_table)
    address = form(iceberg_table, "restore", snapshot=first)
    assert f"back to snapshot {first}?" in browser.get(address).content.decode()
    assert document(iceberg_table)["current-snapshot-id"] == second
    answer = browser.post(address, follow=True)
    assert messages(answer) == [f"Table 'prod.visits' was rolled back to snapshot {first}"]
    assert document(iceberg_table)["current-snapshot-id"] == first
    assert snapshot_ids(iceberg_table) == [first, second]
    # The second is now later than main, so main cannot be rolled back to it.
    answer = browser.post(form(iceberg_table, "restore", snapshot=second))
    assert "is not an earlier snapshot of branch main" in messages(answer)[0]
    answer = browser.post(form(iceberg_table, "restore", snapshot=1))
    assert messages(answer) == ["Table 'prod.visits' has no snapshot 1; choose one of its history"]


def test_a_roll_back_keeps_the_retention_of_main(browser, iceberg_table):
    table = open_table("prod", "visits")
    first, second = snapshot_ids(iceberg_table)
    table.manage_snapshots().create_branch(second, "main", min_snapshots_to_keep=7).commit()
    browser.post(form(iceberg_table, "restore", snapshot=first))
    assert document(iceberg_table)["refs"]["main"] == {
        "type": "branch",
        "snapshot-id": first,
        "min-snapshots-to-keep": 7,
    }


def test_a_snapshot_is_tagged(browser, iceberg_table):
    first, _ = snapshot_ids(iceberg_table)
    address = form(iceberg_table, "tag", snapshot=first)
    answer = browser.post(address, {"name": "v1"}, follow=True)
    assert messages(answer) == [f"Tag 'v1' of table 'prod.visits' names snapshot {first}"]
    assert document(iceberg_table)["refs"]["v1"] == {"type": "tag", "snapshot-id": first}
    for name in ("v1", "main"):
        refused = messages(browser.post(address, {"name": name}))
        assert refused == [f"Table 'prod.visits' has tag '{name}' already"]


@shared_cases("snapshot", ["", "1", "x", "9" * 19, str(2**63 - 1), "9" * 40])
def test_snapshots_that_do_not_exist_are_refused(browser, iceberg_table, snapshot):
    with unchanged():
        for action, data in (("restore", {}), ("tag", {"name": "v1"})):
            answer = browser.post(form(iceberg_table, action, snapshot=snapshot), data)
            assert answer.status_code == 200
            assert len(messages(answer)) == 1


def test_the_graph_of_snapshots_has_branches_and_tags(browser, iceberg_table):
    first, second = snapshot_ids(iceberg_table)
    browser.post(form(iceberg_table, "tag", snapshot=first), {"name": "v1"})
    browser.post(form(iceberg_table, "restore", snapshot=first))
    open_table("prod", "visits").append(rows(3))
    third = snapshot_ids(iceberg_table)[-1]
    drawn = str(browser.get(url(iceberg_table, "refs")).context["panels"][0].lead)
    assert drawn.count("<circle") == 3
    # The second and the third have the first as their parent, so there are two lanes.
    assert drawn.count('class="m-edge"') == 2
    assert len({part.split('"')[0] for part in drawn.split('cx="')[1:]}) == 2
    for id_, mark in ((first, "tag v1"), (third, "branch main"), (second, "append")):
        after = drawn[drawn.index(f">{id_}<") :]
        assert mark in after[: after.index("</a>")]


# --- privileges


@pytest.mark.parametrize("which", ["lance_table", "iceberg_table"])
def test_readers_have_no_links_and_no_forms(which, sign_in, request):
    row = request.getfixturevalue(which)
    reader = sign_in("read")
    tab = "versions" if which == "lance_table" else "snapshots"
    page = reader.get(url(row, tab)).content.decode()
    assert "Data</a>" in page
    for action in ("restore", "tag"):
        assert f"/{action}/?" not in page
    target = {"version": 1} if which == "lance_table" else {"snapshot": snapshot_ids(row)[0]}
    with unchanged():
        for action in ("restore", "tag"):
            address = form(row, action, **target)
            assert reader.get(address).status_code == 403
            assert reader.post(address, {"name": "first"}).status_code == 403


@pytest.mark.parametrize("which", ["lance_table", "iceberg_table"])
def test_users_without_privileges_cannot_open_the_forms(which, sign_in, request):
    row = request.getfixturevalue(which)
    stranger = sign_in()
    with unchanged():
        for action in ("restore", "tag"):
            answer = stranger.post(form(row, action, version=1, snapshot=1), {"name": "first"})
            assert answer.status_code in {403, 404}


@pytest.mark.parametrize("which", ["lance_table", "iceberg_table"])
def test_writers_have_the_links_and_the_forms(which, sign_in, request):
    row = request.getfixturevalue(which)
    writer = sign_in("write")
    tab = "versions" if which == "lance_table" else "snapshots"
    page = writer.get(url(row, tab)).content.decode()
    target = {"version": 1} if which == "lance_table" else {"snapshot": snapshot_ids(row)[0]}
    for action in ("restore", "tag"):
        assert form(row, action, **target) in page
    assert writer.post(form(row, "tag", **target), {"name": "first"}).status_code == 302
    assert writer.post(form(row, "restore", **target)).status_code == 302


def test_a_dropped_table_has_no_links_and_refuses(browser, lance_table):
    address = form(lance_table, "restore", version=1)
    browser.post(f"/admin/catalog/table/{lance_table.pk}/drop/")
    assert "/restore/?" not in browser.get(url(lance_table, "versions")).content.decode()
    assert messages(browser.post(address)) == ["Table 'prod.events' does not exist"]
