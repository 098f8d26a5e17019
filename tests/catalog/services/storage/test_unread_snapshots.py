"""Which unread snapshots may name files of a table, so that they are read before its files are removed."""

from datetime import timedelta
from pathlib import Path

import pytest
from django.db.models.functions import Now

from catalog.errors import ServiceUnavailable
from catalog.models import Grant, Principal, PrincipalKind, Table, UnreadSnapshot
from catalog.privileges import Privilege, closure
from catalog.services.storage import recorded_references
from tests.factories import make_iceberg_table, make_root

pytestmark = pytest.mark.django_db
LONG_AGO, LATER = timedelta(hours=-1), timedelta(hours=1)


@pytest.fixture(params=["warehouse", "another root"])
def table(request, warehouse: Path, tmp_path: Path, settings) -> Table:
    """A table that the principal "reader" may read."""
    make_root()
    location = None
    if request.param == "another root":
        (tmp_path / "lake").mkdir()
        settings.MONODON_ALLOWED_ROOTS = [str(tmp_path / "lake")]
        location = f"file://{tmp_path}/lake/t"
    row = Table.objects.get(pk=make_iceberg_table("ns", "t", location=location).pk)
    for name in ("reader", "stranger"):
        Principal.objects.create(name=name, kind=PrincipalKind.SERVICE)
    Grant.objects.create(
        principal=Principal.objects.get(name="reader"),
        table=row,
        mask=closure(Privilege.READ).value,
    )
    return row


def note(table: Table, number: int, principal: str, when: timedelta) -> int:
    row = UnreadSnapshot.objects.create(
        table=table, snapshot_id=number, is_whole=False, principal=principal
    )
    UnreadSnapshot.objects.filter(pk=row.pk).update(created_at=Now() + when)
    return number


def test_snapshots_of_readers_and_those_from_before_the_table(table, tmp_path):
    other = Table.objects.get(pk=make_iceberg_table("ns", "other").pk)
    readers = {note(other, 1, "reader", LONG_AGO), note(other, 2, "reader", LATER)}
    earlier = {note(other, 3, "stranger", LONG_AGO), note(other, 4, "former", LONG_AGO)}
    note(other, 5, "stranger", LATER)
    note(table, 6, "reader", LATER)  # its own
    was_readable = table.location == f"{tmp_path}/lake/t"
    leading = recorded_references.unread_leading_to(table)
    assert {row.snapshot_id for row in leading} == (readers | earlier if was_readable else readers)
    with pytest.raises(ServiceUnavailable) as refused:
        recorded_references.require_none_unread(table)
    assert refused.value.message == (
        "Snapshots that may refer to files of 'ns.t' are still being read, so no files are removed yet"
    )
    UnreadSnapshot.objects.filter(snapshot_id__in=readers | earlier).delete()
    recorded_references.require_none_unread(table)


def test_without_unread_snapshots_of_other_tables_nothing_else_is_read(
    table, django_assert_num_queries
):
    note(table, 6, "reader", LATER)
    with django_assert_num_queries(1):
        leading = recorded_references.unread_leading_to(table)
    assert not leading.exists()
