"""Audit rows: what they tell, that they stay as they are, and that no secret gets into them."""

import json
from datetime import UTC, datetime

import pytest
from django.db import ProgrammingError, connection, transaction

from catalog.access import SYSTEM
from catalog.models import AuditEvent
from catalog.services.engine import audit_records
from tests.factories import make_namespace, make_table

CANARY = "c4n4ry-7f3a"


def test_a_row_tells_door_key_outcome_and_the_databases_transaction(db):
    with transaction.atomic(), connection.cursor() as cursor:
        audit_records.record(SYSTEM, "tag.create", "ws.t")
        cursor.execute("SELECT pg_current_xact_id()::text::bigint")
        (xid,) = cursor.fetchone()
    row = AuditEvent.objects.get(action="tag.create")
    assert (row.xid, row.outcome, row.error, row.interface, row.key) == (
        xid,
        "done",
        "",
        "system",
        "",
    )
    assert AuditEvent.objects.filter(xid__lte=xid).contains(row)
    assert AuditEvent.objects.filter(xid=xid).contains(row)
    assert not AuditEvent.objects.filter(xid__lt=row.xid, pk=row.pk).exists()


def run(statements: str) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statements)


@pytest.mark.parametrize("statement", ["UPDATE {} SET actor = 'm'", "DELETE FROM {}"])
@pytest.mark.parametrize("replica", [False, True])
def test_rows_cannot_be_altered_or_deleted_by_anybody(db, statement, replica):
    audit_records.record(SYSTEM, "tag.create", "ws.t")
    with connection.cursor() as cursor:
        cursor.execute("SELECT tableoid::regclass::text FROM catalog_auditevent")
        (partition,) = cursor.fetchone()
    assert partition == f"catalog_auditevent_{datetime.now(UTC):%Y_%m}"
    for table in ("catalog_auditevent", partition):
        first = "SET LOCAL session_replication_role = replica;" if replica else ""
        with pytest.raises(ProgrammingError, match="The audit trail is append-only"):
            run(first + statement.format(table))
    assert AuditEvent.objects.get(action="tag.create").actor == "system"


def test_the_orm_cannot_either(db):
    audit_records.record(SYSTEM, "tag.create", "ws.t")
    row = AuditEvent.objects.get(action="tag.create")
    row.actor = "mallory"
    with pytest.raises(ProgrammingError), transaction.atomic():
        row.save()
    with pytest.raises(ProgrammingError), transaction.atomic():
        row.delete()
    assert AuditEvent.objects.get(pk=row.pk).actor == "system"


# --- secrets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "s3.secret-access-key",
        "s3.access-key-id",
        "s3.session-token",
        "token",
        "password",
        "jdbc.password",
        "adls.sas-token.account",
        "adls.account-key.x",
        "gcs.oauth2.token",
        "credential",
        "header.Authorization",
        "x-api-key",
        "apiKey",
        "secretAccessKey",
        "AWS_SECRET_ACCESS_KEY",
        "my_hidden_secretvalue",
        "private-key",
        "cookie",
        "x" * 300 + "-token",
    ],
)
def test_what_is_called_like_a_secret_is_masked(name):
    assert audit_records.masked({name: CANARY, "kept": "yes"}) == {
        name: audit_records.MASK,
        "kept": "yes",
    }
    assert audit_records.masked({"in": [{name: {"value": CANARY}}]}) == {
        "in": [{name: audit_records.MASK}]
    }


@pytest.mark.parametrize(
    "facts",
    [
        {"primary-key": "id", "partition_key": "day", "key": "a", "base_tokenizer": "simple"},
        {"has_token": True, "token": None, "version": 8, "nested": {"rows": [1, 2.5, "a"]}},
        {"location": "s3://bucket/a@b/c", "manifest_path": "_versions/8.manifest"},
        {"write.format.default": "parquet"},
        {},
        None,
    ],
)
def test_what_is_no_secret_stays(facts):
    assert audit_records.masked(facts) == facts


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:c4n4ry@host/x", "https://***@host/x"),
        ("s3://b/x?X-Amz-Signature=c4n4ry&part=1", "s3://b/x?X-Amz-Signature=***&part=1"),
        ("https://h/x?part=1&sig=c4n4ry", "https://h/x?part=1&sig=***"),
        ("https://h/x?access_token=c4n4ry#a", "https://h/x?access_token=***#a"),
    ],
)
def test_secrets_in_a_url_are_masked(url, shown):
    assert audit_records.masked({"location": url}) == {"location": shown}


def test_properties_reach_no_row_unmasked(db, warehouse):
    """Of a namespace and a table, with what the transaction tells of itself."""
    properties = {"s3.secret-access-key": CANARY, "password": CANARY, "owner": "ada"}
    make_namespace("ws", properties=properties)
    make_table("ws", "t", properties=properties)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT coalesce(string_agg(e::text, ''), '') FROM catalog_auditevent e"
            " UNION ALL SELECT coalesce(string_agg(t::text, ''), '') FROM catalog_transaction t"
        )
        told = [text for (text,) in cursor.fetchall()]
    assert len(told) == 2
    for text in told:
        assert "s3.secret-access-key" in text
        assert audit_records.MASK in text
        assert CANARY not in text
    row = AuditEvent.objects.get(action="namespace.create", target="ws")
    assert row.after["properties"]["owner"] == "ada"
    assert json.dumps(row.after).count(audit_records.MASK) == 2
