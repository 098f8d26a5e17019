from pathlib import Path

import pytest

from catalog.formats.lance import naming as lance_naming
from catalog.formats.lance.naming import NamingScheme
from catalog.models import Table, TableState
from catalog.services.maintenance import job_runner
from catalog.storage import listing, locations
from tests.api.client import Lance
from tests.cases import shared_cases
from tests.factories import (
    files,
    final_path,
    make_namespace,
    make_table,
    make_version,
    manifest,
    relative,
    stage,
    unchanged,
)
from tests.stores.fixtures import Storage

pytestmark = pytest.mark.operation("RegisterTable")
LOCAL = Storage("local", "/")


def write_table(
    directory: str | Path,
    versions: dict[tuple[str, int], NamingScheme],
    storage: Storage | None = None,
) -> None:
    """The directory of a Lance table: manifests, data, and a stray staged file."""
    contents = {
        lance_naming.final_manifest_path(branch, version, scheme): manifest(version, branch)
        for (branch, version), scheme in versions.items()
    }
    contents |= {"data/1.lance": b"rows", "_versions/9.manifest-8a3c": b"staged"}
    for name, content in contents.items():
        (storage or LOCAL).write(f"{directory}/{name}", content)


def versions_of(lance: Lance, table: str, query: str = "") -> list[int]:
    answer = lance.post(f"/v1/table/{table}/version/list{query}")
    return [version["version"] for version in answer["versions"]]


def test_records_the_existing_versions(lance: Lance, everywhere: Storage):
    make_namespace("ws")
    location = everywhere.location("mine")
    names = {version: f"_versions/{version}.manifest" for version in (1, 2)}
    write_table(location, dict.fromkeys((("", 1), ("", 2)), NamingScheme.V1), everywhere)
    before = files(location)
    answer = lance.post(
        "/v1/table/ws$t/register",
        {"id": ["ws", "t"], "location": location, "properties": {"k": "v"}},
    )
    assert (answer["location"], answer["properties"]) == (location, {"k": "v"})
    versions = lance.post("/v1/table/ws$t/version/list")["versions"]
    assert [(v["version"], v["manifest_path"], v["manifest_size"]) for v in versions] == [
        (version, locations.store_path(location, name), len(manifest(version)))
        for version, name in names.items()
    ]
    described = lance.post("/v1/table/ws$t/describe?check_declared=true")
    assert described["is_only_declared"] is False
    assert files(location) == before
    facts = lance.post(f"/v1/transaction/{answer['transaction_id']}/describe")
    assert facts["properties"]["monodon.operations"] == "RegisterTable"


def test_both_naming_schemes_and_branches(lance: Lance, everywhere: Storage):
    location = everywhere.location("mine")
    numbers = (("", 1), ("", 2), ("dev", 2), ("team/a", 3))
    write_table(location, dict.fromkeys(numbers, NamingScheme.V2), everywhere)
    write_table(f"{location}2", {("", 7): NamingScheme.V2}, everywhere)  # of another table
    lance.post("/v1/table/t/register", {"location": location})
    assert versions_of(lance, "t") == [1, 2]
    assert versions_of(lance, "t", "?branch=dev") == [2]
    assert versions_of(lance, "t", "?branch=team/a") == [3]
    row = lance.post("/v1/table/t/version/describe", {"version": 3, "branch": "team/a"})
    assert row["version"]["manifest_path"].endswith(
        "mine/tree/team/a/_versions/18446744073709551612.manifest"
    )


def test_an_imported_number_is_taken(lance: Lance, warehouse: Path):
    write_table(warehouse / "mine", {("", 1): NamingScheme.V2})
    lance.post("/v1/table/t/register", {"location": "mine"})
    body = {"version": 1, "manifest_path": "elsewhere/1.manifest"}
    lance.refused(409, 14, "has version 1 already", "/v1/table/t/version/create", body)


def test_a_location_without_table_is_declared(lance: Lance):
    lance.post("/v1/table/t/register", {"location": "nothing/here"})
    assert lance.post("/v1/table/t/describe?check_declared=1")["is_only_declared"] is True
    assert versions_of(lance, "t") == []


@pytest.mark.parametrize("mode", [None, "Create", "create", "CREATE"])
def test_create_refuses_an_existing_name(lance: Lance, mode):
    make_table("ws", "t")
    lance.refused(
        409,
        5,
        "Table 'ws.t' exists already",
        "/v1/table/ws$t/register",
        {"location": "x", "mode": mode},
    )


@pytest.mark.parametrize("mode", ["Overwrite", "overwrite", "OVERWRITE"])
def test_overwrite_replaces_the_registration(lance: Lance, warehouse: Path, mode):
    old = make_table("ws", "t", properties={"old": "1"})
    Path(old.location).mkdir()
    (Path(old.location) / "kept").write_bytes(b"data")
    write_table(warehouse / "mine", {("", 4): NamingScheme.V2})
    lance.post("/v1/table/ws$t/register", {"location": "mine", "mode": mode})
    description = lance.post("/v1/table/ws$t/describe")
    assert (description["location"], description["properties"]) == (f"{warehouse}/mine", {})
    assert versions_of(lance, "ws$t") == [4]
    old.refresh_from_db()
    assert old.state == TableState.DROPPED
    assert files(old.location) == {"kept": b"data"}


def test_overwrite_at_the_same_location_reads_it_again(lance: Lance, warehouse: Path):
    write_table(warehouse / "mine", {("", 1): NamingScheme.V2})
    lance.post("/v1/table/t/register", {"location": "mine"})
    write_table(warehouse / "mine", {("", 2): NamingScheme.V2})
    lance.post("/v1/table/t/register", {"location": "mine", "mode": "Overwrite"})
    assert versions_of(lance, "t") == [1, 2]


def test_overwrite_without_existing_table_registers(lance: Lance):
    lance.post("/v1/table/t/register", {"location": "mine", "mode": "Overwrite"})
    assert lance.get("/v1/table") == {"tables": ["t"]}


def test_unknown_mode(lance: Lance):
    body = {"location": "mine", "mode": "replace"}
    lance.refused(400, 13, "'replace'", "/v1/table/t/register", body)


@pytest.mark.parametrize("location", ["a/b", "a/b/c", "a"])
@pytest.mark.parametrize("mode", ["Create", "Overwrite"])
def test_an_overlapping_location_is_refused(lance: Lance, location, mode):
    make_table("first", location="a/b")
    make_table("t", location="z")
    body = {"location": location, "mode": mode}
    name = "u" if mode == "Create" else "t"
    lance.refused(409, 14, "belongs to table 'first'", f"/v1/table/{name}/register", body)


def test_a_location_being_purged_is_refused(lance: Lance):
    table = make_table("ws", "t", location="mine")
    Path(table.location).mkdir(parents=True)
    answer = lance.post("/v1/table/ws$t/drop")
    for location in ("mine", "mine/inner"):
        lance.refused(
            409, 14, "belongs to table 'ws.t'", "/v1/table/ws$u/register", {"location": location}
        )
    [job] = table.jobs.all()
    job_runner.run_job(job.pk)
    assert not Path(table.location).exists()
    status = lance.post(f"/v1/transaction/{answer['transaction_id']}/describe")["status"]
    assert status == "Succeeded"
    lance.post("/v1/table/ws$u/register", {"location": "mine"})


def test_a_deregistered_table_is_registered_with_its_versions(lance: Lance):
    table = make_table("ws", "t")
    write_table(
        Path(table.location), {("", n): NamingScheme.V2 for n in (1, 2, 3)} | {("b", 3): "V2"}
    )
    for version in (1, 2, 3):
        path = lance_naming.final_manifest_path("", version, NamingScheme.V2)
        make_version(("ws", "t"), version, f"{table.location}/{path}")
    lance.post("/v1/table/ws$t/deregister", {})
    lance.post("/v1/table/ws$again/register", {"location": table.location})
    assert versions_of(lance, "ws$again") == [1, 2, 3]
    assert versions_of(lance, "ws$again", "?branch=b") == [3]
    assert Table.objects.count() == 2


@pytest.mark.parametrize("branch", ["", "b"])
def test_a_number_that_leaves_no_room_is_refused(lance: Lance, warehouse: Path, branch: str):
    top = 2**62 - 1_000_000
    write_table(warehouse / "mine", {("", 1): NamingScheme.V2, (branch, top + 1): NamingScheme.V2})
    with unchanged():
        message = f"is that of a version above {top}"
        lance.refused(400, 13, message, "/v1/table/t/register", {"location": "mine"})
    write_table(warehouse / "other", {("", top): NamingScheme.V2})
    lance.post("/v1/table/t/register", {"location": "other"})
    assert versions_of(lance, "t") == [top]


def test_links_are_not_followed(lance: Lance, warehouse: Path, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    write_table(warehouse / "mine", {("", 1): NamingScheme.V2})
    (warehouse / "mine/_versions/2.manifest").symlink_to(secret)
    lance.post("/v1/table/t/register", {"location": "mine"})
    assert versions_of(lance, "t") == [1]


def test_a_linked_versions_directory_is_refused(lance: Lance, warehouse: Path, tmp_path: Path):
    write_table(tmp_path / "outside", {("", 1): NamingScheme.V2})
    (warehouse / "mine").mkdir()
    (warehouse / "mine/_versions").symlink_to(tmp_path / "outside/_versions")
    (warehouse / "mine/tree").mkdir()
    (warehouse / "mine/tree/b").symlink_to(tmp_path / "outside")
    lance.post("/v1/table/t/register", {"location": "mine"})
    assert versions_of(lance, "t") == []


@shared_cases(
    ("body", "error"),
    [
        ({}, "location"),
        ({"location": ""}, "is empty"),
        ({"location": "/etc"}, "is outside"),
        ({"location": "../x"}, "holds '..'"),
        ({"location": "s3://bucket/t"}, "s3://"),
        ({"location": "a\0"}, "control character"),
        ({"location": 1}, "location"),
        ({"location": "x", "id": ["u"]}, "['u']"),
    ],
)
def test_malformed_requests_are_refused(lance: Lance, body, error):
    lance.refused(400, 13, error, "/v1/table/t/register", body)


def test_a_missing_namespace(lance: Lance):
    body = {"location": "mine"}
    lance.refused(404, 1, "Namespace 'ws' does not exist", "/v1/table/ws$t/register", body)


def test_read_only_key(reader: Lance):
    make_namespace("ws")
    body = {"location": "mine"}
    reader.refused(403, 15, "may not create anything in 'ws'", "/v1/table/ws$t/register", body)


def test_overwrite_in_place_loses_no_version(lance: Lance, monkeypatch):
    """A version that was committed after the directory was read is kept, and so is a tombstone."""
    table = make_table("ws", "t")
    stage(table, 1).rename(final_path(table, 1))
    lance.post("/v1/table/ws$t/register", {"location": table.location, "mode": "Overwrite"})
    real = listing.list_branches

    def commit_meanwhile(location: str) -> list[str]:
        manifests = real(location)
        for version in (2, 3):
            body = {"version": version, "manifest_path": relative(stage(table, version))}
            lance.post("/v1/table/ws$t/version/create", body)
        ranges = [{"start_version": 2, "end_version": 3}]
        lance.post("/v1/table/ws$t/version/delete", {"ranges": ranges})
        return manifests

    monkeypatch.setattr(listing, "list_branches", commit_meanwhile)
    lance.post(
        "/v1/table/ws$t/register",
        {"location": table.location, "mode": "Overwrite", "properties": {"k": "new"}},
    )
    assert versions_of(lance, "ws$t") == [1, 3]
    assert Table.objects.get(pk=table.pk).properties == {"k": "new"}
    body = {"version": 2, "manifest_path": "x/1"}
    lance.refused(409, 14, "version 2", "/v1/table/ws$t/version/create", body)


def test_two_files_of_one_version(lance: Lance, warehouse: Path):
    make_namespace("ws")
    directory = warehouse / "mine"
    for scheme in NamingScheme:
        write_table(directory, {("", 1): scheme})
    (directory / "_versions/01.manifest").write_bytes(b"?")
    lance.post("/v1/table/ws$t/register", {"location": "mine"})
    [version] = lance.post("/v1/table/ws$t/version/list")["versions"]
    assert version["manifest_path"].endswith("_versions/18446744073709551614.manifest")


def test_a_path_refused_by_the_file_system(lance: Lance):
    make_namespace("ws")
    body = {"location": "x" * 300}
    lance.refused(400, 13, "cannot be read", "/v1/table/ws$t/register", body)


@pytest.mark.parametrize(
    "location", ["s3://[bad", "file://[bad", "file:///a/b\nc", "file:///a?b", "x.purged-1"]
)
def test_invalid_uris_are_refused(lance: Lance, location: str):
    make_namespace("ws")
    lance.refused(400, 13, "Location", "/v1/table/ws$t/register", {"location": location})
    make_table("ws", "u")
    body = {"version": 1, "manifest_path": "file:///a/b\nc"}
    lance.refused(400, 13, "control character", "/v1/table/ws$u/version/create", body)


# --- the words of the reference ------------------------------------------------------------------


@shared_cases(
    ("location", "words"),
    [
        ("s3://bucket/table.lance", "Absolute URIs are not allowed"),
        ("s3://b/table.lance", "Absolute URIs are not allowed"),
        ("/tmp/table.lance", "Absolute paths are not allowed"),
        ("file:///tmp/table.lance", "Absolute paths are not allowed"),
        ("../outside/table.lance", "Path traversal is not allowed"),
        ("a/%2e%2e/b", "Path traversal is not allowed"),
    ],
)
@shared_cases("route", ["register", "declare"])
def test_a_foreign_location_is_refused_with_the_reference_message(
    lance: Lance, route, location, words
):
    lance.refused(400, 13, words, f"/v1/table/t/{route}", {"location": location})


@pytest.mark.parametrize("location", ["physical.lance", "deep/physical.lance"])
def test_a_relative_location_is_answered_as_it_was_sent(lance: Lance, warehouse: Path, location):
    answer = lance.post("/v1/table/t/register", {"location": location})
    assert answer["location"] == location
    description = lance.post("/v1/table/t/describe", {})
    assert description["location"] == f"{warehouse}/{location}"


def test_an_absolute_location_is_answered_as_it_is_stored(lance: Lance, warehouse: Path):
    body = {"location": f"file://{warehouse}/a/"}
    assert lance.post("/v1/table/t/register", body)["location"] == f"{warehouse}/a"
