"""Storage profiles: created, changed, bound and deleted, and never at the cost of tables."""

import threading
from typing import Any

import pytest
from django.db import connection

from catalog import access, encryption
from catalog.access import SYSTEM
from catalog.errors import (
    CatalogError,
    InvalidInput,
    InvalidLocation,
    NamespaceNotFound,
    PermissionDenied,
    StorageProfileAlreadyExists,
    StorageProfileInUse,
    StorageProfileNotFound,
)
from catalog.models import AuditEvent, Job, JobStatus, Namespace, StorageProfile, Table
from catalog.privileges import READ_ONLY, Privilege
from catalog.services.engine.commit import commit
from catalog.services.recovery import undrop
from catalog.services.storage import profile_bindings, profiles
from catalog.services.storage import profile_operations as operations
from catalog.services.storage.profile_operations import Changes
from catalog.services.tables import namespace_operations, table_operations
from catalog.storage import stores
from catalog.storage.configuration import ClientAccess, Key, ServerIdentity, StoreKind
from tests.factories import make_namespace, make_root, make_table, unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
SECRET, NEW_SECRET, TOKEN = "the-first-secret", "the-second-secret", "the-session-token"
ROLE = "arn:aws:iam::123456789012:role/lake"


@pytest.fixture(autouse=True)
def _root(settings):
    settings.MONODON_TRASH_SECONDS = 3600
    make_root()


def create(name: str = "lake", **fields: Any) -> StorageProfile:
    values: dict[str, Any] = {
        "kind": StoreKind.S3,
        "roots": ["s3://lake/tables"],
        "region": "eu-central-1",
        "identity": ServerIdentity.KEY,
        "key": Key("AKIAFIRST", SECRET, TOKEN),
    }
    return operations.create_profile(actor=SYSTEM, name=name, **(values | fields))


def update(name: str = "lake", confirm: bool = False, **changes: Any) -> StorageProfile:
    return operations.update_profile(
        actor=SYSTEM, name=name, changes=Changes(**changes), confirm=confirm
    )


def bind(*path: str, profile: str = "lake") -> None:
    profile_bindings.bind_namespace(actor=SYSTEM, namespace=path, profile=profile)


def bound_table(name: str = "t") -> Table:
    """A table below the root of profile "lake", in namespace "ns"."""
    make_namespace("ns")
    bind("ns")
    return make_table("ns", name)


# --- create and read ---------------------------------------------------------------------------------


def test_a_profile_is_created_with_its_secret_encrypted():
    row = create(roots=["s3://lake/tables/", "s3://lake/more"], client_access=ClientAccess.SIGNING)
    stored = StorageProfile.objects.get()
    assert stored.roots == ["s3://lake/tables", "s3://lake/more"]
    assert (stored.version, stored.created_by, stored.key_id) == (1, "system", "AKIAFIRST")
    assert SECRET.encode() not in bytes(stored.secret)
    assert SECRET in encryption.decrypt(bytes(stored.secret))
    assert profiles.key_of(row) == Key("AKIAFIRST", SECRET, TOKEN)
    configuration = stores.configuration_of("s3://lake/more/x")
    assert configuration is not None
    assert (configuration.profile, configuration.key) == ("lake", Key("AKIAFIRST", SECRET, TOKEN))


def test_a_name_is_used_once():
    create()
    with unchanged(), pytest.raises(StorageProfileAlreadyExists, match="'lake' exists already"):
        create(roots=["s3://other"])


@pytest.mark.parametrize(
    ("roots", "overlaps"),
    [
        (["s3://lake/tables"], True),
        (["s3://lake/tables/inner"], True),
        (["s3://lake"], True),
        (["s3://free/x", "s3://lake/tables/inner"], True),
        (["s3://lake/tables2"], False),
        (["s3://lake/other"], False),
        (["s3://lake2"], False),
    ],
)
def test_roots_of_profiles_never_overlap(roots, overlaps):
    create()
    create("third", roots=["s3://third/a"])
    if not overlaps:
        create("second", roots=roots)
        update("third", roots=["s3://third/a", f"{roots[0]}x"])
        return
    with unchanged(), pytest.raises(InvalidInput, match="overlaps root 's3://lake/tables'"):
        create("second", roots=roots)
    with unchanged(), pytest.raises(InvalidInput, match="of storage profile 'lake'; use a prefix"):
        update("third", roots=roots)
    with unchanged(), pytest.raises(InvalidInput, match="overlaps root"):
        operations.preview_update(actor=SYSTEM, name="third", changes=Changes(roots=roots))


def test_pages_of_profiles():
    for name in ("c", "a", "b"):
        create(name, roots=[f"s3://root-{name}"])
    first, token = operations.list_profiles(actor=SYSTEM, limit=2)
    second, end = operations.list_profiles(actor=SYSTEM, limit=2, page_token=token)
    assert [row.name for row in (*first, *second)] == ["a", "b", "c"]
    assert end is None


def test_only_principals_with_all_privileges_everywhere_manage_profiles():
    create()
    make_namespace("ns")
    key = Key("AKIA", NEW_SECRET)
    limited = access.Principal(
        "limited", Privilege.ALL, within=Namespace.objects.named(("ns",)).get().pk
    )
    manager = access.Principal("manager", Privilege.MANAGE | Privilege.CREATE | READ_ONLY)
    for actor in (access.Principal("reader", READ_ONLY), manager, limited):
        for call in (
            lambda actor: operations.create_profile(
                actor=actor, name="x", kind=StoreKind.S3, roots=["s3://x"], region="r"
            ),
            lambda actor: operations.update_profile(
                actor=actor, name="lake", changes=Changes(region="x")
            ),
            lambda actor: operations.preview_update(
                actor=actor, name="lake", changes=Changes(region="x")
            ),
            lambda actor: operations.preview_deletion(actor=actor, name="lake"),
            lambda actor: operations.rotate_key(actor=actor, name="lake", key=key),
            lambda actor: operations.delete_profile(actor=actor, name="lake"),
            lambda actor: operations.find_profile(actor=actor, name="lake"),
            lambda actor: operations.find_profile(actor=actor, name="missing"),
            lambda actor: operations.list_profiles(actor=actor),
            lambda actor: operations.list_bound_namespaces(actor=actor, name="lake"),
            lambda actor: profile_bindings.bind_namespace(
                actor=actor, namespace=("ns",), profile="lake"
            ),
            lambda actor: profile_bindings.unbind_namespace(actor=actor, namespace=("ns",)),
        ):
            with unchanged(), pytest.raises(PermissionDenied):
                call(actor)


def test_what_does_not_exist():
    for call in (
        lambda: update("nope", region="x"),
        lambda: operations.rotate_key(actor=SYSTEM, name="nope", key=Key("a", "b")),
        lambda: operations.delete_profile(actor=SYSTEM, name="nope"),
        lambda: bind(profile="nope"),
    ):
        with unchanged(), pytest.raises(StorageProfileNotFound, match="'nope' does not exist"):
            call()
    create()
    with unchanged(), pytest.raises(NamespaceNotFound):
        bind("nowhere")


# --- change ------------------------------------------------------------------------------------------


def test_a_change_increases_the_version_and_reaches_the_stores():
    create()
    before = stores.configuration_of("s3://lake/tables/t")
    row = update(region="eu-west-1")
    after = stores.configuration_of("s3://lake/tables/t")
    assert before is not None
    assert after is not None
    assert (before.version, before.region) == (1, "eu-central-1")
    assert (after.version, after.region, row.version) == (2, "eu-west-1", 2)
    assert after.key == before.key
    with unchanged():
        assert update(region="eu-west-1").version == 2
    with unchanged(), pytest.raises(InvalidInput, match="changes nothing"):
        update()


def test_the_key_goes_with_the_identity():
    create()
    row = update(identity=ServerIdentity.ENVIRONMENT)
    assert (row.key_id, row.secret) == ("", None)
    with unchanged(), pytest.raises(InvalidInput, match="needs a key"):
        update(identity=ServerIdentity.KEY)
    with unchanged(), pytest.raises(InvalidInput, match="uses the environment and has no key"):
        operations.rotate_key(actor=SYSTEM, name="lake", key=Key("AKIA", NEW_SECRET))
    row = update(identity=ServerIdentity.KEY, key=Key("AKIASECOND", NEW_SECRET))
    assert profiles.key_of(row) == Key("AKIASECOND", NEW_SECRET)


def test_a_rotated_key_is_used_at_once():
    create()
    operations.rotate_key(actor=SYSTEM, name="lake", key=Key("AKIASECOND", NEW_SECRET))
    configuration = stores.configuration_of("s3://lake/tables/t")
    assert configuration is not None
    assert configuration.key == Key("AKIASECOND", NEW_SECRET)
    assert configuration.version == 2
    with unchanged(), pytest.raises(InvalidInput, match="secret: it has a space"):
        operations.rotate_key(actor=SYSTEM, name="lake", key=Key("AKIA", "with space"))


def test_no_secret_is_in_the_trail_or_in_a_representation():
    row = create()
    rotated = operations.rotate_key(actor=SYSTEM, name="lake", key=Key("AKIASECOND", NEW_SECRET))
    changed = update(key=Key("AKIATHIRD", NEW_SECRET + "3"), region="eu-west-1")
    operations.delete_profile(actor=SYSTEM, name="lake")
    events = list(AuditEvent.objects.filter(action__startswith="storage_profile.").order_by("pk"))
    assert [event.action for event in events] == [
        "storage_profile.create",
        "storage_profile.rotate_key",
        "storage_profile.update",
        "storage_profile.delete",
    ]
    assert events[1].before == {"key_id": "AKIAFIRST", "has_new_key": False}
    assert events[1].after == {"key_id": "AKIASECOND", "has_new_key": True}
    assert events[2].after["key_id"] == "AKIATHIRD"
    outputs = [(event.before, event.after, event.context) for event in events]
    impacts = [Changes(key=Key("AKIA", NEW_SECRET))]
    text = repr((outputs, row, rotated, changed, impacts, vars(row).keys()))
    for secret in (SECRET, NEW_SECRET, TOKEN):
        assert secret not in text


# --- with tables -------------------------------------------------------------------------------------


def test_roots_above_tables_stay():
    create()
    table = bound_table()
    for roots in (["s3://lake/other"], [f"{table.location}/x"], ["s3://lake/tables2"]):
        with (
            unchanged(),
            pytest.raises(StorageProfileInUse, match=r"outside its roots: 1 \(ns\.t\)"),
        ):
            update(roots=roots, confirm=True)
    row = update(roots=["s3://lake/tables", "s3://lake/more"])
    assert row.roots == ["s3://lake/tables", "s3://lake/more"]
    # The table is still below a root.
    assert update(roots=["s3://lake"], confirm=True).roots == ["s3://lake"]


def test_the_kind_stays_with_tables():
    create(identity=ServerIdentity.ENVIRONMENT, key=None)
    bound_table()
    with unchanged(), pytest.raises(StorageProfileInUse, match="outside its roots"):
        update(kind=StoreKind.GCS, roots=["gs://lake/tables"], region="", confirm=True)


def test_another_endpoint_needs_confirmation_when_there_are_tables():
    create()
    assert update(endpoint="https://s3.example.com").version == 2
    bound_table()
    endpoint = "https://other.example.com"
    with unchanged(), pytest.raises(StorageProfileInUse, match=r"endpoint decide.*ns\.t") as error:
        update(endpoint=endpoint)
    assert "confirm" in (error.value.detail or "")
    with unchanged():
        impact = operations.preview_update(
            actor=SYSTEM, name="lake", changes=Changes(endpoint=endpoint)
        )
    assert impact.is_possible
    assert impact.needs_confirmation
    assert impact.changes == {"endpoint": ("https://s3.example.com", endpoint)}
    assert (impact.tables.number, impact.tables.names) == (1, ("ns.t",))
    assert (impact.namespaces.number, impact.namespaces.names) == (1, ("ns",))
    assert update(endpoint=endpoint, confirm=True).endpoint == endpoint


def test_a_preview_says_how_long_credentials_stay_valid():
    create(client_access=ClientAccess.STS, role=ROLE, lifetime_seconds=1800)
    changes = Changes(client_access=ClientAccess.NONE)
    impact = operations.preview_update(actor=SYSTEM, name="lake", changes=changes)
    assert impact.credentials_valid_until is not None
    impact = operations.preview_update(actor=SYSTEM, name="lake", changes=Changes(kms_key="k"))
    assert impact.credentials_valid_until is None
    assert operations.preview_deletion(actor=SYSTEM, name="lake").credentials_valid_until


def test_a_static_key_that_clients_have_is_a_warning():
    create(client_access=ClientAccess.STATIC)
    changes = Changes(key=Key("AKIASECOND", NEW_SECRET))
    impact = operations.preview_update(actor=SYSTEM, name="lake", changes=changes)
    assert impact.warnings == (
        "clients still have the previous key, until it is disabled at the store",
    )
    assert impact.changes == {"key": ("AKIAFIRST", "AKIASECOND")}
    assert NEW_SECRET not in repr(impact)


def test_many_tables_are_counted_and_the_first_are_named():
    create()
    for number in range(12):
        bound_table(f"t{number:02}")
    with pytest.raises(StorageProfileInUse, match=r"12 \(ns\.t00, .*, ns\.t09, 2 more\)"):
        update(roots=["s3://lake/other"])


# --- delete --------------------------------------------------------------------------------------------


def test_a_profile_that_nothing_needs_is_deleted():
    create()
    operations.delete_profile(actor=SYSTEM, name="lake")
    assert not StorageProfile.objects.exists()
    assert stores.configuration_of("s3://lake/tables/t") is None


def test_tables_and_namespaces_prevent_the_deletion_even_in_the_trash():
    create()
    bound_table()

    def refused(*causes: str) -> None:
        with unchanged():
            impact = operations.preview_deletion(actor=SYSTEM, name="lake")
        assert not impact.is_possible
        with unchanged(), pytest.raises(StorageProfileInUse) as error:
            operations.delete_profile(actor=SYSTEM, name="lake")
        assert [cause in str(error.value) for cause in causes] == [True] * len(causes)

    refused("tables are below its roots: 1 (ns.t)", "bound to it: 1 (ns)")
    commit([table_operations.DropTable(table=("ns", "t"))], actor=SYSTEM)
    refused("tables are below its roots: 1", "bound to it: 1 (ns)")
    profile_bindings.unbind_namespace(actor=SYSTEM, namespace=("ns",))
    refused("tables are below its roots: 1")
    Job.objects.update(status=JobStatus.SUCCEEDED)
    Table.objects.get(name="t").trash.delete()
    operations.delete_profile(actor=SYSTEM, name="lake")


def test_a_bound_namespace_in_the_trash_prevents_the_deletion_until_it_is_gone():
    create()
    make_namespace("ns")
    bind("ns")
    commit([namespace_operations.DropNamespace(namespace=("ns",))], actor=SYSTEM)
    with unchanged(), pytest.raises(StorageProfileInUse, match="bound to it: 1"):
        operations.delete_profile(actor=SYSTEM, name="lake")
    Namespace.objects.get(name="ns").trash.delete()
    operations.delete_profile(actor=SYSTEM, name="lake")
    assert Namespace.objects.get(name="ns").storage_profile is None


def test_a_location_property_prevents_the_deletion():
    create()
    make_namespace("ns", properties={"location": "s3://lake/tables/ns"})
    with unchanged(), pytest.raises(StorageProfileInUse, match=r"locations of namespaces.*\(ns\)"):
        operations.delete_profile(actor=SYSTEM, name="lake")


def test_an_undropped_table_is_where_it_was():
    create()
    table = bound_table()
    commit([table_operations.DropTable(table=("ns", "t"))], actor=SYSTEM)
    profile_bindings.unbind_namespace(actor=SYSTEM, namespace=("ns",))
    item = Table.objects.get(pk=table.pk).trash
    undrop.undrop(actor=SYSTEM, item=item.pk)
    assert Table.objects.named(("ns", "t")).get().location == table.location


# --- namespaces ----------------------------------------------------------------------------------------


def test_a_binding_is_inherited_and_recorded():
    create()
    make_namespace("a", "b")
    bind("a")
    storage = profile_bindings.storage_of(actor=SYSTEM, namespace=("a", "b"))
    assert (storage.profile, storage.is_inherited) == ("lake", True)
    assert storage.bound is not None
    assert storage.bound.path == ["a"]
    assert storage.location.startswith("s3://lake/tables/")
    own = profile_bindings.storage_of(actor=SYSTEM, namespace=("a",))
    assert (own.profile, own.is_inherited) == ("lake", False)
    event = AuditEvent.objects.get(action="namespace.set_storage_profile")
    assert (event.target, event.before, event.after) == (
        "a",
        {"storage_profile": None},
        {"storage_profile": "lake"},
    )
    with unchanged():
        bind("a")
    storage = profile_bindings.unbind_namespace(actor=SYSTEM, namespace=("a",))
    assert (storage.profile, storage.bound) == (None, None)
    assert storage.location.startswith("file:///")


def test_the_root_namespace_may_be_bound():
    create()
    make_namespace("ns")
    bind()
    assert profile_bindings.storage_of(actor=SYSTEM, namespace=()).location == "s3://lake/tables"
    assert make_table("ns", "t").location.startswith("s3://lake/tables/ns-")


# --- concurrent changes ----------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_profile_is_deleted_or_gets_a_table_never_both():
    """Two threads, several times: exactly one of the two succeeds."""
    make_root()
    outcomes = set()
    for number in range(6):
        create(f"lake{number}", roots=[f"s3://lake{number}/tables"])
        make_namespace(f"ns{number}")
        barrier = threading.Barrier(2)
        errors: dict[str, CatalogError] = {}

        def run(work: str, number: int, barrier: Any, errors: Any) -> None:
            try:
                barrier.wait()
                if work == "delete":
                    operations.delete_profile(actor=SYSTEM, name=f"lake{number}")
                else:
                    make_table(f"ns{number}", "t", location=f"s3://lake{number}/tables/t")
            except CatalogError as error:
                errors[work] = error
            finally:
                connection.close()

        threads = [
            threading.Thread(target=run, args=(work, number, barrier, errors))
            for work in ("delete", "declare")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (loser,) = errors
        kinds = {"delete": StorageProfileInUse, "declare": InvalidLocation}
        assert isinstance(errors[loser], kinds[loser])
        exists = StorageProfile.objects.filter(name=f"lake{number}").exists()
        assert exists is (loser == "delete")
        assert Table.objects.present().filter(namespace__name=f"ns{number}").exists() is exists
        outcomes.add(loser)
    assert outcomes
