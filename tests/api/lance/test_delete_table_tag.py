import pytest

from catalog.models import AuditEvent, Transaction
from tests.api.lance.test_concurrency import WON, key, post, race  # noqa: F401 -- a fixture
from tests.cases import shared_cases
from tests.factories import make_lance_table, make_table, open_lance

PATH = "/v1/table/w$t/tags/delete"
pytestmark = [
    pytest.mark.django_db,
    pytest.mark.operation("DeleteTableTag"),
    pytest.mark.usefixtures("everywhere"),
]


def test_the_tag_is_deleted_and_its_version_stays(lance):
    table = make_lance_table(("w", "t"))
    lance.post("/v1/table/w$t/tags/create", {"tag": "v1", "version": 1})
    answer = lance.post(PATH, {"tag": "v1"})
    assert open_lance(table.location).tags.list() == {}
    assert lance.post("/v1/table/w$t/version/describe", {"version": 1})["version"]["version"] == 1
    event = AuditEvent.objects.get(action="tag.delete")
    assert (event.before, event.after) == ({"tag": "v1", "version": 1}, {"tag": "v1"})
    (operation,) = Transaction.objects.get(pk=answer["transaction_id"]).operations
    assert operation == {"operation": "DeleteTableTag", "target": "w.t", "tag": "v1"}
    lance.refused(404, 8, "'v1'", PATH, {"tag": "v1"})
    lance.post("/v1/table/w$t/tags/create", {"tag": "v1", "version": 1})


def test_tags_of_clients(lance, everywhere):
    """Includes tags that Lance cannot list and invalid tag files, which could not be removed
    otherwise."""
    table = make_lance_table(("w", "t"))
    dataset = open_lance(table.location)
    dataset.tags.create("é", 1)
    everywhere.write(f"{table.location}/_refs/tags/bad.json", b"{")
    for name in ("é", "bad"):
        lance.post(PATH, {"tag": name})
    assert dataset.tags.list() == {}
    assert AuditEvent.objects.filter(action="tag.delete").latest("pk").before is None


@pytest.fixture
def branch(lance) -> None:
    make_lance_table(("w", "t"))
    lance.post("/v1/table/w$t/branches/create", {"name": "dev"})


@shared_cases("name", ["nope", "", "a/b", "..", "../branches/dev", "x" * 5000])
def test_unknown(lance, branch, name):
    lance.refused(404, 8, "has no tag", PATH, {"tag": name})
    assert list(lance.post("/v1/table/w$t/branches/list")["branches"]) == ["dev"]


def test_refusals(lance, reader):
    lance.refused(404, 1, "'w'", PATH, {"tag": "v1"})
    make_table("w", "t")
    lance.refused(409, 19, "declared", PATH, {"tag": "v1"})
    lance.refused(404, 4, "'w.u'", "/v1/table/w$u/tags/delete", {"tag": "v1"})
    for body in ({}, {"tag": None}, {"tag": 1}):
        lance.refused(400, 13, "tag", PATH, body)
    reader.refused(403, 15, "", PATH, {"tag": "v1"})


@pytest.mark.django_db(transaction=True)
def test_concurrent_deletes_of_one_tag(key):  # noqa: F811
    table = make_lance_table(("w", "t"))
    for _ in range(3):
        open_lance(table.location).tags.create("v1", 1)
        outcome = race(key, *[post(PATH, {"tag": "v1"})] * 4)
        assert sorted(outcome) == [WON] + [(404, 8)] * 3
    assert AuditEvent.objects.filter(action="tag.delete").count() == 3
