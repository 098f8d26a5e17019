"""Foreign files in the metadata of an Iceberg table are not read, revealed or removed.

Every field that may contain a path × every kind of foreign file, when it is committed. For metadata
that has such paths already, see test_foreign_files_iceberg_use.
"""

import json
import os
import time
import uuid
from pathlib import Path

import pytest

from catalog.models import (
    FileReference,
    IcebergPath,
    Table,
)
from tests.catalog.services.iceberg.writing import open_table, rows
from tests.factories import (
    make_iceberg_table,
    unchanged,
)
from tests.security.foreign import (
    COMMIT,
    KINDS,
    MINE,
    local,
    message_of,
    refusal,
    registrable,
    snapshot,
    updates,
)
from tests.security.watching import Touched, untouched

pytestmark = pytest.mark.django_db


# --- the oracle --------------------------------------------------------------------------------


def test_the_file_watch_detects_access(tmp_path: Path):
    canary = tmp_path / "canary"
    deeds = {
        "opened": canary.read_bytes,
        "linked": lambda: os.link(canary, tmp_path / uuid.uuid4().hex),
        "moved": lambda: canary.rename(tmp_path / uuid.uuid4().hex),
        "deleted": canary.unlink,
    }
    for word, deed in deeds.items():
        canary.write_text("x")
        with pytest.raises(Touched, match=word), untouched([canary]):
            deed()
    canary.write_text("x")
    with untouched([canary]):
        canary.lstat()


# --- commits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", ["list", "manifest"])
def test_a_snapshot_that_names_a_foreign_file_is_refused(world, attacker, slot):
    for kind in KINDS:
        path = world.path(kind, slot)
        body = {"requirements": [], "updates": updates(snapshot(slot, path))}
        with untouched(world.canaries()), unchanged():
            assert message_of(attacker.call("POST", COMMIT, body)) == refusal(path), kind


def test_foreign_manifests_in_a_v1_snapshot_are_refused(world, attacker):
    make_iceberg_table("mine", "old", properties={"format-version": "1"})
    for kind in KINDS:
        path = world.path(kind, "manifest")
        added = {
            "snapshot-id": 1,
            "timestamp-ms": time.time_ns() // 1_000_000,
            "manifests": [path],
            "summary": {"operation": "append"},
        }
        for spelled in (added, added | {"manifest-list": None}):
            change = {"action": "add-snapshot", "snapshot": spelled}
            body = {"requirements": [], "updates": [change]}
            with untouched(world.canaries()), unchanged():
                message = message_of(attacker.call("POST", "namespaces/mine/tables/old", body))
            assert message == refusal(path).replace("mine.t", "mine.old")


@pytest.mark.parametrize("field", ["statistics", "partition-statistics"])
def test_statistics_in_a_foreign_file_are_refused(world, attacker, field):
    open_table(*MINE).append(rows(1))
    for kind in KINDS:
        path = world.path(kind, "data")
        statistics = {
            "snapshot-id": open_table(*MINE).metadata.current_snapshot_id,
            "statistics-path": path,
            "file-size-in-bytes": 1,
        }
        if field == "statistics":
            statistics |= {"file-footer-size-in-bytes": 1, "blob-metadata": []}
        update = {"action": f"set-{field}", field: statistics}
        with untouched(world.canaries()), unchanged():
            response = attacker.call("POST", COMMIT, {"requirements": [], "updates": [update]})
            assert message_of(response) == refusal(path)


@pytest.mark.parametrize("stage", [False, True])
def test_creating_a_table_with_a_foreign_snapshot_is_refused(world, attacker, stage):
    for kind in KINDS:
        path = world.path(kind, "list")
        added = snapshot("list", path) | {"sequence-number": 1}
        document = open_table(*MINE).metadata.model_dump(mode="json", by_alias=True)
        changes = [
            {"action": "assign-uuid", "uuid": str(uuid.uuid4())},
            {"action": "upgrade-format-version", "format-version": 2},
            {"action": "add-schema", "schema": document["schemas"][0], "last-column-id": 2},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
            {"action": "set-default-spec", "spec-id": -1},
            {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
            {"action": "set-default-sort-order", "sort-order-id": -1},
            {"action": "set-location", "location": f"file://{world.mine.parent}/new"},
            *updates(added),
        ]
        body = {"requirements": [{"type": "assert-create"}], "updates": changes}
        with untouched(world.canaries()), unchanged():
            if stage:
                transaction = {
                    "table-changes": [{"identifier": {"namespace": ["mine"], "name": "n"}, **body}]
                }
                response = attacker.call("POST", "transactions/commit", transaction)
            else:
                response = attacker.call("POST", "namespaces/mine/tables/n", body)
            assert message_of(response).removesuffix(" (operation 0)") == refusal(path).replace(
                "mine.t", "mine.n"
            )


@pytest.mark.parametrize("kind_", ["register", "register-view"])
def test_registering_a_foreign_metadata_file_is_refused(world, attacker, kind_):
    """The metadata file is not read, so its content is irrelevant."""
    for kind in (kind for kind in KINDS if kind != "missing"):
        path = world.path(kind, "list")
        body = {"name": "stolen", "metadata-location": path}
        with untouched(world.canaries()), unchanged():
            message = message_of(attacker.call("POST", f"namespaces/mine/{kind_}", body))
        assert path in message


def test_hidden_and_missing_tables_have_the_same_answer_on_register(world, attacker):
    hidden = Table.objects.get(namespace__name="secret", name="t")
    real = local(hidden.iceberg_metadata.metadata_location)
    texts = set()
    for path in (real, real.with_name("00009-none.metadata.json")):
        body = {"name": "stolen", "metadata-location": f"file://{path}"}
        with untouched([*world.canaries(), real]), unchanged():
            message = message_of(attacker.call("POST", "namespaces/mine/register", body))
        texts.add(message.replace(path.name, "…"))
    assert len(texts) == 1


@pytest.mark.parametrize(
    "field", ["manifest-list", "statistics", "partition-statistics", "metadata-log"]
)
def test_registering_metadata_with_foreign_files_is_refused(world, attacker, field):
    for kind in KINDS:
        path = world.path(kind, "list")
        directory = world.mine.parent / "registered"
        document, added = registrable(directory, directory / "metadata" / "snap.avro")
        statistics = {"snapshot-id": added["snapshot-id"], "statistics-path": path}
        statistics["file-size-in-bytes"] = 1
        match field:
            case "manifest-list":
                added["manifest-list"] = path
            case "statistics":
                statistics |= {"file-footer-size-in-bytes": 1, "blob-metadata": []}
                document["statistics"] = [statistics]
            case "partition-statistics":
                document["partition-statistics"] = [statistics]
            case "metadata-log":
                document["metadata-log"] = [{"timestamp-ms": 1, "metadata-file": path}]
        file = directory / "metadata" / "00001-x.metadata.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(document))
        body = {"name": "n", "metadata-location": f"file://{file}"}
        with untouched(world.canaries()), unchanged():
            message = message_of(attacker.call("POST", "namespaces/mine/register", body))
        assert message == refusal(path).replace("mine.t", "mine.n")


@pytest.mark.parametrize(
    "name",
    [
        "write.data.path",
        "write.metadata.path",
        "write.object-storage.path",
        "write.folder-storage.path",
        "location",
    ],
)
@pytest.mark.parametrize(
    "directory",
    ["hidden", "dropped", "in dropped", "twin", "system", "path", "in path", "link"],
)
def test_foreign_directories_cannot_be_claimed(world, attacker, name, directory):
    hidden = Table.objects.get(namespace__name="secret", name="t")
    elsewhere = world.mine.parent / "elsewhere"
    IcebergPath.objects.create(table=hidden, path=str(elsewhere))
    at = {
        "hidden": hidden.location,
        "dropped": str(world.victims["dropped"].data.parents[1]),
        "in dropped": str(world.victims["dropped"].data.parent),
        "twin": f"{world.mine}2/data",
        "system": str(world.victims["system"].data.parent),
        "path": str(elsewhere),
        "in path": f"{elsewhere}/deep",
        "link": f"{world.mine}/metadata/directory",
    }[directory]
    update = (
        {"action": "set-location", "location": f"file://{at}"}
        if name == "location"
        else {"action": "set-properties", "updates": {name: f"file://{at}"}}
    )
    with untouched(world.canaries()), unchanged():
        response = attacker.call("POST", COMMIT, {"requirements": [], "updates": [update]})
    assert response.status_code in {400, 409}, response.content
    text, real = response.content.decode(), os.path.realpath(at)
    for path in (at, real, os.path.dirname(real)):  # noqa: PTH120 -- as text
        text = text.replace(path, "")
    assert "secret" not in text
    assert not elsewhere.exists()


def test_a_location_enclosing_a_foreign_path_cannot_be_claimed(world, attacker):
    hidden = Table.objects.get(namespace__name="secret", name="t")
    around = world.mine.parent / "around"
    IcebergPath.objects.create(table=hidden, path=f"{around}/inside")
    body = {"name": "n", "schema": open_table(*MINE).schema().model_dump(by_alias=True)}
    body |= {"location": f"file://{around}"}
    with unchanged():
        response = attacker.call("POST", "namespaces/mine/tables", body)
    assert response.status_code == 409, response.content
    assert f"Location '{around}' belongs to another table" in response.json()["error"]["message"]


@pytest.mark.parametrize("dated", [-7_200_000, 120_000])
def test_a_snapshot_with_a_wrong_timestamp_is_refused(world, attacker, dated):
    open_table(*MINE).append(rows(1))
    added = snapshot("data", f"file://{world.mine}/data/x.parquet")
    added["timestamp-ms"] += dated
    with unchanged():
        response = attacker.call("POST", COMMIT, {"requirements": [], "updates": updates(added)})
    assert "Invalid snapshot timestamp" in message_of(response)


@pytest.mark.parametrize(("behind", "has_parent"), [(0, True), (1, True), (1, False)])
def test_a_sequence_number_must_grow(world, attacker, behind, has_parent):
    for number in range(2):
        open_table(*MINE).append(rows(number))
    added = snapshot("data", f"file://{world.mine}/data/x.parquet")
    added["sequence-number"] -= 1 + behind
    if has_parent:
        added["parent-snapshot-id"] = open_table(*MINE).metadata.current_snapshot_id
    with unchanged():
        response = attacker.call("POST", COMMIT, {"requirements": [], "updates": updates(added)})
    assert response.status_code == 409
    assert "older than last sequence number" in response.json()["error"]["message"]


@pytest.mark.parametrize("slot", ["data", "deletes"])
def test_data_files_are_not_read_at_commit(world, attacker, slot):
    """Data files may be in storage that this server cannot reach, so they are not checked."""
    for kind in KINDS:
        body = {
            "requirements": [],
            "updates": updates(snapshot(slot, world.path(kind, "data"))),
        }
        with untouched(world.canaries()):
            assert attacker.call("POST", COMMIT, body).status_code == 200, kind
    assert not FileReference.objects.exists()
