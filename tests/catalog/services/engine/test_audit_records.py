"""Audit rows: their content, their immutability, and the masking of secrets."""

import json
from datetime import UTC, datetime

import pytest
from django.db import ProgrammingError, connection, transaction

from catalog.access import SYSTEM
from catalog.models import AuditEvent
from catalog.services.engine import audit_records
from tests.factories import make_namespace, make_table

CANARY = "c4n4ry-7f3a"


def test_a_row_records_interface_key_outcome_and_transaction_id(db):
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
def test_the_database_refuses_updates_and_deletes_of_audit_rows(db, statement, replica):
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


def test_the_orm_refuses_updates_and_deletes_of_audit_rows(db):
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
def test_values_with_secret_names_are_masked(name):
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
def test_other_values_are_not_masked(facts):
    assert audit_records.masked(facts) == facts


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("https://user:c4n4ry@host/x", "https://***@host/x"),
        ("s3://b/x?X-Amz-Signature=c4n4ry&part=1", "s3://b/x?X-Amz-Signature=***&part=1"),
        ("https://h/x?part=1&sig=c4n4ry", "https://h/x?part=1&sig=***"),
        ("https://h/x?access_token=c4n4ry#a", "https://h/x?access_token=***#a"),
    ],
)
def test_secrets_in_a_url_are_masked(url, masked):
    assert audit_records.masked({"location": url}) == {"location": masked}


def test_no_row_contains_unmasked_properties(db, warehouse):
    """Properties of a namespace and a table, with the transaction's description."""
    properties = {"s3.secret-access-key": CANARY, "password": CANARY, "owner": "ada"}
    make_namespace("ws", properties=properties)
    make_table("ws", "t", properties=properties)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT coalesce(string_agg(e::text, ''), '') FROM catalog_auditevent e"
            " UNION ALL SELECT coalesce(string_agg(t::text, ''), '') FROM catalog_transaction t"
        )
        texts = [text for (text,) in cursor.fetchall()]
    assert len(texts) == 2
    for text in texts:
        assert "s3.secret-access-key" in text
        assert audit_records.MASK in text
        assert CANARY not in text
    row = AuditEvent.objects.get(action="namespace.create", target="ws")
    assert row.after["properties"]["owner"] == "ada"
    assert json.dumps(row.after).count(audit_records.MASK) == 2
