import json
from datetime import timedelta

import pyarrow as pa
import pytest

from catalog.access import SYSTEM
from catalog.models import AuditEvent, Table, Transaction
from catalog.services.lance.refs import tags as lance_tags
from tests.api.client import Lance, stream
from tests.api.lance.test_concurrency import WON, key, post, race  # noqa: F401 -- a fixture
from tests.cases import shared_cases
from tests.factories import files, make_iceberg_table, make_lance_table, make_table, open_lance

PATH = "/v1/table/w$t/tags/create"
pytestmark = [
    pytest.mark.django_db,
    pytest.mark.operation("CreateTableTag"),
    pytest.mark.usefixtures("everywhere"),
]


def insert(lance: Lance, *values: int, branch: str = "") -> int:
    added = lance.post(
        f"/v1/table/w$t/insert?branch={branch}", raw=stream(pa.table({"a": list(values)}))
    )
    return added["version"]


def test_a_tag_is_stored_where_clients_read_it(lance):
    table = make_lance_table(("w", "t"), pa.table({"a": [1, 2]}))
    insert(lance, 3)
    answer = lance.post(PATH, {"tag": "v1", "version": 1})
    assert set(answer) == {"transaction_id"}
    dataset = open_lance(table.location)
    assert dataset.tags.get_version("v1") == 1
    assert dataset.checkout_version("v1").to_table()["a"].to_pylist() == [1, 2]
    written = json.loads(files(table.location)["_refs/tags/v1.json"])
    assert (written["branch"], written["version"]) == (None, 1)
    manifest = files(table.location)[f"_versions/{2**64 - 2}.manifest"]
    assert written["manifestSize"] == len(manifest)


def test_a_tag_is_audited(lance):
    table = make_lance_table(("w", "t"))
    answer = lance.post(PATH, {"tag": "v1", "version": 1}, headers={"x-lance-ctx-why": "release"})
    event = AuditEvent.objects.get(action="tag.create")
    assert (event.actor, event.target, event.table_uuid) == ("tester", "w.t", table.uuid)
    assert (event.before, event.after) == (None, {"tag": "v1", "version": 1})
    assert event.context == {"why": "release"}
    assert str(event.transaction_id) == answer["transaction_id"]
    assert Transaction.objects.get(pk=answer["transaction_id"]).operations == [
        {"operation": "CreateTableTag", "target": "w.t", "tag": "v1", "version": 1}
    ]


def test_on_a_branch(lance):
    table = make_lance_table(("w", "t"), pa.table({"a": [1]}))
    lance.post("/v1/table/w$t/branches/create", {"name": "dev"})
    assert insert(lance, 2, branch="dev") == 2
    lance.post(PATH, {"tag": "d", "version": 2, "branch": "dev"})
    lance.post(PATH, {"tag": "m", "version": 1, "branch": "main"})
    assert AuditEvent.objects.filter(action="tag.create").latest("pk").after == {
        "tag": "m",
        "version": 1,
    }
    tags = open_lance(table.location).tags.list()
    assert (tags["d"]["branch"], tags["d"]["version"]) == ("dev", 2)
    assert (tags["m"]["branch"], tags["m"]["version"]) == (None, 1)
    assert lance_tags.resolve(actor=SYSTEM, table=("w", "t"), tag="d") == ("dev", 2)
    # Main has no version 2, and the branch no version 3.
    lance.refused(404, 11, "no version 2", PATH, {"tag": "x", "version": 2})
    lance.refused(404, 11, "'dev'", PATH, {"tag": "x", "version": 3, "branch": "dev"})
    lance.refused(404, 22, "'nope'", PATH, {"tag": "x", "version": 1, "branch": "nope"})


def test_a_duplicate_name_is_refused(lance, everywhere):
    table = make_lance_table(("w", "t"))
    insert_more(table)
    lance.post(PATH, {"tag": "v1", "version": 1})
    for version in (1, 2):
        lance.refused(409, 9, "has tag 'v1'", PATH, {"tag": "v1", "version": version})
    # So is the name of a client's tag, and of an unreadable one.
    open_lance(table.location).tags.create("theirs", 1)
    lance.refused(409, 9, "has tag 'theirs'", PATH, {"tag": "theirs", "version": 1})
    everywhere.write(f"{table.location}/_refs/tags/broken.json", b"{")
    lance.refused(409, 9, "has tag 'broken'", PATH, {"tag": "broken", "version": 1})


def insert_more(table):
    """A second version."""
    from catalog.services.lance import data as lance_data

    data = pa.table({"id": [4], "name": ["d"]})
    lance_data.insert(actor=SYSTEM, table=("w", "t"), data=data.to_reader())


@shared_cases(
    "name",
    [
        "",
        "a/b",
        "/",
        "..",
        ".a",
        "a.",
        "a..b",
        "a.lock",
        "a b",
        "a*",
        "a\nb",
        "a\x00b",
        "a\\b",
        "é",
        "x" * 201,
        "x" * 5000,
        "a%2Fb",
        "𝄞",
        "../../x",
    ],
    prepare=lambda: make_lance_table(("w", "t")),
)
def test_names_refused_by_lance_are_refused(lance, name):
    table = Table.objects.named(("w", "t")).get()
    lance.refused(400, 13, "Tag name", PATH, {"tag": name, "version": 1})
    assert not any(name.startswith("_refs") for name in files(table.location))


@pytest.mark.parametrize("name", ["v1.0.2", "A_b-c", "-a", "x" * 200, "0"])
def test_names_accepted_by_lance_are_accepted(lance, name):
    table = make_lance_table(("w", "t"))
    lance.post(PATH, {"tag": name, "version": 1})
    assert list(open_lance(table.location).tags.list()) == [name]
    assert list(lance.post("/v1/table/w$t/tags/list")["tags"]) == [name]


@shared_cases(
    ("body", "text"),
    [
        ({"version": 1}, "tag"),
        ({"tag": "v1"}, "version"),
        ({"tag": None, "version": 1}, "tag"),
        ({"tag": 7, "version": 1}, "tag"),
        ({"tag": "v1", "version": "1"}, "version"),
        ({"tag": "v1", "version": 1.5}, "version"),
        ({"tag": "v1", "version": -1}, "version"),
        ({"tag": "v1", "version": None}, "version"),
        ({"tag": "v1", "version": 1, "branch": 3}, "branch"),
        ({"tag": "v1", "version": 1, "id": ["w", "u"]}, "id"),
    ],
    prepare=lambda: make_lance_table(("w", "t")),
)
def test_malformed(lance, body, text):
    lance.refused(400, 13, text, PATH, body)


@shared_cases(
    "version",
    [0, 2, 2**63 - 1, 2**63, 2**70],
    prepare=lambda: make_lance_table(("w", "t")),
)
def test_missing_versions_are_refused(lance, version):
    lance.refused(404, 11, "no version", PATH, {"tag": "v1", "version": version})


def test_no_table_and_no_data(lance):
    lance.refused(404, 1, "'w'", PATH, {"tag": "v1", "version": 1})
    make_table("w", "t")
    lance.refused(409, 19, "declared", PATH, {"tag": "v1", "version": 1})
    lance.refused(404, 4, "'w.u'", "/v1/table/w$u/tags/create", {"tag": "v1", "version": 1})
    make_iceberg_table("w", "ice")
    lance.refused(404, 4, "'w.ice'", "/v1/table/w$ice/tags/create", {"tag": "v1", "version": 1})


def test_read_only_key(reader):
    make_lance_table(("w", "t"))
    reader.refused(403, 15, "", PATH, {"tag": "v1", "version": 1})


def test_cleanup_keeps_tagged_versions(lance):
    table = make_lance_table(("w", "t"), pa.table({"a": [1, 2]}))
    lance.post(PATH, {"tag": "keep", "version": 1})
    for value in (3, 4):
        insert(lance, value)
    dataset = open_lance(table.location)
    dataset.cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False)
    assert [entry["version"] for entry in open_lance(table.location).versions()] == [1, 3]
    assert open_lance(table.location, "keep").to_table()["a"].to_pylist() == [1, 2]


@pytest.mark.django_db(transaction=True)
def test_creators_of_one_tag(key):  # noqa: F811
    table = make_lance_table(("w", "t"))
    insert_more(table)
    for number in range(4):
        calls = [post(PATH, {"tag": f"v{number}", "version": 1 + n % 2}) for n in range(5)]
        outcome = race(key, *calls)
        assert sorted(outcome) == [WON] + [(409, 9)] * 4
        chosen = 1 + outcome.index(WON) % 2
        assert lance_tags.resolve(actor=SYSTEM, table=("w", "t"), tag=f"v{number}") == ("", chosen)
    assert AuditEvent.objects.filter(action="tag.create").count() == 4
