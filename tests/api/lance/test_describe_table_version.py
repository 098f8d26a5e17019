import pytest

from tests.api.client import Lance
from tests.factories import (
    final_path,
    make_namespace,
    make_table,
    make_version,
    relative,
    stage,
    unchanged,
)

pytestmark = pytest.mark.operation("DescribeTableVersion")

DESCRIBE = "/v1/table/ws$t/version/describe"


def test_tells_the_winners_row(lance: Lance):
    table = make_table("ws", "t")
    body = {"version": 2, "manifest_path": relative(stage(table, 2)), "e_tag": "e"}
    created = lance.post("/v1/table/ws$t/version/create", body)["version"]
    with unchanged():
        found = lance.post(DESCRIBE, {"id": ["ws", "t"], "version": 2})
    assert found == {"version": created}
    assert created["manifest_path"] == relative(final_path(table, 2))


def test_without_a_version_it_is_the_latest(lance: Lance):
    make_table("ws", "t")
    lance.refused(404, 11, "Table 'ws.t' has no version yet", DESCRIBE, {})
    for version in (1, 12, 3):
        make_version(("ws", "t"), version)
    make_version(("ws", "t"), 40, branch="dev")
    assert lance.post(DESCRIBE, {})["version"]["version"] == 12
    assert lance.post(DESCRIBE, {"branch": "dev"})["version"]["version"] == 40


def test_on_a_branch(lance: Lance):
    make_table("ws", "t")
    make_version(("ws", "t"), 2, "x/main")
    make_version(("ws", "t"), 2, "x/dev", branch="dev")
    for branch, path in ((None, "x/main"), ("main", "x/main"), ("dev", "x/dev")):
        found = lance.post(DESCRIBE, {"version": 2, "branch": branch})
        assert found["version"]["manifest_path"] == path
    lance.refused(
        404, 22, "Table 'ws.t' has no branch 'x'", DESCRIBE, {"version": 2, "branch": "x"}
    )
    lance.refused(
        404,
        11,
        "Table 'ws.t' has no version 3 on branch 'dev'",
        DESCRIBE,
        {"version": 3, "branch": "dev"},
    )


def test_missing(lance: Lance):
    make_namespace("ws")
    lance.refused(404, 4, "Table 'ws.t' does not exist", DESCRIBE, {"version": 1})
    make_table("ws", "t")
    lance.refused(404, 11, "Table 'ws.t' has no version 1", DESCRIBE, {"version": 1})
    lance.refused(404, 11, "has no version", DESCRIBE, {"version": 2**63 - 1})
    lance.refused(404, 1, "Namespace 'x'", "/v1/table/x$t/version/describe", {"version": 1})


def test_deleted(lance: Lance):
    make_table("ws", "t")
    make_version(("ws", "t"), 1)
    ranges = [{"start_version": 1, "end_version": 2}]
    lance.post("/v1/table/ws$t/version/delete", {"ranges": ranges})
    lance.refused(404, 11, "Table 'ws.t' has no version 1", DESCRIBE, {"version": 1})


@pytest.mark.parametrize("version", ["1", -1, 1.5, True])
def test_wrong_types(lance: Lance, version):
    make_table("ws", "t")
    lance.refused(400, 13, "version", DESCRIBE, {"version": version})


def test_a_number_beyond_all_versions(lance: Lance):
    make_table("ws", "t")
    lance.refused(404, 11, "has no version 9223372036854775808", DESCRIBE, {"version": 2**63})


def test_body_id_must_be_the_path_id(lance: Lance):
    make_table("ws", "t")
    lance.refused(400, 13, "['t']", DESCRIBE, {"id": ["t"], "version": 1})


def test_read_only_key(reader: Lance):
    make_table("ws", "t")
    make_version(("ws", "t"), 1)
    assert reader.post(DESCRIBE, {"version": 1})["version"]["version"] == 1
