"""The published client of the specification, for operations that pylance does not support."""

import contextlib
import http.client
import json
from pathlib import Path

import httpx
import lance
import pyarrow as pa
import pytest
from lance_namespace_urllib3_client import ApiClient, Configuration, TableApi
from lance_namespace_urllib3_client import models as m
from lance_namespace_urllib3_client.exceptions import ConflictException

from tests.factories import manifest
from tests.live import LiveServer


@pytest.fixture
def api(live: LiveServer) -> TableApi:
    configuration = Configuration(host=live.url, api_key={"ApiKeyAuth": live.key})
    return TableApi(ApiClient(configuration))


@pytest.fixture
def space(live: LiveServer, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name)
    assert live.post(f"/v1/namespace/{name}/create")[0] == 200
    return name


def entry(table: list[str], version: int, path: str) -> m.CreateTableVersionEntry:
    return m.CreateTableVersionEntry(id=table, version=version, manifest_path=path)


def stage(location: str, version: int) -> str:
    """Stage a manifest like a Lance writer. Return its path in the form of an object store."""
    name = f"{2**64 - 1 - version:020d}.manifest"
    staged = Path(location) / "_versions" / f"{name}-1b4e28ba"
    staged.parent.mkdir(parents=True, exist_ok=True)
    staged.write_bytes(manifest(version))
    return str(staged).lstrip("/")


def declare(api: TableApi, table: list[str]) -> str:
    answer = api.declare_table("$".join(table), m.DeclareTableRequest(id=table))
    assert answer.managed_versioning is True
    assert answer.location is not None
    return answer.location


def versions(api: TableApi, table: list[str]) -> dict[int, str]:
    answer = api.list_table_versions("$".join(table))
    return {row.version: row.manifest_path for row in answer.versions}


def test_batch_create_enters_versions_of_several_tables(api: TableApi, space: str) -> None:
    tables = [[space, "a"], [space, "b"]]
    entries = []
    for table in tables:
        location = declare(api, table)
        entries += [entry(table, version, stage(location, version)) for version in (1, 2)]

    answer = api.batch_create_table_versions(m.BatchCreateTableVersionsRequest(entries=entries))

    assert [row.version for row in answer.versions] == [1, 2, 1, 2]
    assert answer.transaction_id
    for table in tables:
        listed = versions(api, table)
        assert list(listed) == [1, 2]
        for version, path in listed.items():
            assert Path("/" + path).read_bytes() == manifest(version)
            assert path.endswith(".manifest")


def test_batch_create_is_all_or_nothing(api: TableApi, space: str) -> None:
    tables = [[space, "a"], [space, "b"]]
    staged = {table[1]: stage(declare(api, table), 1) for table in tables}
    first = entry(tables[1], 1, staged["b"])
    api.batch_create_table_versions(m.BatchCreateTableVersionsRequest(entries=[first]))

    both = [entry(tables[0], 1, staged["a"]), entry(tables[1], 1, "other/manifest")]
    with pytest.raises(ConflictException) as refused:
        api.batch_create_table_versions(m.BatchCreateTableVersionsRequest(entries=both))

    assert refused.value.data.code == 14
    assert refused.value.data.error.startswith("Operation 1:")
    assert versions(api, tables[0]) == {}
    assert Path("/" + staged["a"]).exists()


def test_batch_commit_declares_fills_and_deregisters(api: TableApi, space: str) -> None:
    old, new = [space, "old"], [space, "new"]
    location = declare(api, old)
    api.batch_create_table_versions(
        m.BatchCreateTableVersionsRequest(
            entries=[entry(old, number, stage(location, number)) for number in (1, 2)]
        )
    )

    answer = api.batch_commit_tables(
        m.BatchCommitTablesRequest(
            operations=[
                m.CommitTableOperation(
                    declare_table=m.DeclareTableRequest(id=new, properties={"owner": "me"})
                ),
                m.CommitTableOperation(
                    create_table_version=m.CreateTableVersionRequest(
                        id=new, version=1, manifest_path="elsewhere/1.manifest"
                    )
                ),
                m.CommitTableOperation(
                    delete_table_versions=m.BatchDeleteTableVersionsRequest(
                        id=old, ranges=[m.VersionRange(start_version=0, end_version=2)]
                    )
                ),
                m.CommitTableOperation(deregister_table=m.DeregisterTableRequest(id=old)),
            ]
        )
    )

    declared, created, deleted, deregistered = answer.results
    assert declared.declare_table.properties == {"owner": "me"}
    assert created.create_table_version.version.manifest_path == "elsewhere/1.manifest"
    assert deleted.delete_table_versions.deleted_count == 1
    assert deregistered.deregister_table.location == location
    assert api.list_tables(space).tables == ["new"]
    assert versions(api, new) == {1: "elsewhere/1.manifest"}


def test_batch_commit_publishes_two_lance_tables_at_once(
    api: TableApi, live: LiveServer, space: str, tmp_path: Path
) -> None:
    """Data is written without the catalog and added in one commit. pylance then reads it."""
    operations = []
    for name in ("orders", "lines"):
        table = [space, name]
        location = live.warehouse / f"{space}-{name}"
        rows = pa.table({"name": [name], "n": [1]})
        lance.write_dataset(rows, str(location))
        manifest = location / "_versions" / f"{2**64 - 2:020d}.manifest"
        operations += [
            m.CommitTableOperation(
                declare_table=m.DeclareTableRequest(id=table, location=str(location))
            ),
            m.CommitTableOperation(
                create_table_version=m.CreateTableVersionRequest(
                    id=table,
                    version=1,
                    manifest_path=str(manifest).lstrip("/"),
                    manifest_size=manifest.stat().st_size,
                )
            ),
        ]

    answer = api.batch_commit_tables(m.BatchCommitTablesRequest(operations=operations))

    assert len(answer.results) == 4
    for name in ("orders", "lines"):
        dataset = lance.dataset(namespace_client=live.client(), table_id=[space, name])
        assert dataset.to_table().to_pylist() == [{"name": name, "n": 1}]
        appended = lance.write_dataset(
            pa.table({"name": [name], "n": [2]}),
            namespace_client=live.client(),
            table_id=[space, name],
            mode="append",
        )
        assert appended.version == 2
        assert appended.count_rows() == 2


def test_a_body_of_unknown_length(live):
    """The body is chunked, as streaming clients send it."""
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=30)
    body = json.dumps({"properties": {"sent": "in chunks"}}).encode()
    headers = {"x-api-key": live.key, "content-type": "application/json"}
    path = "/v1/namespace/chunked/create"
    with contextlib.closing(connection):
        connection.request("POST", path, body=iter([body[:5], body[5:]]), headers=headers)
        with connection.getresponse() as response:
            assert response.status == 200
            assert json.loads(response.read())["properties"] == {"sent": "in chunks"}


def test_every_operation_requires_a_key(live):
    for path in ("/v1/table/x/insert", "/v1/nothing", "/v1/namespace/$/list"):
        response = httpx.post(live.url + path) if "list" not in path else httpx.get(live.url + path)
        assert (response.status_code, response.json()["code"]) == (401, 16), path
