"""Locations for which principals got credentials before their tables exist.

The creation of an Iceberg table can be staged: its client writes the data first, with credentials for the
location. The store accepts them until they expire, whoever has a table there by then. So each such
location is reserved for its principal until that time. Default locations have names that nobody can choose.

    reserve          before credentials are issued
    require_free     before a location in an object store is used (``object_placement``)
"""

from datetime import UTC, timedelta

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from catalog import access
from catalog.access import Principal
from catalog.errors import LocationTaken
from catalog.models import (
    IcebergPath,
    Job,
    StagedLocation,
    Table,
    TableState,
)
from catalog.privileges import Privilege
from catalog.services.engine import database_clock, locks
from catalog.storage import locations


def reserve(actor: Principal, location: str, seconds: float) -> None:
    """Reserve a location for a principal that is about to get credentials for it, for at most this long.

    Raises LocationTaken if there may be files of tables by now, or if another principal has reserved it.
    """
    with transaction.atomic():
        locks.lock_locations()
        _require_no_files(actor, location)
        require_free(actor, location)
        now = database_clock.read_clock()
        StagedLocation.objects.filter(until__lt=now).delete()
        row, is_new = StagedLocation.objects.get_or_create(
            location=location,
            principal=actor.name,
            defaults={"until": now + timedelta(seconds=seconds)},
        )
        if not is_new:
            row.until = max(row.until, now + timedelta(seconds=seconds))
            row.save(update_fields=["until"])


def reserved_for_others(actor: Principal) -> QuerySet[StagedLocation]:
    """The locations that are reserved for other principals."""
    rows = StagedLocation.objects.filter(until__gt=database_clock.database_now())
    return rows.exclude(principal=actor.name)


def require_free(actor: Principal, location: str, *, is_namespace: bool = False) -> None:
    """Raise LocationTaken for a location at, inside or around one that is reserved for another principal.

    An administrator may set the location of a namespace around it. No table of the namespace gets it by that.
    """
    meeting = Q(location__in=[location, *locations.parents(location)])
    if not (is_namespace and actor.holds_everywhere(Privilege.MANAGE)):
        meeting |= Q(location__startswith=location + "/")
    row = reserved_for_others(actor).filter(meeting).order_by("-until").first()
    if row is not None:
        may_name = actor.holds_everywhere(Privilege.MANAGE)
        name = f"Principal '{row.principal}'" if may_name else "Another principal"
        until = row.until.astimezone(UTC).isoformat(timespec="seconds")
        refused = LocationTaken(location)
        refused.detail = f"{name} has staged the creation of a table there, and has credentials for its files until {until}."
        raise refused


def _require_no_files(actor: Principal, location: str) -> None:
    """Raise LocationTaken if a table that the actor may not manage may have files at a location."""
    paths = IcebergPath.objects.meeting(location)
    at = set(Table.objects.meeting(location).values_list("pk", flat=True))
    purged = Exists(Job.objects.complete_purges().filter(table=OuterRef("pk")))
    others = Table.objects.filter(Q(pk__in=at) | Q(pk__in=paths.values("table")))
    others = others.exclude(purged, state=TableState.DROPPED).select_related("namespace")
    for holder in others.order_by("pk").iterator():
        is_there = holder.pk in at and holder.state != TableState.DROPPED
        if is_there or not access.holds(actor, Privilege.MANAGE, holder):
            raise LocationTaken(location)
