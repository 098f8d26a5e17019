"""The monthly partitions of the audit trail: creating new ones and dropping old ones."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from catalog import access
from catalog.access import Principal
from catalog.errors import InvalidInput, ServiceUnavailable
from catalog.models import AuditEvent
from catalog.privileges import Privilege
from catalog.services.audit import chain
from catalog.services.engine import audit_records

AHEAD = 3
"""The number of future months with partitions. Rows of other months go to the default partition."""
_NAME = re.compile(r"catalog_auditevent_(\d{4})_(\d{2})")


@dataclass(frozen=True, slots=True)
class Dropped:
    """A month that was removed from the trail."""

    month: str
    events: int


def make_partitions() -> int:
    """Create the partitions of the current and the coming months; returns how many were missing."""
    with transaction.atomic(), connection.cursor() as cursor:
        # Fail early, so that commits do not queue up behind a reader of the whole trail.
        cursor.execute("SET LOCAL lock_timeout = '5s'")
        cursor.execute(
            "SELECT catalog_audit_make_partitions(%s::date, %s)",
            [timezone.now().astimezone(UTC).date(), AHEAD + 1],
        )
        return int(cursor.fetchone()[0])


def drop_months(*, actor: Principal, keep_months: int) -> list[Dropped]:
    """Drop the partitions of all months but the current one and the ``keep_months`` before it.

    Each dropped month leaves an audit row (``audit.retention``) with the last seal of that month, so
    the remaining trail can be verified. Raises InvalidInput for less than one month, and
    ServiceUnavailable when an event of a month is not sealed yet; no further month is dropped then.
    The database's role must own the table.
    """
    access.require(actor, Privilege.MANAGE)
    if keep_months < 1:
        raise InvalidInput(f"At least one month must be kept, not {keep_months}")
    kept_from = _months_before(timezone.now(), keep_months)
    chain.seal()
    return [_drop(actor, year, month) for year, month in _months() if (year, month) < kept_from]


def drop_due_months() -> int:
    """Drop the months older than MONODON_AUDIT_KEEP_MONTHS, where 0 keeps all; returns how many."""
    keep = settings.MONODON_AUDIT_KEEP_MONTHS
    return len(drop_months(actor=access.SYSTEM, keep_months=keep)) if keep else 0


def grants(role: str) -> list[str]:
    """The statements that limit a role, quoted for SQL, to inserting and reading.

    The role cannot set the columns that the database fills, so it can neither backdate an event nor
    place it among sealed ones. Partitions are accessible through their parents only.
    """
    filled = {"id", "at", "xid"}
    columns = ", ".join(
        connection.ops.quote_name(str(field.column))
        for field in AuditEvent._meta.concrete_fields
        if field.column not in filled
    )
    parents = "catalog_auditevent, catalog_auditseal"
    partitions = [name for parent in parents.split(", ") for name in _partitions(parent)]
    return [
        f"REVOKE ALL ON {', '.join([parents, *sorted(partitions)])} FROM {role}, PUBLIC",
        f"GRANT SELECT ON {parents} TO {role}",
        f"GRANT INSERT ({columns}) ON catalog_auditevent TO {role}",
        f"GRANT INSERT ON catalog_auditseal TO {role}",
        f"GRANT USAGE ON SEQUENCE catalog_auditevent_id_seq TO {role}",
        "REVOKE ALL ON FUNCTION catalog_audit_make_partitions(date, integer) FROM PUBLIC",
        f"GRANT EXECUTE ON FUNCTION catalog_audit_make_partitions(date, integer) TO {role}",
    ]


def _partitions(parent: str) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid"
            " WHERE inhparent = %s::regclass",
            [parent],
        )
        return [name for (name,) in cursor.fetchall()]


def _months_before(now: datetime, months: int) -> tuple[int, int]:
    now = now.astimezone(UTC)
    count = now.year * 12 + now.month - 1 - months
    return count // 12, count % 12 + 1


def _months() -> list[tuple[int, int]]:
    matches = [_NAME.fullmatch(name) for name in _partitions("catalog_auditevent")]
    return sorted((int(match[1]), int(match[2])) for match in matches if match)


def _drop(actor: Principal, year: int, month: int) -> Dropped:
    events, seals = (f"catalog_{kind}_{year}_{month:02}" for kind in ("auditevent", "auditseal"))
    following = _text(*((year + 1, 1) if month == 12 else (year, month + 1)))
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '5s'")
        for parent, partition in (("catalog_auditevent", events), ("catalog_auditseal", seals)):
            if _exists(cursor, partition):
                # A detached partition stays locked, so no rows can be added.
                cursor.execute(f"ALTER TABLE {parent} DETACH PARTITION {partition}")
        cursor.execute(f"SELECT count(*), min(id), max(id) FROM {events}")  # noqa: S608 -- our own names
        count, first, last = cursor.fetchone()
        anchor = _anchor(cursor, events, seals, following)
        cursor.execute(f"DROP TABLE {events}")
        if _exists(cursor, seals):
            cursor.execute(f"DROP TABLE {seals}")
        audit_records.record(
            actor,
            chain.RETENTION,
            f"{year}-{month:02}",
            before={"events": count, "first": first, "last": last},
            after={"kept_from": following, "anchor": anchor},
        )
    return Dropped(f"{year}-{month:02}", count)


def _anchor(cursor: Any, events: str, seals: str, following: str) -> dict[str, Any] | None:
    """The last dropped seal. Raises ServiceUnavailable if an event or a seal must not be dropped."""
    has_seals = _exists(cursor, seals)
    own = f"OR EXISTS (SELECT FROM {seals} s WHERE s.event_id = e.id)" if has_seals else ""
    cursor.execute(
        f"""
        SELECT count(*) FROM {events} e
        WHERE NOT (EXISTS (SELECT FROM catalog_auditseal s WHERE s.event_id = e.id) {own})
        """  # noqa: S608 -- our own names
    )
    (unsealed,) = cursor.fetchone()
    if unsealed:
        raise ServiceUnavailable(f"{unsealed} events of {events[-7:]} are not sealed yet")
    if has_seals:
        cursor.execute(
            f"SELECT number, encode(hash, 'hex'), (SELECT max(at) FROM {seals}) >= %s::timestamptz"  # noqa: S608 -- our own names
            f" FROM {seals} ORDER BY number DESC LIMIT 1",
            [following],
        )
        row = cursor.fetchone()
        if row is not None:
            if row[2]:
                raise ServiceUnavailable(f"'{seals}' holds seals of events that are still needed")
            return {"number": row[0], "hash": row[1]}
    before = chain.newest_retention()
    return None if before is None else {"number": before.number, "hash": before.hash.hex()}


def _exists(cursor: Any, name: str) -> bool:
    cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [name])
    return bool(cursor.fetchone()[0])


def _text(year: int, month: int) -> str:
    return f"{year}-{month:02}-01T00:00:00.000000Z"
