"""Locations for which principals got credentials before their tables exist.

The creation of an Iceberg table can be staged: its client writes the data first, with credentials for the
location. The store accepts them until they expire, whoever has a table there by then. So each such
location is reserved for its principal until that time. Default locations have names that nobody can choose.

    reserve          before credentials are issued
    require_free     before a location in an object store is used (``object_placement``)
"""

from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from catalog import access
from catalog.access import Principal
from catalog.errors import InvalidInput, LocationTaken
from catalog.models import (
    IcebergPath,
    Job,
    StagedLocation,
    Table,
    TableState,
)
from catalog.privileges import Privilege
from catalog.services.engine import database_clock, locks
from catalog.services.storage import namespace_locations
from catalog.storage import locations

MAX_UNUSED = 1000
"""Locations that a principal may have reserved for tables that were never created. Failed creations leave some."""


def reserve(actor: Principal, location: str, lifetime: timedelta) -> datetime:
    """Reserve a location for a principal that is about to get credentials for it; returns until when.

    Raises LocationTaken if there may be files of tables by now, if another principal has reserved it, or if it is not
    in a namespace in which the actor may create tables; and InvalidInput if the principal has reserved too many.
    """
    with transaction.atomic():
        locks.lock_locations()
        _require_usable(actor, location)
        now = database_clock.read_clock()
        StagedLocation.objects.filter(until__lt=now).delete()
        _require_room(actor, location)
        return _extend(actor, location, now + lifetime)


def extend(actor: Principal, location: str, until: datetime) -> None:
    """Reserve a location again, for credentials that are valid for longer than was expected.

    Raises LocationTaken if they must not be given out: the reservation has ended, and others use the location.
    """
    with transaction.atomic():
        locks.lock_locations()
        _require_usable(actor, location)
        _extend(actor, location, until)


def _extend(actor: Principal, location: str, until: datetime) -> datetime:
    row, is_new = StagedLocation.objects.get_or_create(
        location=location, principal=actor.name, defaults={"until": until}
    )
    if not is_new and row.until < until:
        row.until = until
        row.save(update_fields=["until"])
    return row.until


def _require_usable(actor: Principal, location: str) -> None:
    _require_no_files(actor, location)
    namespace_locations.require_place(actor, location)
    require_free(actor, location)


def _require_room(actor: Principal, location: str) -> None:
    """Raise InvalidInput if a principal has reserved too many locations without creating the tables."""
    reserved = StagedLocation.objects.filter(principal=actor.name).exclude(location=location)
    if reserved.count() < MAX_UNUSED:
        return
    unused = reserved.exclude(Exists(Table.objects.filter(location=OuterRef("location"))))
    if unused.count() >= MAX_UNUSED:
        first = unused.order_by("until").values_list("until", flat=True)[0]
        raise InvalidInput(
            f"Principal '{actor.name}' has staged the creation of {MAX_UNUSED} tables that do not exist. Create"
            f" them, or wait until {_text(first)}, when the first credentials for their locations have expired."
        )


def reserved_for_others(actor: Principal) -> QuerySet[StagedLocation]:
    """The locations that are reserved for other principals."""
    rows = StagedLocation.objects.filter(until__gt=database_clock.database_now())
    return rows.exclude(principal=actor.name)


def is_free(actor: Principal, directory: str) -> bool:
    """True if no location at, inside or around a directory is reserved for another principal."""
    return not reserved_for_others(actor).filter(_meeting(directory)).exists()


def _meeting(location: str, *, with_inside: bool = True) -> Q:
    meeting = Q(location__in=[location, *locations.parents(location)])
    return meeting | Q(location__startswith=location + "/") if with_inside else meeting


def require_free(actor: Principal, location: str, *, is_namespace: bool = False) -> None:
    """Raise LocationTaken for a location at, inside or around one that is reserved for another principal.

    An administrator may set the location of a namespace around it. No table of the namespace gets it by that.
    """
    rows = _meeting(
        location, with_inside=not (is_namespace and actor.holds_everywhere(Privilege.MANAGE))
    )
    row = reserved_for_others(actor).filter(rows).order_by("-until").first()
    if row is not None:
        may_name = actor.holds_everywhere(Privilege.MANAGE)
        name = f"Principal '{row.principal}'" if may_name else "Another principal"
        refused = LocationTaken(location)
        refused.detail = f"{name} has staged the creation of a table there, and has credentials for its files until {_text(row.until)}."
        raise refused


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")


def _require_no_files(actor: Principal, location: str) -> None:
    """Raise LocationTaken if a table that the actor may not manage, or not without an end, may have files at a location."""
    paths = IcebergPath.objects.meeting(location)
    at = set(Table.objects.meeting(location).values_list("pk", flat=True))
    purged = Exists(Job.objects.complete_purges().filter(table=OuterRef("pk")))
    others = Table.objects.filter(Q(pk__in=at) | Q(pk__in=paths.values("table")))
    others = others.exclude(purged, state=TableState.DROPPED).select_related("namespace")
    for holder in others.order_by("pk").iterator():
        is_there = holder.pk in at and holder.state != TableState.DROPPED
        if is_there or not access.holds_lasting(actor, Privilege.MANAGE, holder):
            raise LocationTaken(location)
