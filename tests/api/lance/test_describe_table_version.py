from pathlib import Path

import pytest

from catalog.models import AuditEvent
from catalog.services.lance.ledger import versions as lance_versions
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


def test_returns_the_committed_row(lance: Lance):
    table = make_table("ws", "t")
    body = {"version": 2, "manifest_path": relative(stage(table, 2)), "e_tag": "e"}
    created = lance.post("/v1/table/ws$t/version/create", body)["version"]
    with unchanged():
        description = lance.post(DESCRIBE, {"id": ["ws", "t"], "version": 2})
    assert description == {"version": created}
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
        description = lance.post(DESCRIBE, {"version": 2, "branch": branch})
        assert description["version"]["manifest_path"] == path
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
    make_version(("ws", "t"), 2)
    ranges = [{"start_version": 1, "end_version": 2}]
    lance.post("/v1/table/ws$t/version/delete", {"ranges": ranges})
    refused = lance.refused(404, 11, "Table 'ws.t' has no version 1", DESCRIBE, {"version": 1})
    assert refused.json()["detail"].startswith("It was deleted, or its files were removed, at 20")
    refused = lance.refused(404, 11, "Table 'ws.t' has no version 3", DESCRIBE, {"version": 3})
    assert "detail" not in refused.json()


def test_a_version_removed_from_storage_is_retired(lance: Lance):
    """The first read of a version without manifest reports that, and retires the version."""
    table = make_table("ws", "t")
    for version in (1, 2, 3):
        make_version(("ws", "t"), version, relative(stage(table, version)))
    lance_versions.settle_pending()
    final_path(table, 1).unlink()
    answer = lance.call("POST", DESCRIBE, {"version": 1})
    assert (answer.status_code, answer.json()["code"]) == (404, 11)
    assert answer.json()["error"] == "Table 'ws.t' has no version 1"
    assert answer.json()["detail"] == (
        "Its manifest was removed from storage, so the version was retired."
    )
    event = AuditEvent.objects.get(action="version.reconcile")
    assert (event.actor, event.after["ranges"]) == ("system", [[1, 2]])
    listed = lance.post("/v1/table/ws$t/version/list")["versions"]
    assert [version["version"] for version in listed] == [2, 3]
    # The newest version is kept, because its number must not be reused.
    final_path(table, 3).unlink()
    refused = lance.refused(
        404, 11, "Version 3 of table 'ws.t' has no manifest", DESCRIBE, {"version": 3}
    )
    assert refused.json()["detail"].endswith("Repair the table.")
    # A process without access to the table's volume retires nothing.
    away = Path(table.location).rename(f"{table.location}.unmounted")
    assert lance.post(DESCRIBE, {"version": 2})["version"]["version"] == 2
    away.rename(table.location)


@pytest.mark.parametrize("version", ["1", -1, 1.5, True])
def test_wrong_types(lance: Lance, version):
    make_table("ws", "t")
    lance.refused(400, 13, "version", DESCRIBE, {"version": version})


def test_a_number_out_of_range_is_refused(lance: Lance):
    make_table("ws", "t")
    lance.refused(404, 11, "has no version 9223372036854775808", DESCRIBE, {"version": 2**63})


def test_body_id_must_be_the_path_id(lance: Lance):
    make_table("ws", "t")
    lance.refused(400, 13, "['t']", DESCRIBE, {"id": ["t"], "version": 1})


def test_read_only_key(reader: Lance):
    make_table("ws", "t")
    make_version(("ws", "t"), 1)
    assert reader.post(DESCRIBE, {"version": 1})["version"]["version"] == 1
