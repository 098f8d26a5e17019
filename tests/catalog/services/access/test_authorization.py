"""Effective privileges in SQL compared with a slow Python model, on random catalogs."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from catalog import access
from catalog.access import On
from catalog.errors import NamespaceNotFound, PermissionDenied, TableNotFound, ViewNotFound
from catalog.identifiers import digest
from catalog.models import (
    ApiKey,
    Grant,
    Namespace,
    Principal,
    PrincipalKind,
    PrincipalLevel,
    Table,
    TableKind,
    TableState,
)
from catalog.privileges import NOTHING, READ_ONLY, SINGLE, Privilege, closure
from tests.factories import make_root
from tests.shares import daily

SEEDS = range(40)
of_each_world = pytest.mark.parametrize("seed", daily(SEEDS, *SEEDS[:20]))
"""`make engines` compares the other half of the random worlds."""
HOUR = timedelta(hours=1)
_MISSING = (NamespaceNotFound, TableNotFound, ViewNotFound)


@dataclass
class World:
    """A random catalog with all facts that determine privileges."""

    random: random.Random
    namespaces: list[Namespace] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    principals: list[Principal] = field(default_factory=list)
    keys: list[ApiKey] = field(default_factory=list)

    def mask(self) -> Privilege:
        chosen = self.random.sample(SINGLE, self.random.choice([1, 1, 2, 3]))
        return closure(Privilege(sum(chosen)))


def make_world(seed: int) -> World:
    world = World(random.Random(seed))
    pick = world.random
    groups = [_principal(world, f"group:{n}", PrincipalKind.GROUP) for n in range(2)]
    members = [_principal(world, f"user:{n}", PrincipalKind.USER) for n in range(3)]
    members.append(_principal(world, "etl", PrincipalKind.SERVICE))
    for member in members:
        member.groups.set([group for group in groups if pick.random() < 0.4])
    names = ["", "nobody", *(row.name for row in world.principals)]
    weights = [6, 2, *(1 for _ in world.principals)]

    def owner() -> str:
        return pick.choices(names, weights)[0]

    world.namespaces.append(make_root())
    for number in range(pick.randrange(4, 14)):
        parent = pick.choice(world.namespaces)
        path = [*parent.path, f"n{number}"]
        row = Namespace.objects.create(
            path=path, digest=digest(path), parent=parent, name=path[-1], owner=owner()
        )
        world.namespaces.append(row)
    for number in range(pick.randrange(4, 16)):
        namespace = pick.choice(world.namespaces)
        path = (*namespace.path, f"t{number}")
        row = Table.objects.create(
            namespace=namespace,
            name=path[-1],
            digest=digest(path),
            location=f"/somewhere/{number}",
            owner=owner(),
            kind=pick.choice(TableKind.values),
            state=pick.choice([TableState.LIVE, TableState.DECLARED]),
        )
        world.tables.append(row)
    for principal in world.principals:
        for row in pick.sample(world.namespaces, pick.choice([0, 0, 1, 2])):
            _grant(world, principal, namespace=row)
        for row in pick.sample(world.tables, pick.choice([0, 0, 1, 3])):
            _grant(world, principal, table=row)
    _drop(world)
    for number, member in enumerate(members):
        if pick.random() < 0.7:
            scopes = None if pick.random() < 0.5 else [pick.choice(SINGLE).word]
            within = None if pick.random() < 0.4 else pick.choice(world.namespaces)
            world.keys.append(
                ApiKey.objects.create(
                    name=f"key{number}",
                    principal=member,
                    digest=f"{number}",
                    scopes=scopes,
                    namespace=within,
                )
            )
    return world


def _principal(world: World, name: str, kind: PrincipalKind) -> Principal:
    levels = [PrincipalLevel.GRANTED] * 8 + [PrincipalLevel.READ, PrincipalLevel.ADMIN]
    row = Principal.objects.create(name=name, kind=kind, level=world.random.choice(levels))
    world.principals.append(row)
    return row


def _grant(world: World, principal: Principal, **target: Namespace | Table) -> None:
    row = Grant.objects.create(principal=principal, mask=world.mask().value, **target)
    world.grants.append(row)


def _drop(world: World) -> None:
    """Drop a few tables and a subtree; new tables may reuse dropped names."""
    pick, now = world.random, timezone.now()
    dropped_pks = set(pick.sample([row.pk for row in world.tables], len(world.tables) // 5))
    below = set()
    if pick.random() < 0.4 and len(world.namespaces) > 3:
        top = pick.choice(world.namespaces[1:])
        below = {row.pk for row in world.namespaces if row.path[: len(top.path)] == top.path}
    for row in world.tables:
        if row.pk in dropped_pks or row.namespace_id in below:
            row.state, row.dropped_at = TableState.DROPPED, now
            row.save()
    for row in world.namespaces:
        if row.pk in below:
            row.dropped_at = now
            row.save()
    for row in [
        row for row in world.tables if row.pk in dropped_pks and row.namespace_id not in below
    ]:
        if pick.random() < 0.5:
            again = Table.objects.create(
                namespace=row.namespace,
                name=row.name,
                digest=row.digest,
                location=f"{row.location}/again",
                kind=row.kind,
                state=TableState.LIVE,
            )
            world.tables.append(again)


class Model:
    """Privileges of a principal, computed object by object."""

    def __init__(self, world: World, principal: Principal, key: ApiKey | None) -> None:
        self.world = world
        self.who = [principal, *principal.groups.all()]
        self.names = {row.name for row in self.who}
        levels = {PrincipalLevel(row.level) for row in self.who}
        self.ceiling = Privilege.ALL if key is None else key.ceiling
        everywhere = NOTHING
        if PrincipalLevel.READ in levels:
            everywhere = READ_ONLY
        if PrincipalLevel.ADMIN in levels:
            everywhere = Privilege.ALL
        self.everywhere = everywhere
        self.within = None if key is None else key.namespace

    def chain(self, namespace: Namespace) -> Sequence[Namespace]:
        return [
            row
            for row in self.world.namespaces
            if list(namespace.path[: len(row.path)]) == list(row.path)
            # Recreated namespaces have no children here, so paths are unique.
        ]

    def is_inside(self, namespace: Namespace) -> bool:
        return self.within is None or self.within in self.chain(namespace)

    def granted(self, row: Namespace | Table) -> Privilege:
        privileges = NOTHING
        for grant in self.world.grants:
            if grant.principal in self.who and grant.target == row:
                privileges |= grant.privileges
        return Privilege.ALL if row.owner in self.names else privileges

    def on_namespace(self, namespace: Namespace) -> Privilege:
        if not self.is_inside(namespace):
            return NOTHING
        privileges = self.everywhere
        for row in self.chain(namespace):
            privileges |= self.granted(row)
        return privileges & self.ceiling

    def on_table(self, table: Table) -> Privilege:
        if not self.is_inside(table.namespace):
            return NOTHING
        return (self.on_namespace(table.namespace) | self.granted(table)) & self.ceiling

    def expected(self, row: Namespace | Table) -> Privilege | None:
        """What ``held_on`` returns for a row; None: it is reported as missing."""
        if isinstance(row, Table):
            return self.on_table(row) or None
        held = self.on_namespace(row)
        return held if held or self.leads_on(row) else None

    def leads_on(self, namespace: Namespace) -> bool:
        """True if the namespace's name is visible, because of its content or as a parent of the
        key's namespace."""
        if self.within is not None:
            if namespace in self.chain(self.within):
                return True
            if not self.is_inside(namespace):
                return False
        if namespace.parent is None:
            return True
        return any(
            namespace in self.chain(row)
            for row in self.world.namespaces
            if row.dropped_at is None and self._begins(row)
        )

    def _begins(self, row: Namespace) -> bool:
        tables = [table for table in self.world.tables if table.namespace == row]
        return any(
            self.granted(row_)
            for row_ in (row, *(t for t in tables if t.state != TableState.DROPPED))
        )


def _held(actor: access.Principal, target: access.Target) -> Privilege | None:
    try:
        return access.held_on(actor, target)
    except _MISSING:
        return None


@of_each_world
def test_sql_and_the_model_agree(db, seed):
    world = make_world(seed)
    live = [row for row in world.namespaces if row.dropped_at is None]
    present = [row for row in world.tables if row.state != TableState.DROPPED]
    for principal, key in [
        *((row, None) for row in world.principals if row.kind != PrincipalKind.GROUP),
        *((key.principal, key) for key in world.keys),
    ]:
        model = Model(world, principal, key)
        actor = access.of_row(principal, key)
        about = f"seed {seed}, {principal.name}, {key}"
        expected = model.expected
        for row in live:
            assert _held(actor, row) == expected(row), (about, row)
            assert _held(actor, On.namespace(row.identifier)) == expected(row), (about, row)
        for row in present:
            assert _held(actor, row) == expected(row), (about, row)
            assert _held(actor, On.table(row.identifier)) == expected(row), (about, row)
        for row in world.tables:
            if row.state == TableState.DROPPED:  # another table may have its name
                assert _held(actor, row) == expected(row), (about, row)

        readable = {row.pk for row in world.tables if Privilege.READ in model.on_table(row)}
        pks = [row.pk for row in world.tables]
        assert access.readable_tables(actor, pks) == readable, about
        visible = Table.objects.present().filter(access.visible_tables(actor))
        assert set(visible) == {row for row in present if expected(row)}, about
        visible = Namespace.objects.live().filter(access.visible_namespaces(actor))
        assert set(visible) == {row for row in live if expected(row) is not None}, about
        for privilege in SINGLE:
            for row in present[:4]:
                allowed = privilege in (expected(row) or NOTHING)
                assert access.holds(actor, privilege, row) is allowed, (about, row, privilege)


_PK = access.TableRead("t.id")


@of_each_world
def test_changes_count_at_once_where_grants_are_cached(db, seed):
    world = make_world(seed)
    keys = [(row, None) for row in world.principals if row.kind != PrincipalKind.GROUP]
    keys += [(key.principal, key) for key in world.keys]
    actors = [(access.of_row(*pair), Model(world, *pair)) for pair in keys]
    rows = [row for row in world.namespaces if row.dropped_at is None]
    rows += [row for row in world.tables if row.state != TableState.DROPPED]
    for _ in range(4):
        for actor, model in actors:
            for row in rows:
                assert _held(actor, row) == model.expected(row), (seed, actor, row)
                if isinstance(row, Table):
                    _compare_read(actor, row, model.expected(row) or NOTHING)
        _change(world)


def _compare_read(actor: access.Principal, row: Table, expected: Privilege) -> None:
    values = {"digest": row.digest}
    for privilege in (Privilege.BROWSE, Privilege.READ):
        try:
            held, columns = _PK.fetch(actor, privilege, On.table(row.identifier), values)
        except (*_MISSING, PermissionDenied):
            assert privilege not in expected
        else:
            assert privilege in expected
            assert columns == (row.pk,)
            assert actor.holds_everywhere(privilege) or held == expected


def _change(world: World) -> None:
    """Revoke, change and add grants, and change owners."""
    pick = world.random
    for grant in pick.sample(world.grants, len(world.grants) // 3):
        if pick.random() < 0.5:
            world.grants.remove(grant)
            if pick.random() < 0.5:
                grant.delete()
            else:
                Grant.objects.filter(pk=grant.pk).update(expires_at=timezone.now() - HOUR)
        else:
            grant.mask = world.mask().value
            grant.save()
    free = [
        (principal, table)
        for principal in world.principals
        for table in world.tables
        if not Grant.objects.filter(principal=principal, table=table).exists()
    ]
    for principal, table in pick.sample(free, min(3, len(free))):
        _grant(world, principal, table=table)
    for row in (pick.choice(world.namespaces), pick.choice(world.tables)):
        row.owner = pick.choice(["", *(principal.name for principal in world.principals)])
        row.save(update_fields=["owner"])


def test_random_catalogs_cover_held_and_refused_privileges(db):
    """The comparison covers held and refused privileges, and namespaces that are only passed."""
    features: set[str] = set()
    for seed in SEEDS:
        with transaction.atomic():
            world = make_world(seed)
            for key in world.keys:
                actor = access.of_row(key.principal, key)
                for row in world.namespaces:
                    held = _held(actor, row)
                    features.add("missing" if held is None else f"{held:d}")
            transaction.set_rollback(True)
    assert {"missing", "127", "0", "1", "3"} <= features
