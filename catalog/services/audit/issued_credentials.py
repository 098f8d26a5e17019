"""Credentials of clients that are still valid, from their events in the audit trail.

Credentials for files outlive the grant or the key with which a client got them. Whoever withdraws access is
told until when.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.utils import timezone

from catalog import access
from catalog.models import Namespace, Principal, Table
from catalog.privileges import Privilege
from catalog.services.storage.profile_validation import MAX_LIFETIME

_MAX_EVENTS = 10_000
"""Events that are read, of any action: the newest of each principal."""
_MAX_MEMBERS = 100
"""Members of a group whose events are read."""
_OF_TABLE = "table_uuid = %(target)s"
_OF_NAMESPACE = """
EXISTS (
    SELECT FROM catalog_table AS below
    JOIN catalog_namespace AS namespace ON namespace.id = below.namespace_id
    WHERE below.uuid = table_uuid AND namespace.ancestors @> ARRAY[%(target)s::bigint]
)
"""
# The limit comes before the conditions: the cost does not grow with the trail. Times in UTC with the same
# precision are in order as texts.
_BY_PRINCIPAL = """
SELECT events.number, events.until, events.profiles
FROM unnest(%(names)s::text[]) AS principal (name)
CROSS JOIN LATERAL (
    SELECT
        count(*) AS number,
        max(after ->> 'until') FILTER (WHERE is_issue AND NOT is_static) AS until,
        array_agg(DISTINCT coalesce(after ->> 'profile', ''))
            FILTER (WHERE is_issue AND is_static) AS profiles
    FROM (
        SELECT
            after,
            action = 'credentials.issue' AND {scope} AS is_issue,
            after ->> 'client_access' IS NOT DISTINCT FROM 'static' AS is_static
        FROM (
            SELECT action, table_uuid, after FROM catalog_auditevent
            WHERE actor = principal.name ORDER BY id DESC LIMIT %(limit)s
        ) AS newest
    ) AS classified
) AS events
"""

_LAST_OF_TABLE = """
SELECT count(*), max(after ->> 'until') FILTER (WHERE action = 'credentials.issue') FROM (
    SELECT action, after FROM catalog_auditevent
    WHERE table_uuid = %(table)s ORDER BY id DESC LIMIT %(limit)s
) AS newest
"""


@dataclass(frozen=True, slots=True)
class RemainingAccess:
    """The access to files that stays with the clients of a principal."""

    until: datetime | None = None
    """The end of the last credentials; None: none are valid."""
    profiles: tuple[str, ...] = ()
    """Storage profiles whose static key was issued to clients. Static keys do not expire."""
    has_hidden_profiles: bool = False
    """True if there are such profiles whose names the reader may not know."""
    is_complete: bool = True
    """False if older events were not read: there may be more profiles and later ends."""

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """Sentences for people; empty if nothing remains."""
        sentences = []
        if self.until is not None:
            least = "" if self.is_complete else "at least "
            sentences.append(
                f"Clients that hold credentials for files keep access {least}until"
                f" {self.until:%Y-%m-%d %H:%M:%S} UTC."
            )
        keys = [f"storage profile '{name}'" for name in self.profiles]
        if self.has_hidden_profiles:
            keys.append("a storage profile")
        sentences += [
            f"Clients that got the key of {key} keep access until it is replaced." for key in keys
        ]
        if not self.is_complete:
            sentences.append("Only the newest events were examined for credentials.")
        return " ".join(sentences)


def remaining_access(
    principal: str, on: Namespace | Table | None = None, *, actor: access.Principal
) -> RemainingAccess:
    """The access that the clients of a principal keep, or those of the members of a group.

    ``on``: only to a table, or to the tables in a namespace and below it. An actor that does not administer
    the catalog does not get the names of storage profiles. Two statements.
    """
    of_group = Principal.objects.filter(groups__name=principal).order_by("name")
    members = list(of_group.values_list("name", flat=True)[: _MAX_MEMBERS + 1])
    is_complete = len(members) <= _MAX_MEMBERS
    names = [principal, *members[:_MAX_MEMBERS]]
    limit = _MAX_EVENTS // len(names)
    arguments: dict[str, Any] = {"names": names, "limit": limit}
    scope = "TRUE"
    if isinstance(on, Table):
        scope, arguments["target"] = _OF_TABLE, on.uuid
    elif on is not None:
        scope, arguments["target"] = _OF_NAMESPACE, on.pk
    ends: list[str] = []
    profiles: set[str] = set()
    with connection.cursor() as cursor:
        cursor.execute(_BY_PRINCIPAL.format(scope=scope), arguments)
        for number, until, names_of_profiles in cursor.fetchall():
            is_complete &= number < limit
            ends += [until] if until else []
            profiles.update(names_of_profiles or ())
    last = datetime.fromisoformat(max(ends)) if ends else None
    may_name = actor.holds_everywhere(Privilege.ALL)
    return RemainingAccess(
        until=last if last is not None and last > timezone.now() else None,
        profiles=tuple(sorted(profiles - {""})) if may_name else (),
        has_hidden_profiles="" in profiles or bool(profiles and not may_name),
        is_complete=is_complete,
    )


def last_end(table: Table) -> datetime | None:
    """The end of the last credentials for the files of a dropped table, which may be over; None if there were none.

    Static keys have no end. If there are too many events to read, the longest lifetime since the drop is assumed:
    otherwise whoever commits often would hide credentials.
    """
    with connection.cursor() as cursor:
        cursor.execute(_LAST_OF_TABLE, {"table": table.uuid, "limit": _MAX_EVENTS})
        number, until = cursor.fetchone()
    ends = [datetime.fromisoformat(until)] if until else []
    if number >= _MAX_EVENTS and table.dropped_at is not None:
        ends.append(table.dropped_at + timedelta(seconds=MAX_LIFETIME))
    return max(ends, default=None)
