"""The history of a Lance table: operations, amounts, interfaces, the graph, and limits of what is read."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from django.utils import timezone

from catalog.access import SYSTEM
from catalog.admin import commit_graph
from catalog.admin.commit_graph import Commit, Mark
from catalog.admin.lance import versions
from catalog.models import Table, TableVersion
from catalog.models.audit import Interface
from catalog.services.lance import data as lance_data
from catalog.services.lance import datasets, metadata
from catalog.services.lance.ledger import history, manifests
from catalog.services.lance.refs import branches as lance_branches
from catalog.services.lance.refs import tags as lance_tags
from tests.catalog.admin.iceberg.test_pages import rows, url, words
from tests.catalog.admin.lance.test_page import BOB, EVIL, delete, index, insert, table
from tests.factories import make_lance_table


@pytest.fixture
def row(warehouse, db) -> Table:
    return make_lance_table(("prod", "events"))


def lines(browser, row, **more):
    """Operation, rows, data files, actor and interface of each version, newest first."""
    return [line[2:7] for line in rows(browser, url(row, "versions", **more))]


def test_each_version_shows_its_operation_and_amounts(browser, row):
    insert(row)
    insert(row, table(count=10))
    delete(row, "id = 2")
    index(row)
    metadata.restore(actor=BOB, table=row.identifier, version=2)
    assert lines(browser, row) == [
        ["Restore", "+2 −9 of 6", "−1", "key:bob", "–"],
        ["CreateIndex", "– of 13", "–", "system", "System"],
        ["Delete", "−3 of 13", "–", "key:bob", "–"],
        ["Append", "+10 of 16", "+1", "key:bob", "–"],
        ["Append", "+3 of 6", "+1", "key:bob", "–"],
        ["Overwrite", "+3 of 3", "+1", "system", "System"],
    ]


def test_the_interface_comes_from_the_audit_trail(browser, row):
    lance_data.insert(
        actor=replace(BOB, interface=Interface.LANCE.value),
        table=row.identifier,
        data=table().to_reader(),
    )
    assert [line[4] for line in lines(browser, row)] == ["Lance", "System"]


def test_a_page_continues_after_its_versions(browser, row, monkeypatch):
    monkeypatch.setattr(versions, "PANEL_SIZE", 2)
    for _ in range(3):
        insert(row)
    assert [line[1] for line in lines(browser, row)] == ["+3 of 12", "+3 of 9"]
    assert [line[1] for line in lines(browser, row, before=3)] == ["+3 of 6", "+3 of 3"]


def test_amounts_are_unknown_after_a_deleted_version(browser, row):
    insert(row)
    insert(row)
    TableVersion.objects.filter(table=row, version=2).update(deleted_at=timezone.now())
    shown = rows(browser, url(row, "versions"))
    assert [line[0] for line in shown[1:]] == ["2 deleted", "1"]
    panel = browser.get(url(row, "versions")).context["panels"][0]
    actions = [words(content).partition("Manifest")[0].strip() for content in panel.below]
    assert actions == ["Data Schema Compare Tag", "", "Data Schema Restore Tag"]
    assert shown[0][2:5] == ["Append", "– of 9", "–"]
    assert shown[1][2:5] == ["InsertIntoTable", "–", "–"]


def test_manifests_beyond_the_limit_are_not_read(browser, row, monkeypatch):
    insert(row)
    monkeypatch.setattr(history, "MAX_BYTES", 1)
    panel = browser.get(url(row, "versions")).context["panels"][0]
    assert [words(line[3]) for line in panel.rows] == ["–", "–"]
    assert panel.note.startswith("At most ")


@pytest.mark.parametrize("is_link", [True, False])
def test_a_manifest_that_is_a_link_or_damaged_is_not_read(browser, row, tmp_path, is_link):
    insert(row)
    datasets.read(actor=SYSTEM, table=row.identifier)  # moves the manifest to its final name
    entry = TableVersion.objects.get(table=row, version=2)
    path = Path(row.location, "_versions", Path(entry.manifest_path).name)
    if is_link:
        shutil.copy(path, tmp_path / "manifest")
        path.unlink()
        path.symlink_to(tmp_path / "manifest")
    else:
        path.write_bytes(b"LANC")
    shown = lines(browser, row)
    assert shown[0][:3] == ["InsertIntoTable", "–", "–"]
    assert shown[1][:3] == ["Overwrite", "+3 of 3", "+1"]


def test_a_manifest_outside_the_table_is_not_read(row):
    other = make_lance_table(("prod", "other"))
    entry = TableVersion.objects.get(table=row)
    entry.manifest_path = TableVersion.objects.get(table=other).manifest_path
    entry.staged_path = None
    assert history.changes(row, [entry]) == {}


def test_each_manifest_is_read_once_and_then_cached(row, monkeypatch):
    insert(row)
    insert(row)
    read = []
    content = manifests.content
    monkeypatch.setattr(
        manifests, "content", lambda **more: read.append(more["version"]) or content(**more)
    )
    entries = list(TableVersion.objects.filter(table=row).order_by("-version"))
    first = history.changes(row, entries)
    assert {3, 2, 1} == set(read)
    count = len(read)
    assert history.changes(row, entries) == first
    assert len(read) == count


# --- the graph


def graph(browser, row):
    return str(browser.get(url(row, "refs")).context["panels"][0].lead)


def test_the_graph_has_branches_and_tags(browser, row):
    insert(row)
    lance_branches.create_branch(actor=SYSTEM, table=row.identifier, name="dev", from_version=2)
    insert(row, branch="dev")
    insert(row)
    lance_tags.create_tag(actor=SYSTEM, table=row.identifier, tag="first", version=1)
    drawn = graph(browser, row)
    assert words(re.sub(r"[0-9-]+ [0-9:]+ UTC", "", drawn)) == (
        "Version 3 branch main Version 3 branch dev Version 2 Version 2 Version 1 tag first"
    )
    assert drawn.count("<circle") == 5
    assert drawn.count('class="m-edge"') == 4  # only the first version has no parent
    assert "m-gap" not in drawn
    assert "?tab=versions&amp;branch=dev&amp;before=4" in drawn


def test_versions_that_are_left_out_are_dashed(browser, row, monkeypatch):
    for _ in range(4):
        insert(row)
    lance_tags.create_tag(actor=SYSTEM, table=row.identifier, tag="first", version=1)
    monkeypatch.setattr(versions, "_OF_BRANCH", 2)
    drawn = graph(browser, row)
    assert drawn.count("<circle") == 3
    assert drawn.count("m-gap") == 1


def test_names_in_the_graph_are_escaped(browser, row):
    commit = Commit("a", None, EVIL, EVIL, "/?a=1&b=2", [Mark(EVIL, is_tag=True)])
    assert "<script" not in commit_graph.graph([commit])


def test_users_without_read_see_no_history(sign_in, row):
    insert(row)
    browsing = sign_in("browse")
    for tab in ("versions", "refs"):
        page = browsing.get(url(row, tab))
        assert page.status_code == 200
        assert "Append" not in page.content.decode()
        assert 'class="m-scroll m-commits' not in page.content.decode()
