from pathlib import Path

import lance as pylance
import pyarrow as pa
import pytest
from lance.namespace import DirectoryNamespace
from lance_namespace_urllib3_client import models as m

from catalog.formats import arrow_json
from catalog.models import Table, TableFormat, TableVersion
from tests.api.client import Lance, spell, stream
from tests.factories import make_lance_table, make_table, make_version, unchanged

pytestmark = pytest.mark.operation("DescribeTable")


def test_returns_the_location(lance: Lance):
    table = make_table("ws", "t", properties={"k": "größe"})
    with unchanged():
        description = lance.post("/v1/table/ws$t/describe", {"id": ["ws", "t"]})
    assert description == {
        "location": table.location,
        "properties": {"k": "größe"},
        "managed_versioning": True,
    }


@pytest.mark.parametrize("way", ["query", "body"])
def test_check_declared(lance: Lance, way):
    make_table("ws", "t")

    def is_only_declared() -> bool:
        if way == "query":
            description = lance.post("/v1/table/ws$t/describe?check_declared=true")
        else:
            description = lance.post("/v1/table/ws$t/describe", {"check_declared": True})
        return description["is_only_declared"]

    assert is_only_declared() is True
    make_version(("ws", "t"), 1)
    assert is_only_declared() is False


def test_is_only_declared_is_returned_only_on_request(lance: Lance):
    make_table("ws", "t")
    for query in ("", "?check_declared=false", "?check_declared="):
        assert "is_only_declared" not in lance.post(f"/v1/table/ws$t/describe{query}")


def test_with_table_uri(lance: Lance, warehouse: Path):
    make_table("ws", "t", location="a b/größe")
    for description in (
        lance.post("/v1/table/ws$t/describe?with_table_uri=true"),
        lance.post("/v1/table/ws$t/describe", {"with_table_uri": True}),
    ):
        assert description["location"] == f"{warehouse}/a b/größe"
        assert description["table_uri"] == f"file://{warehouse}/a%20b/gr%C3%B6%C3%9Fe"
    assert "table_uri" not in lance.post("/v1/table/ws$t/describe?with_table_uri=false")


def test_as_the_client_calls_it(lance: Lance):
    table = make_table("ws", "a b")
    description = lance.post(
        "/v1/table/ws%24a+b/describe?delimiter=%24&with_table_uri=false&check_declared=false",
        {"id": ["ws", "a b"], "vend_credentials": True},
    )
    assert description["location"] == table.location


@pytest.mark.parametrize("delimiter", [".", "::", "/"])
def test_delimiters(lance: Lance, delimiter):
    table = make_table("a", "b", "t")
    path = spell("a", "b", "t", delimiter=delimiter)
    description = lance.post(f"/v1/table/{path}/describe?delimiter={spell(delimiter)}")
    assert description["location"] == table.location


def test_at_a_version(lance: Lance):
    table = make_table("ws", "t")
    make_version(("ws", "t"), 1)
    make_version(("ws", "t"), 5, branch="dev")
    assert lance.post("/v1/table/ws$t/describe", {"version": 1})["location"] == table.location
    lance.post("/v1/table/ws$t/describe", {"version": 5, "branch": "dev"})
    lance.refused(404, 11, "no version 5", "/v1/table/ws$t/describe", {"version": 5})


def test_at_a_branch(lance: Lance):
    make_table("ws", "t")
    make_version(("ws", "t"), 1, branch="dev")
    lance.post("/v1/table/ws$t/describe", {"branch": "dev"})
    lance.post("/v1/table/ws$t/describe", {"branch": "main"})
    lance.refused(404, 22, "no branch 'x'", "/v1/table/ws$t/describe", {"branch": "x"})


def test_at_a_tag(lance: Lance):
    table = make_lance_table(("ws", "t"))
    path = "/v1/table/ws$t/describe"
    lance.post("/v1/table/ws$t/insert", raw=stream(pa.table({"id": [4]})))
    lance.post("/v1/table/ws$t/tags/create", {"tag": "v1", "version": 1})
    assert lance.post(path, {"tag": "v1"})["location"] == table.location
    answer = lance.post(path, {"tag": "v1", "load_detailed_metadata": True})
    assert (answer["version"], answer["metadata"]["total_rows"]) == (1, "3")
    lance.refused(404, 8, "no tag 'v2'", path, {"tag": "v2"})
    lance.refused(404, 8, "no tag '../x'", path, {"tag": "../x"})
    lance.refused(400, 13, "tag", path, {"tag": "v1", "version": 1})
    lance.refused(400, 13, "tag", path, {"tag": "v1", "branch": "dev"})


def test_a_tag_of_a_branch(lance: Lance):
    make_lance_table(("ws", "t"))
    lance.post("/v1/table/ws$t/branches/create", {"name": "dev"})
    lance.post("/v1/table/ws$t/insert?branch=dev", raw=stream(pa.table({"id": [4]})))
    newest = lance.post("/v1/table/ws$t/version/list", {"branch": "dev"})["versions"][-1]["version"]
    lance.post("/v1/table/ws$t/tags/create", {"tag": "of-dev", "version": newest, "branch": "dev"})
    body = {"tag": "of-dev", "load_detailed_metadata": True}
    description = lance.post("/v1/table/ws$t/describe", body)
    assert (description["version"], description["metadata"]["total_rows"]) == (newest, "4")


def test_a_tag_of_a_deleted_version_is_refused(lance: Lance):
    make_lance_table(("ws", "t"))
    lance.post("/v1/table/ws$t/tags/create", {"tag": "v1", "version": 1})
    lance.post("/v1/table/ws$t/insert", raw=stream(pa.table({"id": [4]})))
    TableVersion.objects.filter(version=1).delete()
    lance.refused(404, 11, "no version 1", "/v1/table/ws$t/describe", {"tag": "v1"})


@pytest.mark.parametrize("way", ["query", "body"])
def test_detailed_metadata(lance: Lance, way):
    data = pa.table({"id": pa.array(range(10), pa.int64())}).replace_schema_metadata({"k": "v"})
    table = make_lance_table(("ws", "t"), data)
    lance.post("/v1/table/ws$t/insert", raw=stream(pa.table({"id": [4]})))
    lance.post("/v1/table/ws$t/delete", {"predicate": "id = 4"})
    path = "/v1/table/ws$t/describe"
    with unchanged():
        if way == "query":
            answer = lance.post(f"{path}?load_detailed_metadata=true")
        else:
            answer = lance.post(path, {"load_detailed_metadata": True})
    size = sum(file.stat().st_size for file in Path(table.location, "data").iterdir())
    total_size = answer["metadata"].pop("total_files_size")
    assert 0 < int(total_size) < size  # the fragment of row 4 is gone
    assert answer == {
        "table": "t",
        "namespace": ["ws"],
        "version": 3,
        "location": table.location,
        "schema": {
            "fields": [{"name": "id", "nullable": True, "type": {"type": "int64"}}],
            "metadata": {"k": "v"},
        },
        "stats": {"num_deleted_rows": 1, "num_fragments": 1},
        "metadata": {
            "total_fragments": "1",
            "total_data_files": "1",
            "total_deletion_files": "1",
            "total_data_file_rows": "10",
            "total_deletion_file_rows": "1",
            "total_rows": "9",
        },
        "properties": {},
        "managed_versioning": True,
        "is_only_declared": False,
    }
    assert m.DescribeTableResponse.model_validate(answer).version == 3


def test_detailed_metadata_of_a_version_and_a_branch(lance: Lance):
    make_lance_table(("ws", "t"), pa.table({"id": [1, 2, 3]}))
    lance.post("/v1/table/ws$t/branches/create", {"name": "dev"})
    columns = [{"name": "n", "expression": "id"}]
    lance.post("/v1/table/ws$t/add_columns", {"new_columns": columns, "branch": "dev"})

    def names(**body) -> list[str]:
        body["load_detailed_metadata"] = True
        description = lance.post("/v1/table/ws$t/describe", body)
        return [field["name"] for field in description["schema"]["fields"]]

    assert names() == names(version=1) == names(branch="main") == ["id"]
    assert names(branch="dev") == ["id", "n"]
    path, request = "/v1/table/ws$t/describe", {"load_detailed_metadata": True}
    lance.refused(404, 11, "no version 9", path, {**request, "version": 9})
    lance.refused(404, 22, "no branch 'x'", path, {**request, "branch": "x"})


def test_detailed_metadata_agrees_with_the_reference(lance: Lance, tmp_path: Path):
    types = {
        "list": pa.list_(pa.float32(), 2),
        "map": pa.map_(pa.string(), pa.int8()),
        "json": pa.json_(),
        "decimal": pa.decimal128(10, -2),
        "dictionary": pa.dictionary(pa.int8(), pa.string()),
        "struct": pa.struct([pa.field("a", pa.large_binary(), nullable=False)]),
        "zone": pa.timestamp("ns", "Europe/Berlin"),
    }
    for name, type_ in types.items():
        field = pa.field("c", type_, metadata={"k": "v"})
        data = pa.schema([field], metadata={"of": "schema"}).empty_table()
        local = tmp_path / "reference"
        pylance.write_dataset(data, str(local / f"{name}.lance"), data_storage_version="2.2")
        reference = DirectoryNamespace(root=str(local))
        request = m.DescribeTableRequest(id=[name], load_detailed_metadata=True)
        expected = reference.describe_table(request).model_dump(mode="json", by_alias=True)[
            "schema"
        ]
        dataset = pylance.dataset(str(local / f"{name}.lance"))
        ours = m.JsonArrowSchema.model_validate(
            arrow_json.schema_to_json(dataset.lance_schema.to_pyarrow())
        )
        assert ours.model_dump(mode="json", by_alias=True) == expected


def test_detailed_metadata_of_a_declared_table(lance: Lance):
    make_table("ws", "t")
    path = "/v1/table/ws$t/describe"
    lance.refused(409, 19, "no data yet", path, {"load_detailed_metadata": True})
    lance.refused(409, 19, "no data yet", f"{path}?load_detailed_metadata=true")
    lance.post(f"{path}?load_detailed_metadata=false", {"load_detailed_metadata": False})
    lance.refused(409, 19, "no data yet", path, {"tag": "v1"})


def test_an_invalid_flag_is_refused(lance: Lance):
    make_table("ws", "t")
    lance.refused(400, 13, "'with_table_uri'", "/v1/table/ws$t/describe?with_table_uri=maybe")


def test_missing(lance: Lance):
    make_table("ws", "t")
    lance.refused(404, 4, "Table 'ws.u' does not exist", "/v1/table/ws$u/describe", {})
    lance.refused(404, 1, "Namespace 'x' does not exist", "/v1/table/x$t/describe", {})
    lance.refused(404, 4, "Table 'u' does not exist", "/v1/table/u/describe", {})


def test_a_table_of_another_format(lance: Lance):
    make_table("ws", "t")
    Table.objects.update(format=TableFormat.ICEBERG)
    response = lance.refused(404, 4, "Table 'ws.t' does not exist", "/v1/table/ws$t/describe", {})
    assert "iceberg" in response.json()["detail"]


def test_body_id_must_be_the_path_id(lance: Lance):
    make_table("ws", "t")
    make_table("ws", "u")
    lance.refused(400, 13, "['ws', 'u']", "/v1/table/ws$t/describe", {"id": ["ws", "u"]})


@pytest.mark.parametrize(
    "body", [{"version": "1"}, {"version": -1}, {"version": 1.5}, {"check_declared": "yes"}]
)
def test_wrong_types(lance: Lance, body):
    make_table("ws", "t")
    lance.refused(400, 13, next(iter(body)), "/v1/table/ws$t/describe", body)


def test_read_only_key(reader: Lance):
    table = make_table("ws", "t")
    assert reader.post("/v1/table/ws$t/describe")["location"] == table.location
