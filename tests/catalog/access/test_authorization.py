"""Refusals and their messages. A model in tests/catalog/services/access checks which principals
hold a privilege."""

from dataclasses import replace

import pytest

from catalog import access
from catalog.access import On, Principal
from catalog.access.authorization import held_on
from catalog.errors import NamespaceNotFound, PermissionDenied, TableNotFound, ViewNotFound
from catalog.models import Grant, Namespace, Table, TableKind
from catalog.models import Principal as Row
from catalog.privileges import NOTHING, READ_ONLY, Privilege, closure
from tests.factories import make_namespace, make_root, make_table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
TABLE = ("sales", "orders")


@pytest.fixture
def table():
    make_root()
    make_namespace("hr")
    return make_table(*TABLE)


def principal(privileges=NOTHING, *, on=None, **keys):
    row = Row.objects.create(name="etl", kind="service")
    if on is not None:
        kind = "table" if isinstance(on, Table) else "namespace"
        Grant.objects.create(principal=row, mask=closure(privileges).value, **{kind: on})
    return replace(access.of_row(row), **keys)


def namespace(*path):
    return Namespace.objects.named(path).get()


@pytest.mark.parametrize(
    ("privilege", "verb"),
    [
        (Privilege.READ, "read"),
        (Privilege.WRITE, "write to"),
        (Privilege.CREATE, "create anything in"),
        (Privilege.MANAGE, "manage"),
        (Privilege.GRANT, "grant anything on"),
        (Privilege.ALL, "administer"),
    ],
)
def test_a_refusal_names_the_principal_the_verb_and_the_target(table, privilege, verb):
    actor = principal(Privilege.BROWSE, on=table)
    with pytest.raises(PermissionDenied) as refusal:
        access.require(actor, privilege, On.table(TABLE))
    assert refusal.value.message == f"'etl' may not {verb} 'sales.orders'"
    with pytest.raises(PermissionDenied) as refusal:
        access.require(actor, privilege)
    assert refusal.value.message == f"'etl' may not {verb} the catalog as a whole"


def test_a_held_privilege_is_not_refused(table):
    actor = principal(Privilege.WRITE, on=table)
    for target in (On.table(TABLE), table):
        access.require(actor, Privilege.WRITE, target)
        assert access.holds(actor, Privilege.READ, target)
        assert not access.holds(actor, Privilege.MANAGE, target)
    assert not access.holds(actor, Privilege.BROWSE, On.table(("hr", "people")))
    access.require(Principal("root", Privilege.ALL), Privilege.ALL)


def missing(actor, target):
    with pytest.raises((NamespaceNotFound, TableNotFound, ViewNotFound)) as refusal:
        held_on(actor, target)
    return type(refusal.value), refusal.value.message


def test_hidden_objects_are_reported_as_missing(table):
    actor = principal(Privilege.BROWSE, on=table)
    no_hr = (NamespaceNotFound, "Namespace 'hr' does not exist")
    assert missing(actor, On.namespace(("hr",))) == no_hr
    assert missing(actor, On.table(("hr", "people"))) == no_hr
    assert missing(actor, On.namespace(("gone",)))[0] is NamespaceNotFound
    no_parent = (NamespaceNotFound, "Namespace 'gone' does not exist")
    assert missing(actor, On.table(("gone", "t"))) == no_parent
    assert missing(actor, namespace("hr")) == no_hr
    other = make_table("sales", "customers")
    no_customers = (TableNotFound, "Table 'sales.customers' does not exist")
    assert missing(actor, On.table(("sales", "customers"))) == no_customers
    assert missing(actor, other) == no_customers
    assert missing(actor, On.table(("sales", "gone")))[0] is TableNotFound
    assert missing(actor, On.table(("sales", "gone"), ViewNotFound))[0] is ViewNotFound
    hidden = On.table(("hr", "people"), ViewNotFound, tells_namespace=False)
    assert missing(actor, hidden) == (ViewNotFound, "View 'hr.people' does not exist")
    view = Table.objects.get(pk=other.pk)
    view.kind = TableKind.VIEW
    assert missing(actor, view) == (ViewNotFound, "View 'sales.customers' does not exist")


def test_a_parent_of_a_browsed_table_is_visible_but_not_browsed(table):
    actor = principal(Privilege.BROWSE, on=table)
    assert held_on(actor, On.namespace(("sales",))) == NOTHING
    assert access.is_visible(actor, On.namespace(("sales",)))
    assert not access.is_visible(actor, On.namespace(("hr",)))
    assert not access.is_visible(actor, On.table(("sales", "gone")))
    assert access.is_visible(Principal("root", Privilege.ALL), On.namespace(("gone",)))


def test_a_job_has_all_privileges_on_its_own_table(table):
    actor = principal(tables=(table.pk,), ceiling=READ_ONLY)
    assert held_on(actor, On.table(TABLE)) == Privilege.ALL
    assert held_on(actor, On.namespace(("sales",))) == NOTHING
    assert missing(actor, On.namespace(("hr",)))[0] is NamespaceNotFound


def test_a_key_has_no_privileges_outside_its_namespace(table):
    sales, hr = namespace("sales"), namespace("hr")
    reader = principal(everywhere=READ_ONLY, within=sales.pk)
    assert held_on(reader, On.table(TABLE)) == READ_ONLY
    assert held_on(reader, sales) == READ_ONLY
    assert missing(reader, hr)[0] is NamespaceNotFound
    # The parents of the key's namespace are visible.
    assert held_on(reader, On.namespace(())) == NOTHING
    owner = replace(reader, within=hr.pk)
    Table.objects.update(owner="etl")
    assert missing(owner, On.table(TABLE))[0] is NamespaceNotFound
    assert missing(owner, table)[0] is NamespaceNotFound


def test_a_key_limits_the_privileges_on_owned_objects(table):
    Table.objects.update(owner="etl")
    actor = principal()
    assert held_on(actor, table) == Privilege.ALL
    assert held_on(replace(actor, ceiling=READ_ONLY), table) == READ_ONLY


def test_an_object_created_in_the_same_batch_belongs_to_its_creator(table):
    new = Table(namespace=table.namespace, name="new")
    assert held_on(principal(ceiling=READ_ONLY), new) == READ_ONLY


@pytest.mark.parametrize("source", ["everywhere", "grant", "namespace", "table"])
def test_holds_somewhere_considers_grants_levels_and_ownership(table, source):
    actor = principal(Privilege.MAINTAIN, on=table if source == "grant" else None)
    assert access.holds_somewhere(actor, Privilege.MAINTAIN) is (source == "grant")
    if source == "everywhere":
        actor = replace(actor, everywhere=Privilege.MAINTAIN, ceiling=NOTHING)
    elif source != "grant":
        rows = Namespace.objects.filter(name="sales") if source == "namespace" else Table.objects
        rows.update(owner="etl")
    assert access.holds_somewhere(actor, Privilege.MAINTAIN) is True
    limited = replace(actor, everywhere=NOTHING, ceiling=READ_ONLY)
    assert access.holds_somewhere(limited, Privilege.MAINTAIN) is False


def test_a_grant_of_some_privileges_does_not_imply_the_others(table):
    actor = principal(Privilege.READ, on=table)
    assert access.holds_somewhere(actor, READ_ONLY)
    assert not access.holds_somewhere(actor, Privilege.READ | Privilege.WRITE)


def test_sees_all_in_a_namespace_requires_browse_on_it(table):
    assert not access.sees_all_in(principal(Privilege.READ, on=table), ("sales",))
    root = Principal("root", Privilege.ALL)
    assert access.sees_all_in(root, ("gone",))
    Grant.objects.update(table=None, namespace=namespace("sales"))
    assert access.sees_all_in(access.named("etl"), ("sales",))
    with pytest.raises(NamespaceNotFound):
        access.sees_all_in(access.named("etl"), ("hr",))


def test_a_target_is_shown_by_its_path():
    assert str(On.table(TABLE)) == "sales.orders"
    assert On.table(TABLE).namespace_path == ("sales",)
    assert On.namespace(("sales",)).namespace_path == ("sales",)


def test_identities_are_the_parameters_of_statements():
    actor = Principal("etl", ids=(3, 4), groups=("group:a",), tables=(9,), within=2)
    assert access.authorization.identities(actor) == {
        "ids": [3, 4],
        "names": ["etl", "group:a"],
        "tables": [9],
        "within": 2,
    }


def test_a_grant_on_a_table_does_not_apply_to_a_namespace_of_its_name(table):
    make_namespace(*TABLE)
    actor = principal(Privilege.READ, on=table)
    assert held_on(actor, On.table(TABLE)) == READ_ONLY
    assert missing(actor, On.namespace(TABLE))[0] is NamespaceNotFound
    assert missing(actor, namespace(*TABLE))[0] is NamespaceNotFound
