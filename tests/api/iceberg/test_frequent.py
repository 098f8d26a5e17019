"""Reads in the event loop are answered as by Django, and only if the caller may have the answer."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from prometheus_client import REGISTRY

from api.front.answer import Answer
from api.iceberg.frequent import IcebergReads
from catalog import tracing
from catalog.access import SYSTEM
from catalog.models import ApiKey, Grant, Namespace, PrincipalLevel, Table, TableFormat, TableKind
from catalog.privileges import Privilege
from catalog.services.access import api_keys, authentication, known_keys
from catalog.services.access.throttle import throttle
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.tables import tables, usage
from tests.api import event_loop
from tests.api.event_loop import Asker, add_tables, comparable, grant
from tests.factories import make_iceberg_table, make_namespace, make_table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
TABLE = "/v1/namespaces/ns/tables/t"
LIST = "/v1/namespaces/ns/tables"
CONFIG = "/v1/config"


@pytest.fixture
def asker(make_asker: Any) -> Asker:
    return make_asker(IcebergReads())


def request_of(key: str, path: str = TABLE, method: str = "GET", **more: str) -> dict[str, Any]:
    return event_loop.request_of(key, path, method, **more)


REQUESTS = {
    "load": {},
    "load, gzip": {"HTTP_ACCEPT_ENCODING": "gzip, deflate"},
    "load, all snapshots": {"QUERY_STRING": "snapshots=all"},
    "load, snapshots of refs": {"QUERY_STRING": "snapshots=refs"},
    "load with credentials": {"HTTP_X_ICEBERG_ACCESS_DELEGATION": "vended-credentials"},
    "load, an old ETag": {"HTTP_IF_NONE_MATCH": '"old"'},
    "exists": {"REQUEST_METHOD": "HEAD"},
    "list": {"PATH_INFO": LIST},
    "configuration": {"PATH_INFO": CONFIG},
}


@pytest.mark.parametrize("case", REQUESTS)
def test_an_answer_of_the_event_loop_is_that_of_django(asker, admin, case):
    make_iceberg_table("ns", "t")
    make_iceberg_table("ns", "u")
    make_table("ns", "lance")
    request = request_of(admin, **REQUESTS[case])
    expected = asker.ordinary(request)
    assert expected.status in {200, 204}
    answer = asker.in_loop(request)
    assert answer is not None
    assert comparable(answer) == comparable(expected)
    assert dict(answer.headers)["x-request-id"] != dict(expected.headers)["x-request-id"]


@pytest.mark.parametrize("path", ["/v1/namespaces/tables", "/v1/prod/namespaces/tables"])
def test_a_namespace_named_tables_is_no_list(asker, admin, path):
    make_iceberg_table("tables", "t")
    make_iceberg_table("prod", "tables", "t")
    request = request_of(admin, path)
    assert b"properties" in asker.ordinary(request).content
    assert asker.in_loop(request) is None
    request = request_of(admin, f"{path}/tables")
    expected = asker.ordinary(request)
    assert b'"t"' in expected.content
    assert comparable(asker.in_loop(request)) == comparable(expected)


@pytest.mark.parametrize("format_", TableFormat)
def test_a_long_list_takes_the_ordinary_way(asker, admin, format_):
    """Its statement, and rendering it, would keep all other requests waiting."""
    make_iceberg_table("ns", "t")
    namespace = Namespace.objects.get(name="ns")
    add_tables(namespace, range(999), 5, format_)
    request = request_of(admin, LIST)
    expected = asker.ordinary(request)
    assert comparable(asker.in_loop(request)) == comparable(expected)
    add_tables(namespace, range(999, 1000), 5, format_)
    assert asker.ordinary(request).status == 200
    assert asker.in_loop(request) is None


def test_the_statement_of_a_list_reads_a_bounded_number_of_rows(asker, admin):
    for statement in tables.FEW_NAMES.statements.values():
        assert "LIMIT 1001" in statement


def test_a_long_list_of_etags_takes_the_ordinary_way(asker, admin):
    make_iceberg_table("ns", "t")
    etag = dict(asker.ordinary(request_of(admin)).headers)["ETag"]
    for header, is_short in ((f"{'a,' * 400}{etag}", True), (f"{'a,' * 2000}{etag}", False)):
        request = request_of(admin, HTTP_IF_NONE_MATCH=header)
        assert asker.ordinary(request).status == 304
        assert (asker.in_loop(request) is not None) == is_short


@pytest.mark.parametrize("form", ["{}", "W/{}", '"other", {}'])
@pytest.mark.parametrize("query", ["", "snapshots=refs"])
def test_a_client_with_the_current_answer_gets_304(asker, admin, form, query):
    make_iceberg_table("ns", "t")
    etag = dict(asker.ordinary(request_of(admin, QUERY_STRING=query)).headers)["ETag"]
    request = request_of(admin, QUERY_STRING=query, HTTP_IF_NONE_MATCH=form.format(etag))
    answer = asker.in_loop(request)
    assert answer is not None
    assert comparable(answer)[:3] == comparable(asker.ordinary(request))[:3]
    assert answer.status == 304


def test_a_client_with_any_answer_gets_304(asker, admin):
    make_iceberg_table("ns", "t")
    request = request_of(admin, HTTP_IF_NONE_MATCH="*")
    expected = asker.ordinary(request)
    assert comparable(asker.in_loop(request))[:3] == comparable(expected)[:3]
    assert expected.status == 304


def test_the_configuration_takes_no_statement(asker, admin, tenant):
    request = request_of(admin, CONFIG)
    authentication.authenticate(admin)
    assert asker.in_loop(request) is None  # not known yet
    expected = asker.ordinary(request)
    authentication.authenticate(tenant)
    for key in (admin, tenant):
        answer = asker.in_loop(request_of(key, CONFIG))
        assert answer is not None
        assert comparable(answer)[:3] == comparable(expected)[:3]
    assert asker.pipeline.executed == 0
    read = asker.reads.find(request, b"")
    read.learn(Answer(500, [("Content-Type", "text/plain")], b"failed"))
    assert asker.in_loop(request).content == expected.content


def test_through_a_warehouse(asker, admin):
    make_iceberg_table("prod", "ns", "t")
    for path in ("/v1/prod/namespaces/ns/tables", "/v1/prod/namespaces/ns/tables/t"):
        request = request_of(admin, path)
        expected = asker.ordinary(request)
        answer = asker.in_loop(request)
        assert answer is not None
        assert comparable(answer) == comparable(expected)
    assert asker.in_loop(request_of(admin)) is None


def test_the_request_id_of_the_client(asker, admin):
    make_iceberg_table("ns", "t")
    authentication.authenticate(admin)
    answer = asker.in_loop(request_of(admin, method="HEAD", HTTP_X_REQUEST_ID="mine"))
    assert dict(answer.headers)["x-request-id"] == "mine"


# -- the state of the table


def test_a_change_is_visible_at_once(asker, admin):
    first = make_iceberg_table("ns", "t")
    request = request_of(admin)
    asker.ordinary(request)
    assert first.etag in dict(asker.in_loop(request).headers).values()
    iceberg_tables.drop_table(actor=SYSTEM, table=("ns", "t"))
    assert asker.in_loop(request) is None
    second = make_iceberg_table("ns", "t")
    assert asker.in_loop(request) is None
    expected = asker.ordinary(request)
    assert dict(expected.headers)["ETag"] == second.etag != first.etag
    assert comparable(asker.in_loop(request)) == comparable(expected)
    names = [b"t" in asker.in_loop(request_of(admin, LIST)).content]
    iceberg_tables.rename_table(actor=SYSTEM, table=("ns", "t"), new=("ns", "u"))
    names.append(b'"t"' in asker.in_loop(request_of(admin, LIST)).content)
    assert names == [True, False]
    assert asker.in_loop(request) is None
    assert asker.in_loop(request_of(admin, method="HEAD")) is None
    assert asker.in_loop(request_of(admin, "/v1/namespaces/ns/tables/u")) is not None


def test_a_table_whose_files_are_in_an_object_store_takes_the_ordinary_way(asker, admin):
    """Its answer has credentials, or at least an address."""
    make_iceberg_table("ns", "t")
    request = request_of(admin)
    asker.ordinary(request)
    assert asker.in_loop(request) is not None
    Table.objects.filter(name="t").update(location="s3://bucket/t")
    assert asker.in_loop(request) is None
    assert asker.in_loop(request | {"HTTP_IF_NONE_MATCH": "*"}) is None


def test_an_answer_with_credentials_is_not_kept(asker, admin):
    make_iceberg_table("ns", "t")
    request = request_of(admin)
    answer = asker.ordinary(request)
    read = asker.reads.find(request, b"")
    others = [
        Answer(200, [*answer.headers, ("Cache-Control", "private, no-store")], b"secret"),
        Answer(404, answer.headers, b"missing"),
        Answer(200, [("Content-Type", "application/json")], b"without an ETag"),
        Answer(200, answer.headers, b"x" * (3 << 20)),
    ]
    for other in others:
        read.learn(other)
        assert asker.in_loop(request).content == answer.content


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_table("ns", "t"),
        lambda: make_namespace("ns"),
        lambda: make_iceberg_table("ns", "t", stage=True),
    ],
)
def test_what_is_no_iceberg_table_takes_the_ordinary_way(asker, admin, make):
    make_namespace("ns")
    make()
    authentication.authenticate(admin)
    for method in ("GET", "HEAD"):
        request = request_of(admin, method=method)
        assert asker.ordinary(request).status == 404
        assert asker.in_loop(request) is None
        assert asker.in_loop(request | {"HTTP_IF_NONE_MATCH": "*"}) is None


def test_the_list_of_a_missing_namespace_takes_the_ordinary_way(asker, admin):
    make_namespace("ns")
    authentication.authenticate(admin)
    assert asker.in_loop(request_of(admin, LIST)) is not None
    assert asker.ordinary(request_of(admin, "/v1/namespaces/ns", "DELETE")).status == 204
    assert asker.in_loop(request_of(admin, LIST)) is None
    assert asker.in_loop(request_of(admin, "/v1/namespaces/absent/tables")) is None


# -- access


def test_a_principal_without_a_privilege_takes_the_ordinary_way(asker, admin, tenant):
    make_iceberg_table("ns", "t")
    asker.ordinary(request_of(admin))  # there is an answer to repeat
    for name, case in REQUESTS.items():
        if name == "configuration":  # everybody may have it
            continue
        request = request_of(tenant, **case)
        expected = asker.ordinary(request)
        assert expected.status == 404
        assert asker.in_loop(request) is None
        assert asker.in_loop(request | {"HTTP_IF_NONE_MATCH": "*"}) is None


def test_grants_count_until_they_are_revoked(asker, admin, tenant):
    make_iceberg_table("ns", "t")
    grant(table=Table.objects.get(name="t"))
    load, exists = request_of(tenant), request_of(tenant, method="HEAD")
    for request in (load, exists):
        expected = asker.ordinary(request)
        assert expected.status in {200, 204}
        assert comparable(asker.in_loop(request)) == comparable(expected)
    assert asker.in_loop(request_of(tenant, LIST)) is None  # it may see only some of the tables
    Grant.objects.all().delete()
    for request in (load, exists):
        assert asker.in_loop(request) is None
        assert asker.ordinary(request).status == 404
        assert asker.in_loop(request) is None


def test_whoever_may_browse_a_namespace_lists_its_tables(asker, tenant):
    make_iceberg_table("ns", "t")
    make_table("ns", "lance")
    make_iceberg_table("ns", "view")
    Table.objects.filter(name="view").update(kind=TableKind.VIEW)
    row = Namespace.objects.get(name="ns")
    grant(privileges=Privilege.BROWSE, namespace=row)
    request = request_of(tenant, LIST)
    expected = asker.ordinary(request)
    assert b'"t"' in expected.content
    assert b"view" not in expected.content
    assert comparable(asker.in_loop(request)) == comparable(expected)
    Grant.objects.all().delete()
    assert asker.in_loop(request) is None
    assert asker.ordinary(request).status == 404


def test_a_grant_to_browse_permits_no_load(asker, admin, tenant):
    make_iceberg_table("ns", "t")
    asker.ordinary(request_of(admin))
    grant(privileges=Privilege.BROWSE, namespace=Namespace.objects.get(name="ns"))
    for method, status in (("HEAD", 204), ("GET", 403)):
        request = request_of(tenant, method=method)
        assert asker.ordinary(request).status == status
        answer = asker.in_loop(request)
        assert (answer.status if answer else 403) == status


def test_a_grant_ends_at_its_time(asker, tenant):
    make_iceberg_table("ns", "t")
    ends_at = timezone.now() + timedelta(hours=1)
    grant(table=Table.objects.get(name="t"), expires_at=ends_at)
    request = request_of(tenant)
    asker.ordinary(request)
    assert asker.in_loop(request) is not None
    # The time of the database is that of the transaction, so the grant is moved instead.
    Grant.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert asker.in_loop(request) is None
    assert asker.ordinary(request).status == 404


def test_a_key_with_limits(asker, admin):
    make_iceberg_table("ns", "t")
    make_iceberg_table("other", "t")
    row = Namespace.objects.get(name="other")
    narrow = api_keys.create_api_key(actor=SYSTEM, name="narrow", level=PrincipalLevel.READ)[1]
    ApiKey.objects.filter(principal__name="narrow").update(namespace=row)
    asker.ordinary(request_of(admin))
    asker.ordinary(request_of(admin, "/v1/namespaces/other/tables/t"))
    for path, status in ((TABLE, 404), ("/v1/namespaces/other/tables/t", 200)):
        request = request_of(narrow, path)
        assert asker.ordinary(request).status == status
        answer = asker.in_loop(request)
        assert (answer.status if answer else 404) == status
    assert asker.in_loop(request_of(narrow, LIST)) is None


def test_an_owner_loads_without_grants(asker, tenant):
    make_iceberg_table("ns", "t")
    Table.objects.update(owner="tenant")
    request = request_of(tenant)
    expected = asker.ordinary(request)
    assert comparable(asker.in_loop(request)) == comparable(expected)
    Table.objects.update(owner="another")
    assert asker.in_loop(request) is None


# -- requests


@pytest.mark.parametrize(
    "more",
    [
        {"HTTP_HOST": "evil.example.com"},
        {"HTTP_X_API_KEY": "mnd_wrong"},
        {"HTTP_X_API_KEY": ""},
        {"HTTP_X_LANCEDB_DATABASE": "prod"},
        {"REQUEST_METHOD": "POST"},
        {"REQUEST_METHOD": "DELETE"},
        {"REQUEST_METHOD": "OPTIONS"},
        {"REQUEST_METHOD": "HEAD", "QUERY_STRING": "x=y"},
        {"QUERY_STRING": "snapshots=some"},
        {"QUERY_STRING": "snapshots=all&referenced-by=v"},
        {"PATH_INFO": LIST, "QUERY_STRING": "pageSize=1"},
        {"PATH_INFO": LIST, "REQUEST_METHOD": "HEAD"},
        {"PATH_INFO": CONFIG, "QUERY_STRING": "warehouse=sales"},
        {"PATH_INFO": CONFIG, "REQUEST_METHOD": "HEAD"},
        {"PATH_INFO": CONFIG, "HTTP_IF_NONE_MATCH": "*"},
        {"PATH_INFO": f"{CONFIG}/"},
        {"PATH_INFO": "/v1/namespaces/ns"},
        {"PATH_INFO": "/v1/namespaces/ns/tables/"},
        {"PATH_INFO": "/v1/namespaces/ns/tables/t/"},
        {"PATH_INFO": "/v1//namespaces/ns/tables/t"},
        {"PATH_INFO": "/v1/namespaces/ns/views/t"},
        {"PATH_INFO": "/v1/namespaces/ns/views"},
        {"PATH_INFO": "/v1/namespaces/ns/tables/t/credentials"},
        {"PATH_INFO": "/v1/config/namespaces/ns/tables/t"},
        {"PATH_INFO": "/v1/namespaces/ns/tables/\xc3\xa4"},
        {"PATH_INFO": "/v1/namespaces/ns/tables/\0"},
        {"PATH_INFO": f"/v1/namespaces/ns/tables/{'t' * 600}"},
        {"PATH_INFO": "/v1/table/ns$t/describe"},
        {"PATH_INFO": "/admin/"},
    ],
)
def test_other_requests_take_the_ordinary_way(asker, admin, more):
    make_iceberg_table("ns", "t")
    asker.ordinary(request_of(admin))
    executed = asker.pipeline.executed
    assert asker.in_loop(request_of(admin, **more)) is None
    assert asker.pipeline.executed == executed


def test_a_request_with_a_body_takes_the_ordinary_way(asker, admin):
    make_iceberg_table("ns", "t")
    for path in (TABLE, LIST, CONFIG):
        request = request_of(admin, path)
        asker.ordinary(request)
        assert asker.in_loop(request) is not None
        assert asker.in_loop(request, b"{}") is None


def test_a_key_that_is_not_cached_takes_the_ordinary_way(asker, admin):
    make_iceberg_table("ns", "t")
    request = request_of(admin)
    asker.ordinary(request)
    assert asker.in_loop(request) is not None
    known_keys.forget_keys()
    assert asker.in_loop(request) is None


def test_an_address_with_too_many_wrong_keys_takes_the_ordinary_way(asker, admin, monkeypatch):
    make_iceberg_table("ns", "t")
    request = request_of(admin)
    asker.ordinary(request)

    def check(secret: str, address: str, client: str = "") -> None:
        from catalog.errors import TooManyAttempts

        assert address == "127.0.0.1"
        raise TooManyAttempts(10)

    monkeypatch.setattr(throttle, "check", check)
    assert asker.in_loop(request) is None


def test_wrong_keys_count_for_the_client_of_a_proxy(asker, admin, monkeypatch, settings):
    settings.MONODON_PROXIES = 1
    make_iceberg_table("ns", "t")
    request = request_of(admin, HTTP_X_FORWARDED_FOR="192.0.2.7, 192.0.2.8")
    asker.ordinary(request)
    addresses = []
    monkeypatch.setattr(throttle, "check", lambda key, address: addresses.append(address))
    assert asker.in_loop(request) is not None
    assert addresses == ["192.0.2.8"]


def test_a_traced_request_takes_the_ordinary_way(asker, admin, monkeypatch):
    make_iceberg_table("ns", "t")
    request = request_of(admin)
    asker.ordinary(request)
    monkeypatch.setattr(tracing, "is_on", lambda: True)
    assert asker.in_loop(request) is None


# -- what is counted


def test_loads_are_counted(asker, admin):
    make_iceberg_table("ns", "t")
    request = request_of(admin)
    etag = dict(asker.ordinary(request).headers)["ETag"]
    usage.flush()

    def count(operation: str, status: str) -> float:
        labels = {"operation": operation, "status": status}
        return REGISTRY.get_sample_value("monodon_requests_total", labels) or 0

    before = [count("LoadTable", "2xx"), count("LoadTable", "3xx"), count("TableExists", "2xx")]
    asker.in_loop(request)
    asker.in_loop(request | {"HTTP_IF_NONE_MATCH": etag})
    asker.in_loop(request_of(admin, method="HEAD"))
    after = [count("LoadTable", "2xx"), count("LoadTable", "3xx"), count("TableExists", "2xx")]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1, 1]
    assert sum(usage._counts.values()) == 2


def test_the_log_line(asker, admin, settings, caplog):
    settings.LOG_REQUESTS = "all"
    make_iceberg_table("ns", "t")
    authentication.authenticate(admin)
    caplog.clear()
    with caplog.at_level("INFO", "monodon.request"):
        asker.in_loop(request_of(admin, method="HEAD"))
    (record,) = [each for each in caplog.records if each.name == "monodon.request"]
    assert record.getMessage() == f"HEAD {TABLE}"
    facts = {name: getattr(record, name) for name in ("operation", "target", "queries", "actor")}
    assert facts == {
        "operation": "TableExists",
        "target": "ns.t",
        "queries": 1,
        "actor": "admin",
    }
