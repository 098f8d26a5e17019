import pytest

from catalog.models import TableVersion
from tests.api.client import Lance, spell
from tests.cases import shared_cases
from tests.factories import make_namespace, make_table, make_version, unchanged

pytestmark = pytest.mark.operation("ListTableVersions")

LIST = "/v1/table/ws$t/version/list"


def numbers(page: dict) -> list[int]:
    return [version["version"] for version in page["versions"]]


def pages(lance: Lance, query: str) -> list[list[int]]:
    versions, token = [], None
    while True:
        page = lance.post(f"{LIST}?{query}" + (f"&page_token={token}" if token else ""))
        versions.append(numbers(page))
        token = page.get("page_token")
        if token is None:
            return versions


def test_an_empty_table(lance: Lance):
    make_table("ws", "t")
    assert lance.post(LIST) == {"versions": []}
    assert lance.post(f"{LIST}?limit=1&descending=true&delimiter=%24") == {"versions": []}


def test_a_null_body_equals_no_body(lance: Lance):
    """LanceDB sends a null body if the specification has no body."""
    make_table("ws", "t")
    make_version(("ws", "t"), 1)
    answer = lance.call("POST", f"{LIST}?limit=1&descending=true", raw=b"null")
    assert (answer.status_code, numbers(answer.json())) == (200, [1])


def test_returns_all_fields_of_each_version(lance: Lance):
    make_table("ws", "t")
    body = {
        "version": 1,
        "manifest_path": "x/1",
        "manifest_size": 5,
        "e_tag": "e",
        "metadata": {"a": "b"},
    }
    created = lance.post("/v1/table/ws$t/version/create", body)["version"]
    with unchanged():
        assert lance.post(LIST) == {"versions": [created]}


def test_orders(lance: Lance):
    make_table("ws", "t")
    for version in (2, 10, 1):
        make_version(("ws", "t"), version)
    assert numbers(lance.post(LIST)) == [1, 2, 10]
    assert numbers(lance.post(f"{LIST}?descending=false")) == [1, 2, 10]
    assert numbers(lance.post(f"{LIST}?descending=True")) == [10, 2, 1]
    assert numbers(lance.post(f"{LIST}/?descending=1&limit=1")) == [10]


def test_pages_to_the_end(lance: Lance):
    make_table("ws", "t")
    for version in range(7):
        make_version(("ws", "t"), version)
    top = 2**62  # as an earlier release accepted it
    TableVersion.objects.filter(version=6).update(version=top)
    assert pages(lance, "limit=3") == [[0, 1, 2], [3, 4, 5], [top]]
    assert pages(lance, "limit=3&descending=true") == [[top, 5, 4], [3, 2, 1], [0]]
    assert pages(lance, "limit=1") == [[0], [1], [2], [3], [4], [5], [top]]
    assert pages(lance, "limit=1&descending=true") == [[top], [5], [4], [3], [2], [1], [0]]
    assert pages(lance, "limit=7") == [[*range(6), top]]


def test_paging_is_stable_under_new_and_deleted_versions(lance: Lance):
    make_table("ws", "t")
    for version in (1, 2, 3, 4):
        make_version(("ws", "t"), version)
    first = lance.post(f"{LIST}?limit=2&descending=true")
    assert (numbers(first), first["page_token"]) == ([4, 3], "3")
    make_version(("ws", "t"), 5)
    ranges = [{"start_version": 3, "end_version": 4}]
    lance.post("/v1/table/ws$t/version/delete", {"ranges": ranges})
    rest_of_pages = lance.post(f"{LIST}?limit=2&descending=true&page_token={first['page_token']}")
    assert numbers(rest_of_pages) == [2, 1]
    assert "page_token" not in rest_of_pages


def test_branches(lance: Lance):
    make_table("ws", "t")
    make_version(("ws", "t"), 1)
    make_version(("ws", "t"), 2, branch="größe/a b")
    assert numbers(lance.post(LIST)) == [1]
    assert numbers(lance.post(f"{LIST}?branch=")) == [1]
    assert numbers(lance.post(f"{LIST}?branch=main")) == [1]
    assert numbers(lance.post(f"{LIST}?branch={spell('größe/a b')}")) == [2]
    lance.refused(404, 22, "Table 'ws.t' has no branch 'x'", f"{LIST}?branch=x")


def test_a_branch_without_versions_exists(lance: Lance):
    make_table("ws", "t")
    make_version(("ws", "t"), 2, branch="dev")
    TableVersion.objects.update(deleted_at="2026-01-01T00:00Z")  # as older releases allowed
    assert lance.post(f"{LIST}?branch=dev") == {"versions": []}


@shared_cases(
    "token",
    ["x", "-1", "1.5", "1_0", "+1", "9" * 20, "%00", "²"],
    prepare=lambda: make_table("ws", "t"),
)
def test_invalid_tokens_are_refused(lance: Lance, token):
    lance.refused(400, 13, "Page token", f"{LIST}?page_token={token}")


def test_other_malformed_queries(lance: Lance):
    make_table("ws", "t")
    lance.refused(400, 13, "'limit'", f"{LIST}?limit=0")
    lance.refused(400, 13, "'descending'", f"{LIST}?descending=down")
    lance.refused(400, 13, "cannot be stored", f"{LIST}?branch=%00")


def test_missing(lance: Lance):
    make_namespace("ws")
    lance.refused(404, 4, "Table 'ws.t' does not exist", LIST)
    lance.refused(404, 1, "Namespace 'x' does not exist", "/v1/table/x$t/version/list")


def test_read_only_key(reader: Lance):
    make_table("ws", "t")
    assert reader.post(LIST) == {"versions": []}


def test_query_parameters_are_accepted_in_the_body(lance: Lance):
    """The specification's request has these fields; its REST form passes them in the query."""
    make_table("ws", "t")
    for version in (1, 2, 3):
        make_version(("ws", "t"), version)
    make_version(("ws", "t"), 7, branch="dev")
    path = "/v1/table/ws$t/version/list"
    for body, expected in (
        ({"limit": 2, "descending": True}, [3, 2]),
        ({"branch": "dev"}, [7]),
        ({"page_token": "2"}, [3]),
    ):
        assert [v["version"] for v in lance.post(path, body)["versions"]] == expected
    assert [v["version"] for v in lance.post(f"{path}?limit=1", {"limit": 2})["versions"]] == [1]
    lance.refused(404, 22, "nope", path, {"branch": "nope"})
    lance.refused(400, 13, "limit", path, {"limit": 0})
