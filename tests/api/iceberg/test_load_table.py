import gzip
import json
import time
from urllib.parse import quote

import pytest

from tests.api.iceberg.client import Iceberg, spell
from tests.factories import make_iceberg_table, make_namespace, make_table

pytestmark = [pytest.mark.operation("loadTable"), pytest.mark.django_db]

PATH = "namespaces/ns/tables/t"
SNAPSHOT = {
    "summary": {"operation": "append"},
    "schema-id": 0,
}


def with_two_snapshots(iceberg: Iceberg) -> None:
    """A table with two snapshots with ids of 63 bits; main refers to the second and no ref to the
    first."""
    first, second = 2**63 - 3, 2**63 - 2
    location = iceberg.get(PATH)["metadata"]["location"]
    snapshot = {
        **SNAPSHOT,
        "timestamp-ms": time.time_ns() // 1_000_000,
        "manifest-list": f"{location}/metadata/snap.avro",
    }
    iceberg.post(
        PATH,
        {
            "requirements": [],
            "updates": [
                {
                    "action": "add-snapshot",
                    "snapshot": {**snapshot, "snapshot-id": first, "sequence-number": 1},
                },
                {
                    "action": "add-snapshot",
                    "snapshot": {**snapshot, "snapshot-id": second, "sequence-number": 2},
                },
                {
                    "action": "set-snapshot-ref",
                    "ref-name": "main",
                    "type": "branch",
                    "snapshot-id": second,
                },
            ],
        },
    )


def test_a_created_object_is_loaded(iceberg: Iceberg, django_assert_num_queries):
    table = make_iceberg_table("ns", "t")
    iceberg.get(PATH)
    with django_assert_num_queries(1):
        loaded = iceberg.get(PATH)
    assert loaded == {
        "metadata-location": table.metadata_location,
        "metadata": table.document,
        "config": {},
    }


def test_clients_that_accept_gzip_get_the_stored_bytes(iceberg: Iceberg):
    table = make_iceberg_table("ns", "t")
    plain = iceberg.call("GET", PATH)
    packed = iceberg.call("GET", PATH, headers={"accept-encoding": "deflate, gzip"})
    assert packed["content-encoding"] == "gzip"
    assert packed.content == bytes(table.answer)
    assert gzip.decompress(packed.content) == plain.content
    assert "content-encoding" not in plain
    assert plain["vary"] == packed["vary"] == "Accept-Encoding"
    assert plain["etag"] == packed["etag"] == table.etag


@pytest.mark.parametrize("form", ["{}", "W/{}", '"other", {}', "*"])
def test_a_matching_etag_gets_a_304(iceberg: Iceberg, django_assert_num_queries, form):
    table = make_iceberg_table("ns", "t")
    iceberg.get(PATH)
    with django_assert_num_queries(1):
        response = iceberg.call("GET", PATH, headers={"if-none-match": form.format(table.etag)})
    assert (response.status_code, response.content) == (304, b"")
    assert response["etag"] == table.etag


def test_a_commit_changes_the_etag(iceberg: Iceberg):
    old = make_iceberg_table("ns", "t").etag
    with_two_snapshots(iceberg)
    response = iceberg.call("GET", PATH, headers={"if-none-match": old})
    assert response.status_code == 200
    assert response["etag"] != old


def test_refs_mode_returns_only_referenced_snapshots(iceberg: Iceberg):
    make_iceberg_table("ns", "t")
    with_two_snapshots(iceberg)
    everything = iceberg.get(f"{PATH}?snapshots=all")
    assert everything == iceberg.get(PATH)
    referred = iceberg.get(f"{PATH}?snapshots=refs")
    ids = [s["snapshot-id"] for s in referred["metadata"].pop("snapshots")]
    assert ids == [2**63 - 2]
    assert len(everything["metadata"].pop("snapshots")) == 2
    assert referred == everything
    tag = iceberg.call("GET", f"{PATH}?snapshots=refs")["etag"]
    assert tag != iceberg.call("GET", PATH)["etag"]
    again = {"if-none-match": tag}
    assert iceberg.call("GET", f"{PATH}?snapshots=refs", headers=again).status_code == 304
    assert iceberg.call("GET", PATH, headers=again).status_code == 200


def test_an_invalid_snapshots_parameter_is_refused(iceberg: Iceberg):
    make_iceberg_table("ns", "t")
    iceberg.refused(400, "BadRequestException", "use all or refs", f"GET {PATH}?snapshots=some")


def test_names_of_every_kind(iceberg: Iceberg):
    make_iceberg_table("a b", "c.d", "e/f ü")
    path = f"namespaces/{spell('a b', 'c.d')}/tables/{quote('e/f ü', safe='')}"
    assert iceberg.get(path)["metadata"]["location"]


def test_through_a_warehouse(iceberg: Iceberg):
    table = make_iceberg_table("prod", "ns", "t")
    assert iceberg.at("prod").get(PATH)["metadata-location"] == table.metadata_location
    iceberg.refused(404, "NoSuchTableException", "ns.t", f"GET {PATH}")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_missing_tables_are_refused(iceberg: Iceberg, method):
    make_namespace("ns")
    iceberg.refused(404, "NoSuchTableException", "Table does not exist: ns.t", f"{method} {PATH}")
    missing = f"{method} namespaces/none/tables/t"
    iceberg.refused(404, "NoSuchTableException", "Table does not exist: none.t", missing)


def test_loading_a_lance_table_gives_404_with_the_reason(iceberg: Iceberg, reader: Iceberg):
    make_table("ns", "t")
    iceberg.refused(404, "NoSuchTableException", "its format is lance", f"GET {PATH}")
    lance = reader.call("POST", "/v1/table/ns$i/describe", {})
    assert lance.status_code == 404
    make_iceberg_table("ns", "i")
    lance = reader.call("POST", "/v1/table/ns$i/describe", {})
    assert json.loads(lance.content)["code"] == 4
    assert "its format is iceberg" in json.loads(lance.content)["detail"]


@pytest.mark.operation("tableExists")
def test_table_exists(iceberg: Iceberg, django_assert_num_queries):
    make_iceberg_table("ns", "t")
    iceberg.call("HEAD", PATH)
    with django_assert_num_queries(1):
        response = iceberg.call("HEAD", PATH)
    assert (response.status_code, response.content) == (204, b"")


@pytest.mark.operation("listTables")
def test_lists_tables_of_its_own_format(iceberg: Iceberg, django_assert_num_queries):
    for name in ("b", "a", "c"):
        make_iceberg_table("ns", name)
    make_table("ns", "vectors")
    make_namespace("ns", "below")
    named = [{"namespace": ["ns"], "name": name} for name in "abc"]
    iceberg.get("namespaces/ns/tables")
    with django_assert_num_queries(1):
        response = iceberg.get("namespaces/ns/tables")
    assert response == {"identifiers": named, "next-page-token": None}
    first = iceberg.get("namespaces/ns/tables?pageToken=&pageSize=2")
    assert first["identifiers"] == named[:2]
    answer = iceberg.get(f"namespaces/ns/tables?pageToken={first['next-page-token']}&pageSize=2")
    assert answer == {"identifiers": named[2:], "next-page-token": None}
    assert iceberg.at("ns").get("namespaces/below/tables")["identifiers"] == []


@pytest.mark.operation("listTables")
def test_a_list_that_is_refused(iceberg: Iceberg):
    make_namespace("ns")
    request = "GET namespaces/none/tables"
    iceberg.refused(404, "NoSuchNamespaceException", "Namespace does not exist: none", request)
    for query in ("pageSize=0", "pageSize=x", "pageToken=%21"):
        request = f"GET namespaces/ns/tables?{query}"
        iceberg.refused(400, "BadRequestException", query.partition("=")[0], request)


@pytest.mark.operation("loadCredentials")
def test_local_storage_needs_no_credentials(iceberg: Iceberg):
    make_iceberg_table("ns", "t")
    assert iceberg.get(f"{PATH}/credentials") == {"storage-credentials": []}
    request = "GET namespaces/ns/tables/none/credentials"
    iceberg.refused(404, "NoSuchTableException", "ns.none", request)
