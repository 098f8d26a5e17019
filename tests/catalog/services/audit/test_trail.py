"""Search and export of the audit trail."""

import csv
import io
import json
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.utils import timezone

from catalog.access import SYSTEM, Principal
from catalog.errors import InvalidInput, PermissionDenied, TableNotFound
from catalog.models import AuditEvent
from catalog.privileges import READ_ONLY
from catalog.services.audit import chain as audit_chain
from catalog.services.audit import trail as audit_trail
from catalog.services.audit.trail import Search
from tests.factories import make_table
from tests.sealing import seal_all

pytestmark = pytest.mark.django_db


def make(**facts) -> AuditEvent:
    fields = {
        "actor": "ada",
        "action": "tag.create",
        "target": "ws.t",
        "interface": "lance",
        **facts,
    }
    return AuditEvent.objects.create(**fields)


def event_pks(limit: int = 100, **search) -> list[int]:
    """The events of all pages, newest first."""
    pages, token = [], None
    while True:
        page = audit_trail.list_events(
            actor=SYSTEM, search=Search(**search), limit=limit, page_token=token
        )
        assert len(page.events) <= limit
        pages += [row.pk for row in page.events]
        token = page.next_page_token
        if token is None:
            return pages


def test_each_filter_selects_matching_events():
    transaction_id, table = uuid.uuid4(), uuid.uuid4()
    now = timezone.now()
    rows = {
        "actor": make(actor="bob"),
        "action": make(action="tag.delete"),
        "interface": make(interface="iceberg"),
        "outcome": make(outcome="refused", error="PermissionDenied: no"),
        "key": make(key="laptop"),
        "request_id": make(request_id="req-9"),
        "transaction_id": make(transaction_id=transaction_id),
        "table_uuid": make(table_uuid=table),
        "target": make(target="other.x"),
        "below": make(target="other.x.y"),
        "beside": make(target="other.xy"),
        "since": make(at=now + timedelta(hours=1)),
        "until": make(at=now - timedelta(hours=1)),
    }
    expected = {
        "actor": {"actor": "bob"},
        "action": {"action": "tag.delete"},
        "interface": {"interface": "iceberg"},
        "outcome": {"outcome": "refused"},
        "key": {"key": "laptop"},
        "request_id": {"request_id": "req-9"},
        "transaction_id": {"transaction_id": transaction_id},
        "table_uuid": {"table_uuid": table},
        "since": {"since": now + timedelta(minutes=30)},
        "until": {"until": now - timedelta(minutes=30)},
    }
    for name, search in expected.items():
        assert event_pks(**search) == [rows[name].pk], name
    assert event_pks(target="other.x") == [rows["below"].pk, rows["target"].pk]
    assert event_pks() == sorted((row.pk for row in rows.values()), reverse=True)
    assert event_pks(actor="bob", interface="iceberg") == []
    assert event_pks(actor="nobody") == []


def test_events_of_a_table_include_its_former_names(warehouse):
    table = make_table("ws", "t")
    other = make_table("ws", "u")
    old = make(table_uuid=table.uuid, target="ws.old")
    make(table_uuid=other.uuid)
    assert event_pks(table=("ws", "t"))[0] == old.pk
    assert len(event_pks(table=("ws", "t"))) == 2
    assert event_pks(table=("ws", "no")) == []


def test_pages_are_complete_and_scan_a_bounded_number_of_rows(monkeypatch):
    monkeypatch.setattr(audit_trail, "SEARCHED", 7)
    rows = [make(key="x" if number % 10 == 0 else "") for number in range(40)]
    expected = [row.pk for row in rows[::10]][::-1]
    assert event_pks(key="x") == expected
    assert event_pks(key="x", limit=1) == expected
    assert event_pks(limit=9) == [row.pk for row in rows][::-1]
    first = audit_trail.list_events(actor=SYSTEM, search=Search(key="no such"))
    assert first.events == []
    assert first.next_page_token == str(rows[-1].pk - 6), "nothing here: further back perhaps"


def test_new_events_do_not_shift_pages():
    rows = [make() for _ in range(4)]
    first = audit_trail.list_events(actor=SYSTEM, search=Search(), limit=2)
    make()
    second = audit_trail.list_events(
        actor=SYSTEM, search=Search(), limit=2, page_token=first.next_page_token
    )
    pages = [row.pk for row in first.events + second.events]
    assert pages == [row.pk for row in rows][::-1]


def test_the_cost_of_a_page_does_not_grow_with_the_trail(django_assert_num_queries):
    for _ in range(30):
        make(key="x")
    with django_assert_num_queries(1):
        audit_trail.list_events(actor=SYSTEM, search=Search(), limit=10)
    with django_assert_num_queries(2):
        audit_trail.list_events(actor=SYSTEM, search=Search(key="x"), limit=10)


def test_reading_the_trail_requires_the_privilege(warehouse):
    make_table("ws", "t")
    reader = Principal("ada", READ_ONLY)
    for search in (Search(), Search(table=("ws", "t"))):
        with pytest.raises(PermissionDenied):
            audit_trail.list_events(actor=reader, search=search)
        with pytest.raises(PermissionDenied):
            audit_trail.export(actor=reader, search=search, format="csv")
    with pytest.raises(TableNotFound):
        audit_trail.list_events(actor=reader, search=Search(table=("ws", "no")))
    assert not AuditEvent.objects.filter(action="audit.export").exists()


def test_invalid_requests_are_refused():
    with pytest.raises(InvalidInput, match="NUL"):
        Search(actor="a\x00")
    with pytest.raises(InvalidInput, match="Page token 'x'"):
        audit_trail.list_events(actor=SYSTEM, search=Search(), page_token="x")
    with pytest.raises(InvalidInput, match="Format 'xml' is not known; use csv or jsonl"):
        audit_trail.export(actor=SYSTEM, search=Search(), format="xml")
    assert not AuditEvent.objects.exists()


# --- export --------------------------------------------------------------------------------------


def export(format: str, **search) -> bytes:
    return b"".join(audit_trail.export(actor=SYSTEM, search=Search(**search), format=format))


def test_json_lines_have_every_column(monkeypatch):
    monkeypatch.setattr(audit_trail, "_BATCH", 3)
    at = datetime(2027, 1, 31, 12, 0, 0, 5, tzinfo=UTC)
    row = make(at=at, after={"a": [1, "ü"]}, context={"job": "x"}, table_uuid=uuid.uuid4())
    others = [make() for _ in range(7)]
    lines = [json.loads(line) for line in export("jsonl").splitlines()]
    assert [line["id"] for line in lines] == [row.pk, *(event.pk for event in others)]
    assert lines[0] == {
        "id": row.pk,
        "at": "2027-01-31T12:00:00.000005Z",
        "actor": "ada",
        "action": "tag.create",
        "target": "ws.t",
        "outcome": "done",
        "error": "",
        "interface": "lance",
        "key": "",
        "table_uuid": str(row.table_uuid),
        "before": None,
        "after": {"a": [1, "ü"]},
        "context": {"job": "x"},
        "request_id": "",
        "transaction_id": None,
        "xid": str(AuditEvent.objects.get(pk=row.pk).xid),
    }
    columns = {field.column for field in AuditEvent._meta.concrete_fields}
    assert set(lines[0]) == set(audit_trail.COLUMNS) == columns


def test_an_export_is_audited_but_not_part_of_itself():
    make(actor="bob")
    assert len(export("jsonl", actor="bob").splitlines()) == 1
    event = AuditEvent.objects.get(action="audit.export")
    assert event.after == {"format": "jsonl", "search": {"actor": "bob"}}


@pytest.mark.parametrize(
    "text",
    [
        '=HYPERLINK("http://x","y")',
        "+1+1",
        "-2+3",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "\n=1",
        "＝1",
    ],
)
def test_csv_cells_are_not_formulas(text):
    make(actor=text, target=text, key=text, request_id=text, error=text, after={"=1+1": text})
    header, row = csv.reader(io.StringIO(export("csv").decode(), newline=""))
    assert header == list(audit_trail.COLUMNS)
    cells = dict(zip(header, row, strict=True))
    for name in ("actor", "target", "key", "request_id", "error"):
        assert cells[name] == f"'{text}"
    assert json.loads(cells["after"]) == {"=1+1": text}
    assert not any(cell[:1] in "=+-@\t\r\n" for cell in row if cell)


def test_an_empty_export_has_a_header():
    assert export("csv") == (",".join(audit_trail.COLUMNS) + "\r\n").encode()
    assert export("jsonl", actor="nobody") == b""


def test_a_large_export_is_read_in_batches(monkeypatch):
    monkeypatch.setattr(audit_trail, "_BATCH", 10)
    for number in range(35):
        make(key=str(number % 2))
    pieces = list(audit_trail.export(actor=SYSTEM, search=Search(), format="jsonl"))
    assert [piece.count(b"\n") for piece in pieces] == [10, 10, 10, 5]
    monkeypatch.setattr(audit_trail, "SEARCHED", 6)
    assert export("jsonl", key="1").count(b"\n") == 17


# --- the commands --------------------------------------------------------------------------------


def test_the_command_writes_a_new_file(tmp_path, capfdbinary):
    make(actor="bob")
    make()
    path = tmp_path / "audit.csv"
    call_command("audit_export", "--format=csv", f"--output={path}", "--actor=bob")
    assert path.read_bytes().count(b"\r\n") == 2
    with pytest.raises(CommandError, match="already exists"):
        call_command("audit_export", f"--output={path}")
    call_command("audit_export", "--until", "2020-01-01")
    assert capfdbinary.readouterr().out == b""
    with pytest.raises(CommandError, match="is not a time"):
        call_command("audit_export", "--since", "yesterday")


@pytest.mark.django_db(transaction=True)
def test_the_verify_command(capsys):
    row = make(table_uuid=uuid.uuid4())
    seal_all()
    call_command("audit_verify", "--seal")
    out = capsys.readouterr().out
    assert "1 seals, of which 0 are of events removed by retention" in out
    assert "The audit trail matches its seals" in out
    newest = out.partition("newest seal: ")[2].split()[0]
    number, _, digest = newest.partition(":")
    assert (number, digest) == ("1", audit_chain.newest_seal().hash.hex())
    call_command("audit_verify", f"--expect={newest}", f"--table={row.table_uuid}")
    capsys.readouterr()
    with pytest.raises(CommandError, match="1 findings") as refused:
        call_command("audit_verify", f"--expect=2:{digest}")
    assert refused.value.returncode == 1
    assert "broken: Seal 2 is missing" in capsys.readouterr().out
    with pytest.raises(CommandError, match="give the number and the hash"):
        call_command("audit_verify", "--expect=nothing")
    with pytest.raises(CommandError, match=r"Table 'ws\.no' does not exist"):
        call_command("audit_verify", "--table=ws.no")
    make(xid=3)
    with pytest.raises(CommandError, match="does not match its seals"):
        call_command("audit_verify")
    assert "inserted: Event" in capsys.readouterr().out
