"""Reads in the event loop are answered as by Django, and only if the caller may have the answer."""

import itertools
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from django.utils import timezone

from api.iceberg.frequent import IcebergReads
from api.lance.frequent import LanceReads
from catalog.access import SYSTEM, tokens
from catalog.access.cached_grants import cache
from catalog.models import (
    ApiKey,
    Grant,
    Namespace,
    PrincipalKind,
    PrincipalLevel,
    Table,
    TableVersion,
)
from catalog.models import Principal as Row
from catalog.postgresql.pipeline import NoRow
from catalog.privileges import Privilege
from catalog.services.access import api_keys, authentication, known_keys, oidc, principals
from catalog.services.engine.commit import commit
from catalog.services.lance.ledger import manifests, version_operations
from catalog.services.tables import (
    namespace_operations,
    table_operations,
    usage,
)
from tests import issuer as issuers
from tests.api.event_loop import Asker, comparable, grant
from tests.api.lance.reads import OF_TABLE, READS, agree, ask_for, create, make_live_table, refuse
from tests.factories import (
    make_iceberg_table,
    make_namespace,
    make_table,
)
from tests.issuer import AUDIENCE

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]


@pytest.fixture
def asker(make_asker: Any) -> Asker:
    return make_asker(LanceReads(), IcebergReads())


@pytest.fixture
def table() -> Table:
    """A table with three versions whose manifests are files."""
    return make_live_table("ns", "t")


BODIES: dict[str, list[Any]] = {
    "describe": [
        {"id": ["ns", "t"]},
        {"id": None},
        {"with_table_uri": True},
        {"with_table_uri": True, "check_declared": True, "vend_credentials": False},
        {"version": None, "branch": "main", "tag": None, "load_detailed_metadata": False},
    ],
    "exists": [{"id": ["ns", "t"]}, {"version": None}],
    "list": [],
    "versions": [
        {"limit": 1},
        {"limit": 1, "descending": True},
        {"limit": 2, "page_token": "1"},
        {"descending": True, "page_token": "2"},
        {"page_token": "3"},
        {"branch": "main", "limit": 1_000_000},
        {"page_token": "0", "descending": True},
    ],
    "namespace": [{"id": ["ns"]}],
    "namespace exists": [{"id": ["ns"]}],
}
QUERIES: dict[str, list[str]] = {
    "describe": ["with_table_uri=true", "check_declared=1&with_table_uri=false"],
    "list": ["limit=1", "limit=2", "limit=3", "include_declared=true", "limit=", "page_token="],
    "versions": ["limit=1&descending=true", "limit=2&page_token=1", "branch=main", "descending="],
}


@pytest.mark.parametrize("read", READS)
def test_an_answer_of_the_event_loop_is_that_of_django(asker, admin, table, read):
    make_iceberg_table("ns", "u")
    make_table("ns", "declared")
    bodies = [b"", *map(orjson.dumps, [{}, *BODIES[read]] if read != "list" else [])]
    for query, body in itertools.product(["", "delimiter=%24", *QUERIES.get(read, [])], bodies):
        answer = agree(asker, ask_for(admin, read, QUERY_STRING=query), body)
        assert answer.status == 200


def test_a_declared_table(asker, admin):
    make_table("ns", "t", properties={"ä": "\u2028"})
    body = b'{"check_declared": true}'
    assert b'"is_only_declared":true' in agree(asker, ask_for(admin, "describe"), body).content
    assert agree(asker, ask_for(admin, "versions")).content == b'{"versions":[]}'


@pytest.mark.parametrize("delimiter", [".", "/", "::", "$", "n"])
def test_another_delimiter(asker, admin, table, delimiter):
    make_live_table("a", "b.c", "t")
    for identifier in (("ns", "t"), ("a", "b.c", "t"), ("a", "b", "c", "t")):
        path = f"/v1/table/{delimiter.join(identifier)}/describe"
        query = f"delimiter={delimiter}"
        request = ask_for(admin, "describe", PATH_INFO=path, QUERY_STRING=query)
        expected = asker.ordinary(request)
        if expected.status == 200:
            agree(asker, request)
        else:
            refuse(asker, request, expected.status)


def test_spaces_and_pluses_are_one_name(asker, admin):
    make_live_table("ns", "a b")
    for path in ("/v1/table/ns$a b/describe", "/v1/table/ns$a+b/describe"):
        for names in (["ns", "a b"], ["ns", "a+b"]):
            body = orjson.dumps({"id": names})
            agree(asker, ask_for(admin, "describe", PATH_INFO=path), body)


def test_the_root(asker, admin):
    make_table("t")
    for read, path in (
        ("namespace", "/v1/namespace/$/describe"),
        ("list", "/v1/namespace/$/table/list"),
    ):
        agree(asker, ask_for(admin, read, PATH_INFO=path))
    for read, path in (("describe", "/v1/table/$/describe"), ("exists", "/v1/table/$/exists")):
        refuse(asker, ask_for(admin, read, PATH_INFO=path), 404)


def test_metadata_of_versions(asker, admin, table):
    odd = {"a": 'quote " and \\ and é', "ü": "\u2028\U0001f600", "z": "", "b": "1"}
    commit(
        [create(table, ("ns", "t"), 4, metadata=odd, e_tag='"x"', manifest_size=1)], actor=SYSTEM
    )
    assert b'"e_tag"' in agree(asker, ask_for(admin, "versions")).content


# -- the state of the objects


def test_a_change_is_visible_at_once(asker, admin, table):
    requests = [ask_for(admin, read) for read in READS]

    def answers() -> list[bytes]:
        return [agree(asker, request).content for request in requests]

    before = answers()
    commit([create(table, ("ns", "t"), 4)], actor=SYSTEM)
    after = answers()
    changed = [a != b for a, b in zip(before, after, strict=True)]
    assert dict(zip(READS, changed, strict=True)) == {
        **dict.fromkeys(READS, False),
        "versions": True,
    }
    rename = table_operations.RenameTable(table=("ns", "t"), new=("ns", "u"))
    commit([rename], actor=SYSTEM)
    assert agree(asker, ask_for(admin, "list")).content == b'{"tables":["u"]}'
    for read in OF_TABLE:
        refuse(asker, ask_for(admin, read), 404)
    commit([table_operations.DropTable(table=("ns", "u"))], actor=SYSTEM)
    assert agree(asker, ask_for(admin, "list")).content == b'{"tables":[]}'
    commit([namespace_operations.DropNamespace(namespace=("ns",))], actor=SYSTEM)
    for read in READS:
        refuse(asker, ask_for(admin, read), 404)


def test_a_new_table_of_the_same_name(asker, admin, table):
    first = agree(asker, ask_for(admin, "describe")).content
    commit([table_operations.DropTable(table=("ns", "t"))], actor=SYSTEM)
    refuse(asker, ask_for(admin, "describe"), 404)
    make_live_table("ns", "t", numbers=(1,))
    assert agree(asker, ask_for(admin, "describe")).content != first
    assert agree(asker, ask_for(admin, "versions")).content.count(b"manifest_path") == 1


def test_properties_of_a_namespace_change_at_once(asker, admin, table):
    request = ask_for(admin, "namespace")
    assert agree(asker, request).content == b'{"properties":{}}'
    Namespace.objects.filter(name="ns").update(properties={"b": "1", "a": "é"})
    assert agree(asker, request).content == '{"properties":{"a":"é","b":"1"}}'.encode()


def test_deleted_versions(asker, admin, table):
    delete = version_operations.DeleteVersions(table=("ns", "t"), branch="", ranges=((1, 3),))
    commit([delete], actor=SYSTEM)
    assert agree(asker, ask_for(admin, "versions")).content.count(b"manifest_path") == 1


def test_a_manifest_that_may_have_to_be_moved_takes_the_ordinary_way(asker, admin, table):
    """Another process has committed the version, and may not have moved the manifest yet."""
    row = TableVersion.objects.get(table=table, version=3)
    final = Path("/" + row.manifest_path.lstrip("/"))
    staged = final.with_name(f"{final.name}-0b9e7a4c-3f6d-4e4b-9f5e-2a1c5d7e8f90")
    final.rename(staged)
    TableVersion.objects.filter(pk=row.pk).update(staged_path=str(staged).lstrip("/"))
    request = ask_for(admin, "versions")
    authentication.authenticate(admin)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifests, "_seen_at", type(manifests._seen_at)())
        assert asker.in_loop(request) is None
    assert staged.exists()
    expected = asker.ordinary(request)
    assert final.exists()
    assert not staged.exists()
    assert comparable(asker.in_loop(request)) == comparable(expected)


def test_describing_a_version_takes_the_ordinary_way(asker, admin, table):
    """It looks whether the manifest is still in storage."""
    request = ask_for(admin, "versions", PATH_INFO="/v1/table/ns$t/version/describe")
    refuse(asker, request, 200)


def test_tables_in_an_object_store_take_the_ordinary_way(asker, admin, table):
    """Their answers have credentials, or at least an address."""
    for read in OF_TABLE:
        agree(asker, ask_for(admin, read))
    Table.objects.filter(name="t").update(location="s3://bucket/t")
    for read in ("describe", "versions"):
        assert asker.in_loop(ask_for(admin, read)) is None


def test_what_is_no_lance_table_takes_the_ordinary_way(asker, admin):
    make_iceberg_table("ns", "t")
    authentication.authenticate(admin)
    for read in OF_TABLE:
        refuse(asker, ask_for(admin, read), 404)
    assert agree(asker, ask_for(admin, "list")).content == b'{"tables":[]}'


def test_missing_objects_take_the_ordinary_way(asker, admin):
    authentication.authenticate(admin)
    for read in READS:
        refuse(asker, ask_for(admin, read), 404)


# -- access


def test_a_principal_without_a_privilege_takes_the_ordinary_way(asker, admin, tenant, table):
    authentication.authenticate(tenant)
    for read in READS:
        agree(asker, ask_for(admin, read))
        refuse(asker, ask_for(tenant, read), 404)
    missing = asker.ordinary(ask_for(tenant, "describe", PATH_INFO="/v1/table/x$t/describe"))
    assert missing.status == 404


TARGETS = {
    "table": lambda: {"table": Table.objects.get(name="t")},
    "namespace": lambda: {"namespace": Namespace.objects.get(name="ns")},
    "root": lambda: {"namespace": Namespace.objects.get(path=[])},
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("privilege", [Privilege.BROWSE, Privilege.READ, Privilege.WRITE])
def test_grants_count_until_they_are_revoked(asker, tenant, table, target, privilege):
    mask = Privilege.BROWSE | privilege
    grant(privileges=mask, **TARGETS[target]())
    statuses = {}
    for read in READS:
        request = ask_for(tenant, read)
        expected = asker.ordinary(request)
        answer = asker.in_loop(request)
        statuses[read] = expected.status
        if answer is None:
            continue
        assert comparable(answer) == comparable(expected)
        assert expected.status == 200
    assert statuses["exists"] == 200
    assert (statuses["describe"] == 200) == (Privilege.READ in mask)
    Grant.objects.all().delete()
    for read in READS:
        refuse(asker, ask_for(tenant, read), 404)


def test_which_reads_grants_permit_in_the_event_loop(asker, tenant, table):
    permitted = {}
    for target in ("table", "namespace"):
        Grant.objects.all().delete()
        grant(**TARGETS[target]())
        asker.ordinary(ask_for(tenant, "describe"))  # reads the grants
        permitted[target] = {r for r in READS if asker.in_loop(ask_for(tenant, r)) is not None}
    assert permitted == {"table": set(OF_TABLE), "namespace": set(READS)}


def test_a_location_of_a_namespace_is_for_readers(asker, tenant, admin, table):
    Namespace.objects.filter(name="ns").update(properties={"location": "/secret", "a": "b"})
    grant(privileges=Privilege.BROWSE, **TARGETS["namespace"]())
    request = ask_for(tenant, "namespace")
    assert asker.ordinary(request).content == b'{"properties":{"a":"b"}}'
    assert asker.in_loop(request) is None
    assert b"/secret" in agree(asker, ask_for(admin, "namespace")).content
    Grant.objects.all().delete()
    grant(**TARGETS["namespace"]())
    assert b"/secret" in agree(asker, request).content


def test_many_grants_through_groups(asker, tenant, table):
    principal = Row.objects.get(name="tenant")
    groups = [Row.objects.create(name=f"group:{n}", kind="group") for n in range(5)]
    principal.groups.set(groups)
    for number in range(50):
        row = make_namespace(f"other{number}")
        grant(groups[number % 5].name, namespace=row)
    known_keys.forget_keys()
    refuse(asker, ask_for(tenant, "describe"), 404)
    grant(groups[3].name, **TARGETS["namespace"]())
    for read in READS:
        agree(asker, ask_for(tenant, read))
    principal.groups.remove(groups[3])
    known_keys.forget_keys()
    authentication.authenticate(tenant)
    for read in READS:
        refuse(asker, ask_for(tenant, read), 404)


def test_a_temporary_grant_ends_at_its_time(asker, tenant, table):
    grant(expires_at=timezone.now() + timedelta(hours=1), **TARGETS["namespace"]())
    for read in READS:
        agree(asker, ask_for(tenant, read))
    Grant.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    for read in READS:
        refuse(asker, ask_for(tenant, read), 404)


def test_a_temporary_grant_that_ends_while_it_is_cached(asker, tenant, table):
    grant(expires_at=timezone.now() + timedelta(hours=1), **TARGETS["namespace"]())
    agree(asker, ask_for(tenant, "describe"))
    for ids, grants in dict(cache._entries).items():
        cache._entries[ids] = type(grants)(
            grants.version, grants.namespaces, grants.tables, until=1.0
        )
    assert asker.in_loop(ask_for(tenant, "describe")) is None
    assert asker.in_loop(ask_for(tenant, "list")) is None
    agree(asker, ask_for(tenant, "describe"))  # Django has read the grants again


def test_an_owner_needs_no_grants(asker, tenant, table):
    Table.objects.filter(name="t").update(owner="tenant")
    for read in OF_TABLE:
        agree(asker, ask_for(tenant, read))
    Table.objects.filter(name="t").update(owner="another")
    for read in OF_TABLE:
        refuse(asker, ask_for(tenant, read), 404)
    Namespace.objects.filter(name="ns").update(owner="tenant")
    for read in READS:
        agree(asker, ask_for(tenant, read))


def test_a_key_with_limits(asker, table):
    make_live_table("other", "t")
    narrow = api_keys.create_api_key(actor=SYSTEM, name="narrow", level=PrincipalLevel.READ)[1]
    ApiKey.objects.filter(principal__name="narrow").update(
        namespace=Namespace.objects.get(name="other")
    )
    for read in READS:
        refused = asker.ordinary(ask_for(narrow, read))
        assert asker.in_loop(ask_for(narrow, read)) is None
        assert refused.status in {403, 404}
        path = READS[read][1].replace("/ns", "/other")
        agree(asker, ask_for(narrow, read, PATH_INFO=path))


def test_a_revoked_key_takes_the_ordinary_way(asker, admin, table):
    for read in READS:
        agree(asker, ask_for(admin, read))
    ApiKey.objects.update(revoked_at=timezone.now())
    known_keys.forget_keys()  # as after the time for which it is trusted
    for read in READS:
        refuse(asker, ask_for(admin, read), 401)


def test_tokens_of_an_issuer(asker, admin, table, settings):
    oidc.forget()
    with issuers.running() as issuer:
        settings.MONODON_OIDC_ISSUERS = [issuer.url]
        settings.MONODON_OIDC_AUDIENCES = [AUDIENCE]
        ada = principals.create_principal(
            actor=SYSTEM,
            name="user:ada",
            kind=PrincipalKind.USER,
            level=PrincipalLevel.GRANTED,
            issuer=issuer.url,
            subject="ada-1",
        )
        token = issuer.token()
        for read in READS:
            request = ask_for("", read, HTTP_AUTHORIZATION=f"Bearer {token}")
            refuse(asker, request, 404)
            grant("user:ada", namespace=Namespace.objects.get(name="ns"))
            assert agree(asker, request).principal == "user:ada"
            Grant.objects.all().delete()
            refuse(asker, request, 404)
        Row.objects.filter(pk=ada.pk).update(is_active=False)
        known_keys.forget_keys()
        refuse(asker, request, 401)
    oidc.forget()


def test_a_token_of_the_catalog_has_the_privileges_of_its_scope(asker, admin, table):
    token = tokens.issue_token(known_keys.find_key(admin).pk, Privilege.BROWSE)
    for read in READS:
        request = ask_for("", read, HTTP_AUTHORIZATION=f"Bearer {token}")
        if read in {"exists", "list", "namespace exists"}:
            agree(asker, request)
        else:
            assert asker.in_loop(request) is None


# -- requests


ODD: list[tuple[str, bytes, int]] = [
    ("describe", b"[]", 400),
    ("describe", b"null", 400),
    ("describe", b"{", 400),
    ("describe", b'{"id": ["ns", "u"]}', 400),
    ("describe", b'{"id": ["ns"]}', 400),
    ("describe", b'{"id": "ns$t"}', 400),
    ("describe", b'{"id": ["ns", "t"], "id": ["ns", "u"]}', 400),
    ("describe", b'{"id": ["ns", "u"], "id": ["ns", "t"]}', 200),
    ("describe", b'{"unknown": 1}', 200),
    ("describe", b'{"unknown": NaN}', 200),
    ("describe", b'{"context": {"a": "b"}}', 200),
    ("describe", b'{"identity": {"api_key": "mnd_other"}}', 200),
    ("describe", b'{"version": 1}', 200),
    ("describe", b'{"version": 99}', 404),
    ("describe", b'{"version": "1"}', 400),
    ("describe", b'{"tag": "none"}', 404),
    ("describe", b'{"branch": "none"}', 404),
    ("describe", b'{"with_table_uri": 1}', 400),
    ("describe", b'{"vend_credentials": "x"}', 400),
    ("describe", b"\xef\xbb\xbf{}", 400),
    ("describe", b'{"\\u0000": 1}', 200),
    ("describe", b'{"id": ["ns", "t\\u0000"]}', 400),
    ("describe", b'{"id": ["ns", "\xff"]}', 400),
    ("describe", b"{}" + b" " * 1_000, 200),
    ("exists", b'{"version": 3}', 200),
    ("exists", b'{"version": 9}', 404),
    ("exists", b'{"tag": "x"}', 200),
    ("versions", b"null", 200),
    ("versions", b'{"limit": 0}', 400),
    ("versions", b'{"limit": -1}', 400),
    ("versions", b'{"limit": 1.5}', 400),
    ("versions", b'{"page_token": "x"}', 400),
    ("versions", b'{"page_token": "-1"}', 400),
    ("versions", b'{"branch": "none"}', 404),
    ("namespace", b'{"id": ["other"]}', 400),
    ("namespace exists", b'{"id": []}', 400),
]


@pytest.mark.parametrize("number", range(len(ODD)))
def test_odd_bodies_take_the_ordinary_way(asker, admin, table, number):
    read, body, status = ODD[number]
    agree(asker, ask_for(admin, read))
    executed = asker.pipeline.executed
    refuse(asker, ask_for(admin, read), status, body)
    assert asker.pipeline.executed == executed


@pytest.mark.parametrize("number", [2**62, 2**63 - 1, 2**63, 2**64, 2**70, 10**30])
def test_huge_numbers_fail_no_statement(asker, admin, table, number):
    """A statement that fails would end the connection for all other requests."""
    cases = [
        ("versions", {"limit": number}, ""),
        ("versions", {"page_token": str(number)}, ""),
        ("versions", {"page_token": str(number), "descending": True}, ""),
        ("versions", {}, f"limit={number}"),
        ("versions", {}, f"page_token={number}"),
        ("list", None, f"limit={number}"),
    ]
    for read, body, query in cases:
        content = (
            b"" if body is None else str(body).replace("'", '"').replace("True", "true").encode()
        )
        request = ask_for(admin, read, QUERY_STRING=query)
        expected = asker.ordinary(request, content)
        answer = asker.in_loop(request, content)
        assert answer is None or comparable(answer) == comparable(expected)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    "more",
    [
        {"QUERY_STRING": "unknown=1"},
        {"QUERY_STRING": "delimiter="},
        {"QUERY_STRING": "&".join(f"a{n}=" for n in range(150))},
        {"QUERY_STRING": f"delimiter={'x' * 600}"},
        {"HTTP_CONTENT_ENCODING": "gzip"},
        {"HTTP_CONTENT_ENCODING": ""},
        {"HTTP_X_LANCEDB_DATABASE": "ns"},
        {"HTTP_HOST": "evil.example.com"},
        {"HTTP_X_API_KEY": "mnd_wrong"},
        {"HTTP_X_API_KEY": ""},
        {"METHOD": "PUT"},
        {"METHOD": "HEAD"},
        {"METHOD": "OPTIONS"},
    ],
)
def test_other_requests_take_the_ordinary_way(asker, admin, table, read, more):
    agree(asker, ask_for(admin, read))
    executed = asker.pipeline.executed
    assert asker.in_loop(ask_for(admin, read, **more)) is None
    wrong = "POST" if READS[read][0] == "GET" else "GET"
    assert asker.in_loop(ask_for(admin, read, METHOD=wrong)) is None
    assert asker.pipeline.executed == executed


@pytest.mark.parametrize(
    ("read", "query"),
    [
        ("describe", "load_detailed_metadata=true"),
        ("describe", "with_table_uri=perhaps"),
        ("describe", "check_declared=2"),
        ("list", "include_declared=false"),
        ("list", "page_token=a"),
        ("list", "limit=0"),
        ("list", "limit=x"),
        ("versions", "branch=b"),
        ("versions", "branch=%00"),
        ("versions", "limit=-1"),
        ("versions", "page_token=x"),
        ("versions", "descending=maybe"),
    ],
)
def test_other_queries_take_the_ordinary_way(asker, admin, table, read, query):
    agree(asker, ask_for(admin, read))
    executed = asker.pipeline.executed
    assert asker.in_loop(ask_for(admin, read, QUERY_STRING=query)) is None
    assert asker.pipeline.executed == executed


@pytest.mark.parametrize("media", ["text/plain", "application/json; charset=utf-8", "", None])
def test_bodies_of_other_types_take_the_ordinary_way(asker, admin, table, media):
    request = ask_for(admin, "describe")
    agree(asker, request, b"{}")
    request.pop("CONTENT_TYPE")
    if media is not None:
        request["CONTENT_TYPE"] = media
    assert asker.in_loop(request, b"{}") is None
    agree(asker, request)  # without a body


def test_a_list_with_a_body_takes_the_ordinary_way(asker, admin, table):
    refuse(asker, ask_for(admin, "list"), 200, b'{"limit": 1}')


@pytest.mark.parametrize(
    "path",
    [
        "/v1/table/ns$t/describe/",
        "/v1/table/ns$t/version/list/",
        "/v1/namespace/ns/describe/",
    ],
)
def test_a_slash_at_the_end(asker, admin, table, path):
    agree(asker, ask_for(admin, "describe", PATH_INFO=path))


@pytest.mark.parametrize(
    "path",
    [
        "/v1/table/ns$t",
        "/v1/table//describe",
        "/v1/table/describe",
        "/v1/table/ns$/describe",
        "/v1/table/$t/describe",
        "/v1/table/ns$t/version",
        "/v1/table/ns$t/index/describe",
        "/v1/table/ns$t/index/i/describe",
        "/v1/table/ns$t/stats",
        "/v1/table/ns$t/version/create",
        "/v1/table/ns$t/drop",
        "/v1/table/ns$\xc3\xa4/describe",
        "/v1/table/ns$\0/describe",
        f"/v1/table/ns${'t' * 600}/describe",
        "/v1/namespace/ns/list",
        "/v1/namespace/ns/create",
        "/v1/namespace/ns/drop",
        "/v1/namespace/namespaces/ns/tables/describe",
        "/v1/transaction/x/describe",
        "/v1/table",
        "/v2/table/ns$t/describe",
    ],
)
def test_other_paths_take_the_ordinary_way(asker, admin, table, path):
    authentication.authenticate(admin)
    assert asker.in_loop(ask_for(admin, "describe", PATH_INFO=path)) is None
    assert Table.objects.get(pk=table.pk).state == "live"


def test_a_key_that_is_not_cached_takes_the_ordinary_way(asker, admin, table):
    request = ask_for(admin, "describe")
    agree(asker, request)
    known_keys.forget_keys()
    assert asker.in_loop(request) is None


@pytest.mark.parametrize("failure", [None, NoRow()])
def test_without_a_row_of_the_database_a_request_takes_the_ordinary_way(
    asker, admin, table, monkeypatch, failure
):
    def execute(name: bytes, parameters: Any) -> Any:
        if failure is None:  # no connection, or too many statements wait
            return None
        future = asker._loop.create_future()
        future.set_exception(failure)
        return future

    for read in READS:
        request = ask_for(admin, read)
        agree(asker, request)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asker.pipeline, "execute", execute)
            assert asker.in_loop(request) is None


# -- what is counted


def test_describing_a_table_counts_as_a_load(asker, admin, tenant, table):
    asker.ordinary(ask_for(admin, "describe"))
    authentication.authenticate(tenant)
    usage.flush()
    for read in READS:
        assert asker.in_loop(ask_for(admin, read)) is not None
        assert asker.in_loop(ask_for(tenant, read)) is None
    assert sum(usage._counts.values()) == 1


def test_the_log_line(asker, admin, table, settings, caplog):
    settings.LOG_REQUESTS = "all"
    request = ask_for(
        admin, "describe", PATH_INFO="/v1/table/ns.t/describe", QUERY_STRING="delimiter=."
    )
    lines = []
    for answer in (asker.ordinary, asker.in_loop):
        caplog.clear()
        with caplog.at_level("INFO", "monodon.request"):
            answer(request)
        (record,) = [each for each in caplog.records if each.name == "monodon.request"]
        facts = ("operation", "target", "queries", "actor", "status")
        lines.append([record.getMessage(), *(getattr(record, name) for name in facts)])
    ordinary, in_loop = lines
    assert in_loop == ["POST /v1/table/ns.t/describe", "DescribeTable", "ns.t", 1, "admin", 200]
    assert [ordinary[0], *ordinary[1:3], *ordinary[4:]] == [in_loop[0], *in_loop[1:3], *in_loop[4:]]
