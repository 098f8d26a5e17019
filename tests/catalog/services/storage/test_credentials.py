"""Issuing credentials: for whom they are cached, how long, and what becomes of failures."""

import logging
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from catalog.access import SYSTEM, Principal
from catalog.errors import (
    CredentialsRefused,
    NamespaceNotFound,
    PermissionDenied,
    ServiceUnavailable,
    TableNotFound,
    Unauthenticated,
)
from catalog.models import (
    ApiKey,
    AuditEvent,
    IcebergPath,
    PrincipalKind,
    PrincipalLevel,
    StorageProfile,
    Table,
)
from catalog.models import Principal as PrincipalRow
from catalog.privileges import Privilege
from catalog.services.access import api_keys, authentication
from catalog.services.engine.expiring_cache import ExpiringCache
from catalog.services.storage import credentials, profiles
from catalog.services.storage.client_sessions import s3, token_services
from catalog.services.storage.credentials import Credentials
from catalog.storage import role_sessions
from catalog.storage.configuration import StoreConfiguration
from catalog.storage.s3 import policies as s3_policies
from tests import vending
from tests.factories import snapshot, unchanged
from tests.ports import free_port
from tests.stores.fixtures import MakeProfile
from tests.stores.s3 import Moto

pytestmark = pytest.mark.django_db

ALICE = Principal("user:alice", Privilege.ALL, ids=(1_000_001,))
BOB = Principal("user:bob", Privilege.ALL, ids=(1_000_002,))


@pytest.fixture(autouse=True)
def _principals(db: None) -> None:
    """The rows of the principals in this module, with keys that the sequence does not reach."""
    names = {1_000_001: "user:alice", 1_000_002: "user:bob", 1_000_007: "user:outsider"}
    PrincipalRow.objects.bulk_create(
        PrincipalRow(
            pk=pk,
            name=name,
            kind=PrincipalKind.USER,
            level=PrincipalLevel.GRANTED if name == "user:outsider" else PrincipalLevel.ADMIN,
        )
        for pk, name in names.items()
    )


@pytest.fixture
def lake(moto_s3: Moto, make_profile: MakeProfile) -> StorageProfile:
    fields = moto_s3.profile_fields() | {"client_access": "sts", "role": moto_s3.role}
    return make_profile(name="lake", roots=[f"s3://{moto_s3.new_bucket()}/root"], **fields)


@pytest.fixture
def table(lake: StorageProfile) -> Table:
    return vending.make_lance(f"{lake.roots[0]}/orders", "ns", "orders")


def change(profile: StorageProfile, **fields: Any) -> None:
    StorageProfile.objects.filter(pk=profile.pk).update(**fields, version=profile.version + 1)
    profile.refresh_from_db()
    profiles.discard_cache()


def issue(
    actor: Principal, table: Table, *, held: Privilege = Privilege.ALL, state: str = ""
) -> Credentials:
    opens = credentials.table_access(actor, table, held=held, state=state)
    assert opens is not None
    return credentials.issue(actor, table, opens)


def sessions_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The principals for whom the token service is asked, from now on."""
    principals: list[str] = []
    request = s3.request

    def noted(*args: Any, principal: str, **options: Any) -> Any:
        principals.append(principal)
        return request(*args, principal=principal, **options)

    monkeypatch.setattr(s3, "request", noted)
    return principals


def test_local_tables_have_none(db):
    local = vending.make_table("ns", "local")
    with unchanged():
        assert credentials.table_access(ALICE, local, held=Privilege.ALL) is None


def test_credentials_are_cached_for_one_principal(table: Table, monkeypatch):
    requested = sessions_of(monkeypatch)
    first = issue(ALICE, table)
    assert issue(ALICE, table) is first
    other = issue(BOB, table)
    assert requested == ["user:alice", "user:bob"]
    assert first.key is not None
    assert other.key is not None
    assert first.key.id != other.key.id


def test_a_limited_key_has_credentials_of_its_own(table: Table, monkeypatch):
    requested = sessions_of(monkeypatch)
    issue(ALICE, table)
    issue(replace(ALICE, ceiling=vending.WRITE), table)
    assert len(requested) == 2


def test_reading_and_writing_are_cached_apart(table: Table, monkeypatch):
    requested = sessions_of(monkeypatch)
    reader = replace(ALICE, everywhere=vending.READ, ids=())
    assert issue(reader, table, held=vending.READ) is not issue(ALICE, table)
    assert len(requested) == 2


def test_cached_credentials_cost_no_statement(table: Table, django_assert_num_queries):
    issue(ALICE, table)
    profiles.configurations()
    with django_assert_num_queries(0):
        issue(ALICE, table)


def test_a_change_of_the_profile_ends_them(table: Table, lake: StorageProfile, monkeypatch):
    requested = sessions_of(monkeypatch)
    first = issue(ALICE, table)
    change(lake, lifetime_seconds=1800)
    assert issue(ALICE, table) is not first
    assert len(requested) == 2


def test_a_change_of_directories_ends_them(lake: StorageProfile, monkeypatch, moto_s3: Moto):
    requested = sessions_of(monkeypatch)
    orders = vending.make_iceberg(f"{lake.roots[0]}/orders", "ns", "orders")
    issue(ALICE, orders, state='"1"')
    IcebergPath.objects.create(table=orders, path=f"{lake.roots[0]}/data-of-orders")
    issue(ALICE, orders, state='"1"')
    assert len(requested) == 1
    issued = issue(ALICE, orders, state='"2"')
    assert len(requested) == 2
    assert issued.has_several_directories
    assert issued.key is not None
    client = moto_s3.client_with(issued.key.id, issued.key.secret, issued.key.token)
    bucket = lake.roots[0].split("/")[2]
    for directory, expected in (("data-of-orders", True), ("orders", True), ("other", False)):
        prefix = f"root/{directory}/"
        assert expected is vending.is_permitted(
            lambda prefix=prefix: client.list_objects_v2(Bucket=bucket, Prefix=prefix)
        )


def test_directories_outside_the_profile_are_left_out(lake: StorageProfile, tmp_path):
    orders = vending.make_iceberg(f"{lake.roots[0]}/orders", "ns", "orders")
    for path in (f"{tmp_path}/data", "s3://unknown/data", f"{lake.roots[0]}/orders/data"):
        IcebergPath.objects.create(table=orders, path=path)
    opens = credentials.table_access(ALICE, orders, held=Privilege.ALL)
    assert opens is not None
    assert opens.directories == (orders.location,)


def test_a_directory_with_files_of_others_is_left_out(lake: StorageProfile):
    root = lake.roots[0]
    orders = vending.make_iceberg(f"{root}/orders", "ns", "orders")
    others = vending.make_iceberg(f"{root}/shared/others", "ns", "others")
    for path in (f"{root}/shared", f"{root}/common", f"{root}/own"):
        IcebergPath.objects.create(table=orders, path=path)
    IcebergPath.objects.create(table=others, path=f"{root}/common")
    opens = credentials.table_access(ALICE, orders, held=Privilege.ALL)
    assert opens is not None
    assert opens.directories == (orders.location, f"{root}/own")
    opens = credentials.table_access(ALICE, others, held=Privilege.ALL)
    assert opens is not None
    assert opens.directories == (others.location,)


def test_too_many_directories_for_a_policy_leave_the_location(lake: StorageProfile):
    orders = vending.make_iceberg(f"{lake.roots[0]}/orders", "ns", "orders")
    for number in range(40):
        IcebergPath.objects.create(table=orders, path=f"{lake.roots[0]}/data-of-orders-{number}")
    issued = issue(ALICE, orders)
    assert issued.key is not None
    assert not issued.has_several_directories


def test_a_table_with_another_inside_gets_none(lake: StorageProfile, monkeypatch):
    requested = sessions_of(monkeypatch)
    outer = vending.make_iceberg(f"{lake.roots[0]}/outer", "ns", "outer")
    vending.make_iceberg(f"{lake.roots[0]}/outer/inner", "ns", "inner")
    before = snapshot()
    with pytest.raises(CredentialsRefused, match="another table has files inside"):
        issue(ALICE, outer)
    assert requested == []
    assert snapshot() == before


def test_the_lifetime_and_when_clients_renew(table: Table, lake: StorageProfile):
    for lifetime, margin, offset in ((3600, 300, 60), (900, 180, 60), (10, 2, 2)):
        change(lake, lifetime_seconds=lifetime)
        before = time.time()
        issued = issue(ALICE, table)
        assert issued.expires_at is not None
        assert before + lifetime - 2 <= issued.expires_at <= time.time() + lifetime + 1
        assert issued.expires_at - issued.renew_at == margin
        assert issued.refresh_offset_millis == offset * 1000
        assert issued.expires_at_millis == int(issued.expires_at * 1000)


def test_credentials_are_renewed_before_they_expire(
    table: Table, lake: StorageProfile, monkeypatch
):
    change(lake, lifetime_seconds=100)
    now = time.time()
    moments = [now]
    cache: ExpiringCache[Any, Any] = ExpiringCache(10, clock=lambda: moments[-1])
    monkeypatch.setattr(credentials, "_cache", cache)
    first = issue(ALICE, table)
    assert 75 < first.renew_at - now < 100
    moments.append(first.renew_at - 1)
    assert issue(ALICE, table) is first
    moments.append(first.renew_at + 1)
    assert issue(ALICE, table) is not first


@pytest.mark.django_db(transaction=True)
def test_concurrent_requests_share_one_issue(table: Table, monkeypatch):
    requested = sessions_of(monkeypatch)
    barrier = threading.Barrier(8)

    def run(_: int) -> Credentials:
        try:
            barrier.wait()
            return issue(ALICE, table)
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        issued = list(pool.map(run, range(8)))
    assert requested == ["user:alice"]
    assert all(each is issued[0] for each in issued)
    assert AuditEvent.objects.filter(action="credentials.issue").count() == 1


def test_each_issue_is_audited_once(table: Table):
    issued = issue(ALICE, table)
    issue(ALICE, table)
    event = AuditEvent.objects.get(action="credentials.issue")
    assert (event.actor, event.target, event.table_uuid) == ("user:alice", "ns.orders", table.uuid)
    assert issued.expires_at is not None
    until = datetime.fromtimestamp(issued.expires_at, UTC).isoformat(timespec="seconds")
    assert event.after == {
        "access": "write",
        "client_access": "sts",
        "profile": "lake",
        "until": until,
    }


def test_withdrawn_access_is_noticed_when_they_are_issued(table: Table):
    outsider = Principal("user:outsider", ids=(1_000_007,))
    with unchanged(), pytest.raises(NamespaceNotFound):
        issue(outsider, table)
    reader = Principal("user:reader", vending.READ)
    with unchanged(), pytest.raises(PermissionDenied):
        issue(reader, table, held=Privilege.ALL)  # as if WRITE had been withdrawn in between


WITHDRAWALS: dict[str, Callable[[], object]] = {
    "key revoked": lambda: ApiKey.objects.update(revoked_at=timezone.now()),
    "key expired": lambda: ApiKey.objects.update(expires_at=timezone.now()),
    "principal deactivated": lambda: PrincipalRow.objects.update(is_active=False),
    "principal deleted": lambda: PrincipalRow.objects.filter(name="etl").delete(),
    "group left": lambda: PrincipalRow.groups.through.objects.all().delete(),
    "level changed": lambda: PrincipalRow.objects.filter(name="group:team").update(level="granted"),
}


@pytest.mark.parametrize("withdrawal", WITHDRAWALS)
def test_what_another_process_has_withdrawn_ends_issuing_at_once(
    table: Table, monkeypatch, withdrawal
):
    """This process trusts the key for some more seconds."""
    _, key = api_keys.create_api_key(actor=SYSTEM, name="etl", level=PrincipalLevel.GRANTED)
    team = PrincipalRow.objects.create(
        name="group:team", kind=PrincipalKind.GROUP, level=PrincipalLevel.READ
    )
    PrincipalRow.objects.get(name="etl").groups.add(team)
    actor = authentication.authenticate(key)
    issue(actor, table, held=vending.READ)
    credentials.discard_cache()
    requested = sessions_of(monkeypatch)
    WITHDRAWALS[withdrawal]()
    trusted = authentication.authenticate(key)
    assert trusted.ids == actor.ids
    with unchanged(), pytest.raises((Unauthenticated, NamespaceNotFound)):
        issue(trusted, table, held=vending.READ)
    assert requested == []


def test_a_dropped_table_gets_none(table: Table):
    opens = credentials.table_access(ALICE, table, held=Privilege.ALL)
    assert opens is not None
    Table.objects.filter(pk=table.pk).update(state="dropped")
    with unchanged(), pytest.raises(TableNotFound):
        credentials.issue(ALICE, table, opens)


def test_the_profiles_own_key(table: Table, lake: StorageProfile, moto_s3: Moto):
    change(lake, client_access="static")
    issued = issue(Principal("user:reader", vending.READ), table, held=vending.READ)
    assert issued.key is not None
    assert (issued.key.id, issued.key.secret) == (moto_s3.access_key, moto_s3.secret_key)
    assert issued.expires_at is None
    assert AuditEvent.objects.filter(action="credentials.issue").count() == 1


@pytest.mark.parametrize("client_access", ["none", "signing"])
def test_an_address_without_a_key(table: Table, lake: StorageProfile, client_access):
    change(lake, client_access=client_access)
    with unchanged():
        issued = issue(ALICE, table)
    assert issued.key is None
    assert issued.configuration.endpoint == lake.endpoint


@pytest.mark.parametrize("external_id", ["", "tests"])
def test_the_request_to_the_token_service(table: Table, lake: StorageProfile, external_id):
    change(lake, external_id=external_id, lifetime_seconds=1200)
    requests = []
    client = role_sessions.sts_client(profiles.configuration(lake))
    client.meta.events.register(
        "provide-client-params.sts.AssumeRole", lambda params, **_: requests.append(params)
    )
    issue(ALICE, table)
    (request,) = requests
    policy = request.pop("Policy")
    assert policy == s3_policies.session_policy([table.location], write=True)
    expected = {"ExternalId": external_id} if external_id else {}
    assert request == expected | {
        "RoleArn": lake.role,
        "RoleSessionName": s3.session_name("user:alice"),
        "DurationSeconds": 1200,
    }


# --- failures ----------------------------------------------------------------------------------


def test_an_unreachable_token_service(table: Table, lake: StorageProfile, monkeypatch, caplog):
    monkeypatch.setattr(role_sessions, "_client_config", vending.impatient)
    change(lake, sts_endpoint=f"http://127.0.0.1:{free_port()}")
    requested = sessions_of(monkeypatch)
    with caplog.at_level(logging.ERROR), unchanged():
        for _ in range(3):
            with pytest.raises(ServiceUnavailable) as raised:
                issue(ALICE, table)
            assert raised.value.message == (
                "Storage profile 'lake' cannot issue credentials: the token service does not answer"
                " as expected: EndpointConnectionError"
            )
    assert len(requested) == 1  # then it is left alone for two seconds
    assert len(caplog.records) == 1
    assert "sts_endpoint" in caplog.text


def test_a_location_that_is_too_long_for_a_session_policy(table: Table, lake: StorageProfile):
    """No later request succeeds. Other tables get credentials at once."""
    configuration = profiles.configuration(lake)
    directory = f"{lake.roots[0]}/{'x' * 900}"
    with (
        unchanged(),
        pytest.raises(CredentialsRefused, match=r"too long .*\. Shorten the location"),
    ):
        token_services.open_session(configuration, [directory], write=True, principal="user:ada")
    assert issue(ALICE, table).key is not None


def test_a_wrong_key(table: Table, lake: StorageProfile, caplog, moto_s3: Moto):
    change(lake, key_id="AKIAWRONGWRONGWRONG0")
    _require_refusal(table, "InvalidClientTokenId", "Set the key of the profile again", caplog)
    for secret in (moto_s3.secret_key, "AKIAWRONGWRONGWRONG0"):
        assert secret not in caplog.text


def test_a_server_that_may_not_assume_the_role(table: Table, lake: StorageProfile, caplog):
    key = issue(ALICE, table).key
    assert key is not None
    change(lake, key_id=key.id, secret=profiles.sealed(key.secret, key.token))
    _require_refusal(table, "AccessDenied", "trust policy", caplog)
    for secret in (key.id, key.secret, key.token):
        assert secret not in caplog.text


def _require_refusal(table: Table, code: str, remedy: str, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    with unchanged(), pytest.raises(ServiceUnavailable) as raised:
        issue(ALICE, table)
    assert raised.value.message == (
        f"Storage profile 'lake' cannot issue credentials: the token service refuses: {code}"
    )
    assert remedy in caplog.text


def test_no_secret_is_logged_or_shown(table: Table, caplog):
    with caplog.at_level(logging.DEBUG):
        issued = issue(ALICE, table)
    assert issued.key is not None
    texts = (caplog.text, repr(issued), str(issued.configuration.key), str(snapshot()))
    for text in texts:
        assert issued.key.secret not in text
        assert issued.key.token not in text


@pytest.mark.parametrize(
    ("principal", "expected"),
    [
        ("alice", r"alice"),
        ("user:alice@example.com", r"user-alice@example\.com-[0-9a-f]{10}"),
        ("größe", r"gr-e-[0-9a-f]{10}"),
        ("x" * 200, r"x{53}-[0-9a-f]{10}"),
        ("a", r"a-[0-9a-f]{10}"),
        ("", r"-[0-9a-f]{10}"),
    ],
)
def test_session_names(principal, expected):
    name = s3.session_name(principal)
    assert re.fullmatch(expected, name), name
    assert re.fullmatch(r"[\w+=,.@-]{2,64}", name, re.ASCII)


def test_session_names_differ():
    names = [s3.session_name(name) for name in ("user:a", "user;a", "user a", "user-a")]
    assert len(set(names)) == 4


def test_a_token_service_is_checked_before_a_creation(lake: StorageProfile, monkeypatch):
    requested = sessions_of(monkeypatch)
    location = f"{lake.roots[0]}/new"
    vending.make_namespace("ns")
    with unchanged():
        credentials.require_available(ALICE, ("ns", "new"), location)
        credentials.require_available(ALICE, ("ns", "new"), location)
        assert requested == ["monodon"]
        credentials.require_available(ALICE, ("ns", "new"), "/elsewhere")
        credentials.require_available(ALICE, ("ns", "new"), None)  # in the local warehouse
        with pytest.raises(PermissionDenied):
            credentials.require_available(
                Principal("user:reader", vending.READ), ("ns", "new"), location
            )
    assert requested == ["monodon"]


def test_a_creation_in_a_bound_namespace_needs_the_token_service(lake: StorageProfile, monkeypatch):
    requested = sessions_of(monkeypatch)
    namespace = vending.make_namespace("bound")
    namespace.storage_profile = lake
    namespace.save(update_fields=["storage_profile"])
    credentials.require_available(SYSTEM, ("bound", "new"), None)
    assert requested == ["monodon"]


def test_configurations_are_told_apart(lake: StorageProfile):
    configuration: StoreConfiguration = profiles.configuration(lake)
    assert configuration == profiles.configuration(lake)
    assert replace(configuration, version=2) != configuration
