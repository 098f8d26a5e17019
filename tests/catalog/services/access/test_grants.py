"""Grants: required privileges, explanation, and effects of a removal."""

import threading

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test.utils import CaptureQueriesContext

from catalog import access
from catalog.access import SYSTEM, On
from catalog.errors import (
    NamespaceNotFound,
    PermissionDenied,
    PrincipalNotFound,
    TableNotFound,
)
from catalog.models import (
    ApiKey,
    AuditEvent,
    Grant,
    Namespace,
    Principal,
    PrincipalKind,
    PrincipalLevel,
    Table,
    TableState,
    Transaction,
)
from catalog.privileges import NOTHING, SINGLE, Privilege, closure
from catalog.services.access import grants
from catalog.services.engine.commit import commit
from catalog.services.tables import table_operations
from tests.catalog.services.access.test_authorization import SEEDS, make_world
from tests.factories import (
    make_iceberg_table,
    make_namespace,
    make_root,
    make_table,
    snapshot,
    unchanged,
)

A, AB, T = On.namespace(("a",)), On.namespace(("a", "b")), On.table(("a", "b", "t"))
READ, GRANT, MANAGE = Privilege.READ, Privilege.GRANT, Privilege.MANAGE


@pytest.fixture(autouse=True)
def _catalog(db, settings, tmp_path):
    settings.MONODON_WAREHOUSE = str(tmp_path)
    make_root()
    make_table("a", "b", "t")
    make_table("a", "u")


def principal(name: str, kind: PrincipalKind = PrincipalKind.SERVICE, **fields) -> Principal:
    return Principal.objects.create(name=name, kind=kind, **fields)


def group(name: str, *members: Principal) -> Principal:
    row = principal(f"group:{name}", PrincipalKind.GROUP)
    row.members.set(members)
    return row


def grant(name: str, on: On, privileges: Privilege, actor: access.Principal = SYSTEM) -> Privilege:
    return grants.set_grant(actor=actor, on=on, principal=name, privileges=privileges).privileges


def principal_named(name: str) -> access.Principal:
    principal = access.named(name)
    assert principal is not None
    return principal


# --- changes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("on", [A, AB, T, On.namespace(())])
def test_a_grant_includes_the_privileges_it_implies(on):
    principal("etl")
    assert grant("etl", on, Privilege.WRITE) == closure(Privilege.WRITE)
    assert Grant.objects.get().mask == Privilege.BROWSE | READ | Privilege.WRITE
    assert access.held_on(principal_named("etl"), T) == closure(Privilege.WRITE)
    with pytest.raises(PermissionDenied):
        access.require(principal_named("etl"), MANAGE, T)
    event = AuditEvent.objects.get(action="grant.set")
    assert (event.actor, event.target) == ("system", str(on))
    assert event.before == {"principal": "etl", "privileges": []}
    assert event.after == {"principal": "etl", "privileges": ["browse", "read", "write"]}
    assert Transaction.objects.get(pk=event.transaction_id).operations == [
        {"operation": "SetGrant", "target": str(on), **event.after}
    ]


def test_set_grant_replaces_and_an_empty_set_removes_the_grant():
    principal("etl")
    grant("etl", T, MANAGE)
    assert grant("etl", T, READ) == closure(READ)
    assert [row.mask for row in Grant.objects.all()] == [closure(READ).value]
    before = snapshot()
    assert grant("etl", T, READ) == closure(READ)  # unchanged: no event, no transaction
    assert snapshot() == before
    assert grant("etl", T, NOTHING) == NOTHING
    assert not Grant.objects.exists()
    with pytest.raises(NamespaceNotFound):
        access.require(principal_named("etl"), Privilege.BROWSE, T)
    last = AuditEvent.objects.filter(action="grant.set").latest("pk")
    assert last.before == {"principal": "etl", "privileges": ["browse", "read"]}
    assert last.after == {"principal": "etl", "privileges": []}


def test_grants_apply_to_iceberg_tables_and_views():
    make_iceberg_table("a", "i")
    Table.objects.filter(name="u").update(kind="view", format="iceberg")
    principal("etl")
    for name in ("i", "u"):
        grant("etl", On.table(("a", name)), READ)
        assert access.holds(principal_named("etl"), READ, Table.objects.get(name=name))


def test_grantors_may_grant_privileges_they_hold():
    for name in ("boss", "etl"):
        principal(name)
    grant("boss", A, GRANT | READ)
    assert grant("etl", T, READ, principal_named("boss")) == closure(READ)
    assert Grant.objects.get(principal__name="etl").granted_by == "boss"
    with unchanged(), pytest.raises(PermissionDenied, match=r"does not hold write on 'a\.b\.t'"):
        grant("etl", T, Privilege.WRITE, principal_named("boss"))
    with unchanged(), pytest.raises(PermissionDenied, match="'boss' does not hold manage"):
        grant("boss", A, Privilege.ALL, principal_named("boss"))
    with unchanged(), pytest.raises(NamespaceNotFound):
        grant("etl", On.namespace(("x",)), READ, principal_named("boss"))
    # It cannot revoke privileges that it does not hold, either.
    grant("etl", T, Privilege.ALL)
    with unchanged(), pytest.raises(PermissionDenied, match="does not hold manage"):
        grant("etl", T, READ, principal_named("boss"))
    grant("etl", T, closure(READ) | GRANT)
    assert grant("etl", T, NOTHING, principal_named("boss")) == NOTHING


def test_granting_requires_the_grant_privilege():
    for name in ("manager", "reader", "stranger", "etl"):
        principal(name)
    grant("manager", A, MANAGE)
    grant("reader", A, READ)
    for name in ("manager", "reader"):
        with unchanged(), pytest.raises(PermissionDenied, match="may not grant anything"):
            grant("etl", T, READ, principal_named(name))
    for on, missing in ((A, NamespaceNotFound), (T, NamespaceNotFound)):
        with unchanged(), pytest.raises(missing):
            grant("etl", on, READ, principal_named("stranger"))
    grant("stranger", On.table(("a", "u")), Privilege.ALL)
    with unchanged(), pytest.raises(PermissionDenied):
        grant("etl", A, READ, principal_named("stranger"))  # a parent of a.u, so it is visible
    with unchanged(), pytest.raises(NamespaceNotFound):
        grant("etl", T, READ, principal_named("stranger"))


def test_owners_hold_all_privileges_up_to_their_keys_limits():
    row = principal("etl")
    other = principal("other")
    Namespace.objects.filter(name="a").update(owner="etl")
    assert grant("other", T, Privilege.ALL, principal_named("etl")) == Privilege.ALL
    scoped = access.of_row(row, ApiKey(name="k", principal=row, scopes=["grant", "read"]))
    with unchanged(), pytest.raises(PermissionDenied, match="does not hold write"):
        grant(other.name, A, Privilege.WRITE, scoped)
    assert grant(other.name, A, READ, scoped) == closure(READ)
    inner = Namespace.objects.named(("a", "b")).get()
    limited = access.of_row(row, ApiKey(name="l", principal=row, namespace=inner))
    assert grant(other.name, AB, READ, limited) == closure(READ)
    with unchanged(), pytest.raises(PermissionDenied):
        grant(other.name, A, MANAGE, limited)
    # Objects it owns outside the key's namespace do not count.
    Table.objects.filter(name="u").update(owner="etl")
    with unchanged(), pytest.raises(TableNotFound):
        grant(other.name, On.table(("a", "u")), READ, limited)


@pytest.mark.parametrize("name", ["nobody", "", "nul\x00"])
def test_a_missing_principal_is_refused(name):
    with unchanged(), pytest.raises(PrincipalNotFound):
        grant(name, T, READ)


def test_a_missing_target_is_refused():
    principal("etl")
    with unchanged(), pytest.raises(TableNotFound):
        grant("etl", On.table(("a", "no")), READ)
    with unchanged(), pytest.raises(NamespaceNotFound):
        grant("etl", On.namespace(("no",)), READ)
    with unchanged(), pytest.raises(NamespaceNotFound):
        grant("etl", On.table(("no", "t")), READ)


def test_undrop_restores_the_grants_of_a_table():
    principal("etl")
    grant("etl", T, READ)
    row = Table.objects.get(name="t")
    commit([table_operations.DeregisterTable(table=T.identifier)], actor=SYSTEM)
    with pytest.raises(NamespaceNotFound):
        access.held_on(principal_named("etl"), T)
    make_table("a", "b", "t")  # another table of the name
    with pytest.raises(NamespaceNotFound):
        access.held_on(principal_named("etl"), T)
    assert (
        not Table.objects.present().filter(access.visible_tables(principal_named("etl"))).exists()
    )
    commit([table_operations.DeregisterTable(table=T.identifier)], actor=SYSTEM)
    Table.objects.filter(pk=row.pk).update(state=TableState.DECLARED, dropped_at=None)
    assert access.held_on(principal_named("etl"), T) == closure(READ)


@pytest.mark.django_db(transaction=True)
def test_concurrent_grants_leave_one_grant_and_two_events(settings, tmp_path):
    settings.MONODON_WAREHOUSE = str(tmp_path)
    make_root()
    if not Table.objects.named(T.identifier).exists():
        make_table("a", "b", "t")
    principal("etl")
    barrier = threading.Barrier(2)
    failures: list[BaseException] = []

    def work(privileges: Privilege) -> None:
        try:
            barrier.wait(timeout=10)
            grant("etl", T, privileges)
        except BaseException as error:  # noqa: BLE001 -- told below
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=[p]) for p in (READ, MANAGE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not failures
    events = list(AuditEvent.objects.filter(action="grant.set").order_by("pk"))
    assert len(events) == 2
    # The second call ran after the first and saw its result.
    first, second = sorted(events, key=lambda event: len(event.before["privileges"]))
    assert second.before["privileges"] == first.after["privileges"]
    from catalog.privileges import words

    assert words(Grant.objects.get().privileges) == second.after["privileges"]


def test_the_lock_precedes_the_grant():
    principal("etl")
    with CaptureQueriesContext(connection) as captured:
        grant("etl", T, READ)
    texts = [query["sql"] for query in captured.captured_queries]
    lock = next(i for i, sql in enumerate(texts) if "FOR NO KEY UPDATE" in sql)
    write = next(i for i, sql in enumerate(texts) if 'INSERT INTO "catalog_grant"' in sql)
    assert lock < write
    assert "catalog_table" in texts[lock]


# --- the list --------------------------------------------------------------------------------------


def test_list_grants_contains_only_direct_grants():
    for name in ("a1", "a2", "a3", "boss", "reader"):
        principal(name)
        grant(name, T, READ)
    grant("a1", A, MANAGE)
    listed, token = [], None
    while True:
        rows, token = grants.list_grants(actor=SYSTEM, on=T, limit=2, page_token=token)
        listed += [(row.principal.name, row.mask) for row in rows]
        if token is None:
            break
    assert listed == [(name, closure(READ).value) for name in ("a1", "a2", "a3", "boss", "reader")]
    assert [row.principal.name for row in grants.list_grants(actor=SYSTEM, on=A)[0]] == ["a1"]
    grant("boss", T, GRANT)
    assert len(grants.list_grants(actor=principal_named("boss"), on=T)[0]) == 5
    assert (
        len(grants.list_grants(actor=principal_named("a1"), on=T)[0]) == 5
    )  # managers may list grants
    with pytest.raises(PermissionDenied, match="may not see the privileges on"):
        grants.list_grants(actor=principal_named("reader"), on=T)
    with pytest.raises(NamespaceNotFound):
        grants.list_grants(actor=principal_named("reader"), on=On.namespace(("x",)))


# --- explanations ----------------------------------------------------------------------------------


def test_explain_names_every_source_of_a_privilege():
    etl, ada = principal("etl"), principal("user:ada", PrincipalKind.USER)
    principal("root", level=PrincipalLevel.ADMIN)
    team = group("team", ada)
    grant("etl", A, READ)
    grant("etl", T, Privilege.WRITE)
    grant(team.name, AB, Privilege.MAINTAIN)
    Table.objects.filter(name="t").update(owner=team.name)
    inner = Namespace.objects.named(("a", "b")).get()
    elsewhere = Namespace.objects.named(()).get()
    for name, fields in {
        "limited": {"scopes": ["read"], "namespace": inner},
        "off": {"revoked_at": "2020-01-01T00:00Z"},
        "whole": {"namespace": elsewhere},
    }.items():
        ApiKey.objects.create(name=name, principal=etl, digest=name, **fields)
    explained = {
        access_.principal.name: access_ for access_ in grants.explain(actor=SYSTEM, on=T)[0]
    }
    assert set(explained) == {"etl", "user:ada", "group:team", "root"}
    assert [str(source) for source in explained["etl"].sources] == ["grant on a", "grant on a.b.t"]
    assert [source.is_here for source in explained["etl"].sources] == [False, True]
    assert explained["etl"].held == closure(Privilege.WRITE)
    assert [(key.name, key.privileges, key.within) for key in explained["etl"].keys] == [
        ("limited", closure(READ), "a.b"),
        ("whole", closure(Privilege.WRITE), "(root)"),
    ]
    assert [str(source) for source in explained["user:ada"].sources] == [
        "owner of a.b.t, through group:team",
        "grant on a.b, through group:team",
    ]
    assert explained["user:ada"].held == Privilege.ALL
    assert [str(source) for source in explained["root"].sources] == ["level"]
    above = {access_.principal.name: access_ for access_ in grants.explain(actor=SYSTEM, on=A)[0]}
    assert set(above) == {"etl", "root"}
    assert [key.privileges for key in above["etl"].keys] == [NOTHING, closure(READ)]


def test_explain_covers_superusers_and_inactive_principals():
    user = get_user_model().objects.create_superuser("ada", "", "x")
    row, _ = Principal.objects.get_or_create(
        name="user:ada", defaults={"kind": PrincipalKind.USER, "user": user}
    )
    Principal.objects.filter(pk=row.pk).update(user=user)
    principal("gone", is_active=False)
    grant("gone", T, READ)
    explained = {
        access_.principal.name: access_ for access_ in grants.explain(actor=SYSTEM, on=T)[0]
    }
    assert [str(source) for source in explained["user:ada"].sources] == ["superuser"]
    assert (explained["gone"].held, explained["gone"].is_active) == (NOTHING, False)
    assert [str(source) for source in explained["gone"].sources] == ["grant on a.b.t"]


def test_principals_may_explain_their_own_privileges():
    for name in ("etl", "other", "boss"):
        principal(name)
    grant("etl", T, READ)
    grant("boss", A, GRANT)
    (own,) = grants.explain(actor=principal_named("etl"), on=T, principal="etl")[0]
    assert own.held == closure(READ)
    for name_ in (None, "other"):
        with pytest.raises(PermissionDenied, match=r"may not see the privileges on 'a\.b\.t'"):
            grants.explain(actor=principal_named("etl"), on=T, principal=name_)
    with pytest.raises(NamespaceNotFound):
        grants.explain(actor=principal_named("other"), on=T, principal="other")
    (nothing,) = grants.explain(actor=principal_named("boss"), on=T, principal="other")[0]
    assert (nothing.held, nothing.sources) == (NOTHING, [])
    with pytest.raises(PrincipalNotFound):
        grants.explain(actor=SYSTEM, on=T, principal="nobody")


def test_explaining_takes_a_fixed_number_of_statements():
    for n in range(12):
        member = principal(f"p{n:02}")
        group(f"g{n:02}", member)
        grant(f"group:g{n:02}", A, READ)
        grant(f"p{n:02}", T, READ)
    with CaptureQueriesContext(connection) as captured:
        first_page, token = grants.explain(actor=SYSTEM, on=T, limit=20)
    assert (len(first_page), token) == (20, first_page[-1].principal.name)
    assert len(captured) == 6
    second_page, token = grants.explain(actor=SYSTEM, on=T, page_token=token)
    assert (len(second_page), token) == (4, None)


@pytest.mark.parametrize("seed", SEEDS[:10])
def test_explain_agrees_with_the_effective_privileges(seed):
    world = make_world(seed)
    live = [row for row in world.namespaces if row.dropped_at is None]
    present = [row for row in world.tables if row.state != TableState.DROPPED]
    for row in [*live[:5], *present[:5]]:
        on = On.table(row.identifier) if isinstance(row, Table) else On.namespace(row.identifier)
        explained = {
            access_.principal.name: access_ for access_ in grants.explain(actor=SYSTEM, on=on)[0]
        }
        for principal in world.principals:
            actor = access.of_row(principal)
            held = NOTHING
            if access.is_visible(actor, row):
                held = access.held_on(actor, row)
            assert (
                explained[principal.name].held if principal.name in explained else NOTHING
            ) == held
            for key in explained[principal.name].keys if principal.name in explained else ():
                with_key = access.of_row(principal, ApiKey.objects.get(name=key.name))
                holds = [p for p in SINGLE if access.holds(with_key, p, row)]
                assert key.privileges == Privilege(sum(holds)), (seed, principal, key, row)


# --- previews --------------------------------------------------------------------------------------


def test_what_if_lists_privileges_lost_without_a_grant():
    etl = principal("etl")
    grant("etl", A, READ)
    before = snapshot()
    (loss,), token = grants.what_if(actor=SYSTEM, on=A, principal="etl")
    assert snapshot() == before
    assert token is None
    assert (loss.before, loss.after, loss.lost) == (closure(READ), NOTHING, closure(READ))
    assert (loss.namespaces, loss.tables) == (2, 2)
    # Privileges from other sources count.
    grant("etl", T, READ)
    (loss,), _ = grants.what_if(actor=SYSTEM, on=A, principal="etl")
    assert (loss.namespaces, loss.tables) == (0, 1)
    team = group("team", etl)
    grant(team.name, A, Privilege.WRITE)
    (loss,), _ = grants.what_if(actor=SYSTEM, on=A, principal="etl")
    assert (loss.lost, loss.namespaces, loss.tables) == (NOTHING, 0, 0)


def test_what_if_lists_losses_of_each_group_member():
    ada, bob, eve = (
        principal(f"user:{name}", PrincipalKind.USER) for name in ("ada", "bob", "eve")
    )
    off = principal("off", is_active=False)
    admin = principal("root", level=PrincipalLevel.ADMIN)
    team = group("team", ada, bob, eve, off, admin)
    grant(team.name, A, Privilege.WRITE)
    grant("user:bob", A, READ)
    grant("user:eve", T, READ)
    before = snapshot()
    first_losses, _ = grants.what_if(actor=SYSTEM, on=A, principal=team.name)
    assert snapshot() == before
    losses = {
        loss.principal.name: (loss.lost, loss.namespaces, loss.tables) for loss in first_losses
    }
    assert losses == {
        "user:ada": (closure(Privilege.WRITE), 2, 2),
        "user:bob": (Privilege.WRITE, 0, 0),
        "user:eve": (closure(Privilege.WRITE), 0, 1),
        "off": (NOTHING, 0, 0),
        "root": (NOTHING, 0, 0),
    }
    page, token = grants.what_if(actor=SYSTEM, on=A, principal=team.name, limit=2)
    assert len(page) == 2
    second_page, token = grants.what_if(actor=SYSTEM, on=A, principal=team.name, page_token=token)
    assert (len(second_page), token) == (3, None)


def test_only_administrators_learn_who_is_in_a_group():
    owner, bob = principal("owner"), principal("bob")
    grant("owner", A, MANAGE | GRANT)
    team, hidden = group("team", bob, owner), group("hidden", bob)
    grant(team.name, A, READ)
    grant("bob", A, Privilege.BROWSE)

    def learned() -> str:
        actor = principal_named("owner")
        holders = [*grants.explain(actor=actor, on=A)[0]]
        holders += grants.explain(actor=actor, on=A, principal="bob")[0]
        losses = [
            loss
            for name in ("bob", team.name, hidden.name)
            for privileges in (NOTHING, READ)
            for loss in grants.what_if(actor=actor, on=A, principal=name, privileges=privileges)[0]
        ]
        facts = [(h.principal.name, h.held, [str(source) for source in h.sources]) for h in holders]
        return repr((facts, losses))

    with_members = learned()
    everything = repr(grants.explain(actor=SYSTEM, on=A))
    assert "through='group:team'" in everything
    for row in (team, hidden):
        row.members.remove(bob)
    assert learned() == with_members
    # The effect of the group, and the own groups.
    (loss,), _ = grants.what_if(actor=principal_named("owner"), on=A, principal=team.name)
    assert (loss.principal, loss.lost, loss.tables) == (team, closure(READ), 2)
    (own,), _ = grants.explain(actor=principal_named("owner"), on=A, principal="owner")
    assert "grant on a, through group:team" in [str(source) for source in own.sources]
    Grant.objects.filter(principal=owner).delete()
    owner.groups.add(hidden)
    grant(hidden.name, A, GRANT)
    listed, _ = grants.explain(actor=principal_named("owner"), on=A)
    assert [holder.principal.name for holder in listed] == [
        *("bob", "group:hidden", "group:team", "owner")
    ]


def test_what_if_accepts_reduced_and_unchanged_grants():
    principal("etl")
    grant("etl", A, MANAGE)
    (loss,), _ = grants.what_if(actor=SYSTEM, on=A, principal="etl", privileges=READ)
    assert loss.lost == closure(MANAGE) & ~closure(READ)
    assert (loss.namespaces, loss.tables) == (0, 0)
    assert Grant.objects.get().privileges == closure(MANAGE)


def test_what_if_requires_the_right_to_list_grants():
    principal("etl")
    grant("etl", T, READ)
    with pytest.raises(PermissionDenied):
        grants.what_if(actor=principal_named("etl"), on=T, principal="etl")
    for name in ("nobody", "no\x00body"):
        with pytest.raises(PrincipalNotFound):
            grants.what_if(actor=SYSTEM, on=T, principal=name)
        with pytest.raises(PrincipalNotFound):
            grants.explain(actor=SYSTEM, on=T, principal=name)


def test_the_error_about_an_unknown_principal_names_a_similar_one():
    group("analysts")
    principal("user:ada", PrincipalKind.USER)
    principal("etl-loader")
    principal("user:former", PrincipalKind.USER, is_active=False)
    for name, similar in {
        "analysts": "group:analysts",
        "group:analyst": "group:analysts",
        "ada": "user:ada",
        "a\x00da": "user:ada",
        "etl_loader": "etl-loader",
    }.items():
        for call in (
            lambda name=name: grant(name, AB, READ),
            lambda name=name: grants.what_if(actor=SYSTEM, on=AB, principal=name, privileges=READ),
        ):
            with pytest.raises(PrincipalNotFound, match=f"did you mean '{similar}'"):
                call()
    # Only names with the same first letter are compared.
    for name in ("former", "nobody", "xtl-loader", "", "user:", "\x00"):
        with pytest.raises(PrincipalNotFound) as refused:
            grant(name, AB, READ)
        assert "did you mean" not in refused.value.message


def test_a_principal_without_grant_learns_no_names():
    group("analysts")
    eve = principal("user:eve", PrincipalKind.USER)
    grant("user:eve", AB, READ)
    with pytest.raises(PermissionDenied) as refused:
        grant("analysts", AB, READ, actor=access.Principal("user:eve", ids=(eve.pk,)))
    assert "group:analysts" not in str(refused.value)


def test_keys_that_permit_nothing_here_are_not_shown():
    """A key may be limited to a namespace that the actor may not browse."""
    owner, etl = principal("owner"), principal("etl")
    root = principal("root", level=PrincipalLevel.ADMIN)
    grant("owner", A, Privilege.MANAGE)
    hidden = make_namespace("hidden", "secret")
    ab = Namespace.objects.named(("a", "b")).get()
    for name, fields in {
        "etl-hidden": {"principal": etl, "namespace": hidden},
        "etl-whole": {"principal": etl},
        "root-hidden": {"principal": root, "namespace": hidden},
        "root-inside": {"principal": root, "namespace": ab},
        "root-whole": {"principal": root},
        "owner-hidden": {"principal": owner, "namespace": hidden},
    }.items():
        ApiKey.objects.create(name=name, digest=name, **fields)

    def keys_of(actor, name):
        (holder,) = grants.explain(actor=actor, on=AB, principal=name)[0]
        return [key.name for key in holder.keys]

    actor = access.of_row(owner)
    assert keys_of(actor, "etl") == []
    assert keys_of(actor, "root") == ["root-inside", "root-whole"]
    assert keys_of(actor, "owner") == ["owner-hidden"]
    assert keys_of(SYSTEM, "root") == ["root-hidden", "root-inside", "root-whole"]
    assert keys_of(SYSTEM, "etl") == ["etl-hidden", "etl-whole"]
    listed = grants.explain(actor=actor, on=AB)[0]
    assert {key.name for holder in listed for key in holder.keys} == {
        "owner-hidden",
        "root-inside",
        "root-whole",
    }
