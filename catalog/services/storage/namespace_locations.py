"""Locations of namespaces: where new tables are placed, and which namespace a path belongs to.

The property ``location`` sets the location of a namespace. A namespace without this property has a
directory of its own, named after its UUID. It lies below the location of the nearest ancestor (or the
namespace itself) that has the property or is bound to a storage profile; of a profile, the first root
counts. If there is no such ancestor, it lies in the warehouse. A path belongs to the innermost namespace
whose location contains it. ``object_placement`` decides who may choose a location in an object store.
"""

import re
import uuid
from collections.abc import Collection, Sequence

from django.db.models import Q
from django.db.models.expressions import RawSQL

from catalog import access
from catalog.access import On, Principal
from catalog.errors import InvalidLocation, LocationTaken, NamespaceNotFound
from catalog.identifiers import Identifier, digest, slug
from catalog.models import Namespace
from catalog.privileges import Privilege
from catalog.services.engine.prepared import selects
from catalog.storage import locations

PROPERTY = "location"
_UUID = re.compile(r"-([0-9a-f]{32})$")
_NAME_LENGTH = 60


# --- locations ---------------------------------------------------------------------------------


def line(namespace: Identifier) -> list[Namespace]:
    """The live namespaces from the root down to this one, as far as they exist. One statement."""
    paths = [namespace[:length] for length in range(len(namespace) + 1)]
    rows = selects.select_namespaces([digest(path) for path in paths])
    return sorted(rows, key=lambda row: len(row.path))


def path_of(rows: Sequence[Namespace]) -> str:
    """The same as ``location_of``, as a canonical location."""
    row = rows[-1]
    return row.location or _default(row, next(filter(None, map(_base, reversed(rows))), None))


def location_of(rows: Sequence[Namespace]) -> str:
    """The location of the last of these namespaces; the others are its ancestors."""
    return explicit_location_of(rows) or locations.iceberg_uri(_default(rows[-1], None))


def explicit_location_of(rows: Sequence[Namespace]) -> str | None:
    """The location that a property or a profile of the namespace or an ancestor sets, or None."""
    row = rows[-1]
    own = row.properties.get(PROPERTY)
    if own:
        return str(own)
    base = next(filter(None, map(_base, reversed(rows))), None)
    return locations.iceberg_uri(_default(row, base)) if base else None


def bound_to_profile(rows: Sequence[Namespace]) -> Namespace | None:
    """The nearest of these namespaces that is bound to a storage profile, the last one first."""
    return next((row for row in reversed(rows) if row.storage_profile_id is not None), None)


def _base(row: Namespace) -> str | None:
    """The directory that the namespace itself sets for default locations below it, or None."""
    if row.location:
        return row.location
    if row.storage_profile_id is None:
        return None  # reading the relation takes 10 µs
    profile = row.storage_profile
    return None if profile is None else profile.roots[0]


def _default(row: Namespace, base: str | None) -> str:
    """The canonical path of a directory that no other namespace has ever had."""
    base = base or locations.allowed_roots()[0]
    return f"{base}/{slug(row.path, _NAME_LENGTH)}-{row.uuid.hex}" if row.path else base


def describe(actor: Principal, namespace: Identifier) -> tuple[Namespace, dict[str, str]]:
    """A namespace and its properties, with its location if the actor has READ.

    Raises NamespaceNotFound.
    """
    access.require(actor, Privilege.BROWSE, On.namespace(namespace))
    rows = line(namespace)
    if not rows or len(rows[-1].path) != len(namespace):
        raise NamespaceNotFound(namespace)
    return rows[-1], properties_of(actor, rows)


def properties_of(actor: Principal, rows: Sequence[Namespace]) -> dict[str, str]:
    """The properties of the last of these namespaces, with its location if the actor has READ."""
    row = rows[-1]
    if not access.holds(actor, Privilege.READ, row):
        return without_location(row.properties)
    return {**row.properties, PROPERTY: location_of(rows)}


def visible_properties(actor: Principal, row: Namespace) -> dict[str, str]:
    """The namespace's own properties, without a location that the actor may not read."""
    if PROPERTY not in row.properties or access.holds(actor, Privilege.READ, row):
        return dict(row.properties)
    return without_location(row.properties)


def without_location(properties: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in properties.items() if name != PROPERTY}


# --- owners of paths ---------------------------------------------------------------------------


def holding(path: str, *, apart_from: int | None = None) -> list[tuple[str, Namespace]]:
    """The namespaces whose locations are this path or hold it, with these, the innermost first."""
    return holding_each([path], apart_from=apart_from)[path]


def any_of(texts: Collection[str]) -> RawSQL:
    """The texts for a lookup with ``__in``, as one parameter, however many they are."""
    return RawSQL("SELECT unnest(%s::text[])", [list(texts)])


def holding_each(
    paths: Collection[str], *, apart_from: int | None = None
) -> dict[str, list[tuple[str, Namespace]]]:
    """The same for each of several paths. One statement, or two."""
    lines = {path: [path, *locations.parents(path)] for path in paths}
    directories = {directory for line_ in lines.values() for directory in line_}
    names = {directory.rpartition("/")[2] for directory in directories}
    uuids = {uuid.UUID(match[1]) for name in names if (match := _UUID.search(name))}
    rows = Namespace.objects.holding_locations().exclude(pk=apart_from or 0)
    rows = rows.filter(Q(location__in=any_of(directories)) | Q(uuid__in=uuids))
    held: dict[str, list[tuple[str, Namespace]]] = {}
    unplaced: list[Namespace] = []
    for row in rows:
        if row.location is None:
            unplaced.append(row)
        else:
            held.setdefault(row.location, []).append((row.location, row))
    for location, row in _with_defaults(unplaced):
        held.setdefault(location, []).append((location, row))
    return {
        path: [each for directory in line_ for each in held.get(directory, ())]
        for path, line_ in lines.items()
    }


def _with_defaults(rows: Collection[Namespace]) -> list[tuple[str, Namespace]]:
    if not rows:
        return []
    pks = {pk for row in rows for pk in row.ancestors}
    above = Namespace.objects.filter(
        Q(location__isnull=False) | Q(storage_profile__isnull=False), pk__in=pks
    )
    # Of a profile all roots count: another may have been the first when a table was placed.
    bases: dict[int, list[str]] = {
        pk: [location] if location else roots
        for pk, location, roots in above.values_list("pk", "location", "storage_profile__roots")
    }
    return [
        (_default(row, base), row)
        for row in rows
        for base in next((bases[pk] for pk in reversed(row.ancestors) if pk in bases), [None])
    ]


def require_place(actor: Principal, location: str) -> None:
    """Refuse a table's location in, at or around a namespace's that is not the actor's to use.

    A table in a namespace's location requires CREATE on that namespace. Raises LocationTaken.
    """
    holders = holding(location)
    around = Namespace.objects.holding_locations().filter(location__startswith=location + "/")
    met = next((row for directory, row in holders if directory == location), None) or around.first()
    if met is not None:
        raise taken(actor, location, met)
    _require_create(actor, location, holders)


def require_none_inside(actor: Principal, tables: Collection[str]) -> None:
    """Refuse locations of tables at or around one that is set for a namespace: it could have no new tables.

    Namespaces in the trash do not count. One statement. Raises LocationTaken.
    """
    inside = RawSQL(
        """
        SELECT inner_namespace.id FROM unnest(%s::text[]) AS requested (location)
        JOIN catalog_namespace inner_namespace ON inner_namespace.location = requested.location OR (
            inner_namespace.location ~>=~ (requested.location || '/')
            AND inner_namespace.location ~<~ (requested.location || '0')
        )
        """,
        [list(tables)],
    )
    met = Namespace.objects.filter(pk__in=inside, dropped_at=None).order_by("pk").first()
    if met is not None:
        raise taken(actor, str(met.location), met)


def require_directory(actor: Principal, path: str) -> None:
    """Refuse a directory for files of a table in a namespace's location where the actor may create nothing.

    And one at or around the location of a namespace that it may not manage without an end: nobody else could
    create tables in that namespace any more. Raises LocationTaken.
    """
    holders = holding(path)
    if not actor.holds_everywhere(Privilege.MANAGE):
        around = Namespace.objects.holding_locations().filter(location__startswith=path + "/")
        at = [row for directory, row in holders if directory == path]
        for row in (*at, *around.order_by("pk").iterator()):
            if not access.holds_lasting(actor, Privilege.MANAGE, row):
                raise taken(actor, path, row)
    _require_create(actor, path, holders)


def require_path(actor: Principal, path: str, *, apart_from: int | None = None) -> None:
    """Refuse a directory for files in a namespace's location where the actor may create nothing.

    Raises LocationTaken.
    """
    _require_create(actor, path, holding(path, apart_from=apart_from))


def may_use(actor: Principal, path: str) -> bool:
    """True if a path is in no namespace's location where the actor may create nothing."""
    return may_create(actor, _innermost(holding(path)))


def _require_create(actor: Principal, path: str, rows: list[tuple[str, Namespace]]) -> None:
    if not may_create(actor, innermost := _innermost(rows)):
        raise taken(actor, path, innermost[0])


def may_create(actor: Principal, innermost: Sequence[Namespace]) -> bool:
    """True if the actor may have tables in a location of which these namespaces are the innermost."""
    if not innermost or actor.holds_everywhere(Privilege.CREATE):
        return True
    return any(access.holds(actor, Privilege.CREATE, row) for row in innermost)


def _innermost(rows: Sequence[tuple[str, Namespace]]) -> list[Namespace]:
    return [row for directory, row in rows if directory == rows[0][0]]


def taken(actor: Principal, location: str, holder: Namespace) -> LocationTaken:
    """The refusal of a location that meets a namespace's. It names the namespace only to actors
    with BROWSE on it."""
    if not access.holds(actor, Privilege.BROWSE, holder):
        return LocationTaken(location, kind="namespace")
    return LocationTaken(location, holder.identifier, kind="namespace")


def resolve(namespace: Identifier, location: str) -> str:
    """A relative location of a table as a URI below its namespace's location.

    Raises InvalidLocation for one that leads elsewhere.
    """
    rows = line(namespace)
    base = locations.iceberg_path(location_of(rows))
    path = locations.iceberg_path(f"{base}/{location}")
    if not path.startswith(base + "/"):
        raise InvalidLocation(location, "leads out of its namespace's location")
    return locations.iceberg_uri(path)
