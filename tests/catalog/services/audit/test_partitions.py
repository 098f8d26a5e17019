"""Monthly partitions of the audit trail: creation, removal, and verification of the remaining ones."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import ProgrammingError, connection, transaction
from django.utils import timezone

from catalog.access import SYSTEM, Principal
from catalog.errors import InvalidInput, PermissionDenied, ServiceUnavailable
from catalog.models import AuditEvent
from catalog.models.audit import AuditSeal
from catalog.privileges import READ_ONLY
from catalog.services.audit import chain as audit_chain
from catalog.services.audit import partitions as audit_partitions
from catalog.services.audit import verification as audit_verification
from catalog.services.engine import audit_records
from tests.factories import wait_for_readers
from tests.sealing import seal_all

pytestmark = pytest.mark.django_db(transaction=True)


def query(statement: str, *values):
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchall() if cursor.description else []


def month_ago(months: int) -> datetime:
    now = timezone.now().astimezone(UTC)
    count = now.year * 12 + now.month - 1 - months
    return datetime(count // 12, count % 12 + 1, 15, tzinfo=UTC)


def partition_of(pk: int) -> str:
    return query("SELECT tableoid::regclass::text FROM catalog_auditevent WHERE id = %s", pk)[0][0]


def partitions() -> set[str]:
    rows = query(
        "SELECT inhrelid::regclass::text FROM pg_inherits"
        " WHERE inhparent IN ('catalog_auditevent'::regclass, 'catalog_auditseal'::regclass)"
    )
    return {name for (name,) in rows}


@pytest.fixture(autouse=True)
def _same_partitions_afterwards():
    """Restore the partitions after the test, because a flush does not drop tables."""
    before = partitions()
    yield
    for name in partitions() - before:
        query(f"DROP TABLE {name}")
    assert partitions() == before


def make_months(*months: int) -> None:
    """Create partitions of past months, as if the catalog had run then."""
    for number in months:
        query("SELECT catalog_audit_make_partitions(%s::date, 1)", month_ago(number).date())


def old_event(months: int, number: int = 0) -> AuditEvent:
    at = month_ago(months) + timedelta(seconds=number)
    return AuditEvent.objects.create(at=at, actor="a", action="tag.create", target=f"t{number}")


def age_seals(months: int) -> None:
    """Set back the times of existing seals, with a correct chain."""
    query("ALTER TABLE catalog_auditseal DISABLE TRIGGER audit_is_append_only")
    moment = (month_ago(months) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    head = None
    for seal in list(audit_chain.read_seals("TRUE ORDER BY s.number", [])):
        aged = seal if seal.sealed_at < moment else audit_chain.replace(seal, sealed_at=moment)
        aged = audit_chain.replace(aged, previous=head.hash if head else audit_chain.GENESIS)
        head = audit_chain.replace(aged, hash=aged.compute())
        query(
            "UPDATE catalog_auditseal SET sealed_at = %s, previous = %s, hash = %s"
            " WHERE number = %s",
            head.sealed_at,
            head.previous,
            head.hash,
            head.number,
        )
    query("ALTER TABLE catalog_auditseal ENABLE ALWAYS TRIGGER audit_is_append_only")


# --- creation ------------------------------------------------------------------------------------


def test_partitions_of_coming_months_are_created_once():
    assert audit_partitions.make_partitions() in {0, 2 * (audit_partitions.AHEAD + 1)}
    assert audit_partitions.make_partitions() == 0
    for number in range(audit_partitions.AHEAD + 1):
        at = month_ago(-number)
        assert f"catalog_auditevent_{at:%Y_%m}" in partitions()
        assert partition_of(old_event(-number).pk) == f"catalog_auditevent_{at:%Y_%m}"
        with pytest.raises(ProgrammingError, match="append-only"), transaction.atomic():
            query("DELETE FROM " + f"catalog_auditevent_{at:%Y_%m}")


def test_rows_move_from_the_default_partition_to_a_new_month():
    row, other = old_event(-20), old_event(-30)
    assert partition_of(row.pk) == partition_of(other.pk) == "catalog_auditevent_default"
    make_months(-20)
    assert partition_of(row.pk) == f"catalog_auditevent_{month_ago(-20):%Y_%m}"
    assert partition_of(other.pk) == "catalog_auditevent_default"
    event = AuditEvent.objects.get(pk=row.pk)
    assert (event.xid, event.at, event.target) == (row.xid, row.at, row.target)
    for name in ("catalog_auditevent_default", partition_of(row.pk)):
        with pytest.raises(ProgrammingError, match="append-only"), transaction.atomic():
            query(f"DELETE FROM {name}")
    assert AuditEvent.objects.count() == 2


def test_one_call_creates_at_most_200_months():
    before = partitions()
    with pytest.raises(Exception, match="1 to 200 months"), transaction.atomic():
        query("SELECT catalog_audit_make_partitions('2020-01-01', 201)")
    assert partitions() == before


# --- removal -------------------------------------------------------------------------------------


def test_the_trail_verifies_after_old_months_are_dropped():
    make_months(5, 4, 3)
    old_events = [old_event(5, n) for n in range(3)]
    seal_all()
    age_seals(5)
    old_events += [old_event(4, n) for n in range(2)]
    seal_all()
    age_seals(4)
    recent = old_event(3)
    seal_all()
    assert audit_verification.verify().findings == []
    seal = AuditSeal.objects.get(event_id=old_events[-1].pk)
    dropped = audit_partitions.drop_months(actor=SYSTEM, keep_months=3)
    assert [(month.month, month.events) for month in dropped] == [
        (f"{month_ago(5):%Y-%m}", 3),
        (f"{month_ago(4):%Y-%m}", 2),
    ]
    assert f"catalog_auditevent_{month_ago(4):%Y_%m}" not in partitions()
    assert f"catalog_auditseal_{month_ago(4):%Y_%m}" not in partitions()
    retentions = AuditEvent.objects.filter(action="audit.retention").order_by("pk")
    assert [row.target for row in retentions] == [month.month for month in dropped]
    assert retentions[0].before == {
        "events": 3,
        "first": old_events[0].pk,
        "last": old_events[2].pk,
    }
    assert retentions[1].after == {
        "kept_from": f"{month_ago(3):%Y-%m}-01T00:00:00.000000Z",
        "anchor": {"number": seal.number, "hash": bytes(seal.hash).hex()},
    }
    seal_all()
    report = audit_verification.verify()
    assert (report.seals, report.retired, report.findings) == (3, 0, [])
    assert AuditEvent.objects.filter(pk=recent.pk).exists()
    assert audit_partitions.drop_months(actor=SYSTEM, keep_months=3) == []


def test_verify_reports_events_missing_beyond_the_anchor():
    make_months(4)
    old_event(4)
    seal_all()
    age_seals(4)
    for _ in range(3):
        audit_records.record(SYSTEM, "tag.create", "t")
    seal_all()
    audit_partitions.drop_months(actor=SYSTEM, keep_months=1)
    assert audit_verification.verify().is_sound
    query("ALTER TABLE catalog_auditseal DISABLE TRIGGER audit_is_append_only")
    query("DELETE FROM catalog_auditseal WHERE number = 2")
    query("ALTER TABLE catalog_auditseal ENABLE ALWAYS TRIGGER audit_is_append_only")
    texts = [finding.text for finding in audit_verification.verify().findings]
    assert "Seal 2 is missing" in texts


def test_events_sealed_a_month_later_are_dropped_with_their_month():
    make_months(4)
    rows = [old_event(4, n) for n in range(3)]
    wait_for_readers()
    seal_all()  # sealed now, so in this month
    audit_partitions.drop_months(actor=SYSTEM, keep_months=1)
    seal_all()
    report = audit_verification.verify()
    assert (report.seals, report.retired, report.findings) == (4, len(rows), [])


def test_a_month_with_unsealed_events_is_not_dropped(monkeypatch):
    make_months(4)
    row = old_event(4)
    monkeypatch.setattr(audit_chain, "seal", lambda: 0)
    before = partitions()
    with pytest.raises(ServiceUnavailable, match=r"1 events of .* are not sealed yet"):
        audit_partitions.drop_months(actor=SYSTEM, keep_months=1)
    assert partitions() == before
    assert list(AuditEvent.objects.values_list("pk", flat=True)) == [row.pk]


def test_only_catalog_managers_drop_past_months():
    make_months(4)
    old_event(4)
    before = partitions()
    with pytest.raises(PermissionDenied):
        audit_partitions.drop_months(actor=Principal("ada", READ_ONLY), keep_months=1)
    with pytest.raises(InvalidInput):
        audit_partitions.drop_months(actor=SYSTEM, keep_months=0)
    assert partitions() == before
    assert AuditEvent.objects.count() == 1


def test_the_command_and_the_schedule_drop_old_months(capsys, settings):
    make_months(4, 3)
    old_event(4)
    seal_all()
    assert audit_partitions.drop_due_months() == 0, "off unless it is said"
    with pytest.raises(CommandError, match="At least one month"):
        call_command("audit_retention", "--keep-months", "0")
    call_command("audit_retention", "--keep-months", "3")
    assert f"{month_ago(4):%Y-%m}: 1 events dropped" in capsys.readouterr().out
    settings.MONODON_AUDIT_KEEP_MONTHS = 2
    assert audit_partitions.drop_due_months() == 1
    call_command("audit_retention", "--keep-months", "2")
    assert "No month is old enough" in capsys.readouterr().out


# --- two roles -----------------------------------------------------------------------------------


def test_the_restricted_role_may_only_insert_and_read(capsys):
    role = f"app_{uuid.uuid4().hex[:8]}"
    query(f"CREATE ROLE {role}")
    query(f"GRANT {role} TO CURRENT_USER")  # may drop its own tables, but is not a superuser
    query(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
    call_command("audit_grants", role)
    statements = capsys.readouterr().out
    try:
        query(statements)
        with transaction.atomic():
            query(f"SET LOCAL ROLE {role}")
            audit_records.record(SYSTEM, "tag.create", "t")
            assert AuditEvent.objects.count() == 1
            assert query("SELECT catalog_audit_make_partitions(now()::date, 1)")
        refused = [
            "UPDATE catalog_auditevent SET actor = 'm'",
            "DELETE FROM catalog_auditevent",
            "TRUNCATE catalog_auditevent",
            "ALTER TABLE catalog_auditevent DISABLE TRIGGER ALL",
            (
                "INSERT INTO catalog_auditevent (at, actor, action, target, request_id)"
                " VALUES (now() - interval '1 day', 'a', 'b', 'c', '')"
            ),
            (
                "INSERT INTO catalog_auditevent (xid, actor, action, target, request_id)"
                " VALUES ('3', 'a', 'b', 'c', '')"
            ),
            "UPDATE catalog_auditseal SET number = 1",
            "DROP TABLE catalog_auditseal",
        ]
        for name in partitions():
            refused += [f"DELETE FROM {name}", f"TRUNCATE {name}", f"SELECT FROM {name}"]
        for statement in refused:
            with (
                pytest.raises(ProgrammingError, match=r"permission denied|must be owner"),
                transaction.atomic(),
            ):
                query(f"SET LOCAL ROLE {role}; {statement}")
        with transaction.atomic():
            query(f"SET LOCAL ROLE {role}")
            assert seal_all() == 1
        assert audit_verification.verify().is_sound
    finally:
        query(f"DROP OWNED BY {role}")
        query(f"DROP ROLE {role}")
        query("GRANT EXECUTE ON FUNCTION catalog_audit_make_partitions(date, integer) TO PUBLIC")
