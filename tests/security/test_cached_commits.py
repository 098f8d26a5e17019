"""Commits that are prepared on a table that this process has cached need the privileges of the present table."""

import pytest

from catalog.access import SYSTEM
from catalog.identifiers import digest
from catalog.models import Grant, StagedFile
from catalog.privileges import Privilege, closure
from catalog.services.engine import table_cache
from catalog.services.iceberg import metadata_files
from catalog.services.iceberg import tables as iceberg_tables
from tests.api.iceberg.client import Iceberg
from tests.factories import files, make_iceberg_table, snapshot
from tests.security.foreign import COMMIT, MINE, World, row

pytestmark = pytest.mark.django_db


def _commit(client: Iceberg) -> int:
    updates = [{"action": "set-properties", "updates": {"a": str(len(files(row().location)))}}]
    status: int = client.call("POST", COMMIT, {"requirements": [], "updates": updates}).status_code
    return status


@pytest.fixture
def cached(world: World, attacker: Iceberg, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The table is cached; returns whether the commits since were staged on it."""
    staged: list[bool] = []
    stage_on = metadata_files.stage_on

    def counted(*values: object) -> bool:
        staged.append(stage_on(*values))  # type: ignore[arg-type]
        return staged[-1]

    monkeypatch.setattr(metadata_files, "stage_on", counted)
    for _ in range(2):
        assert _commit(attacker) == 200
    staged.clear()
    assert _commit(attacker) == 200
    assert staged == [True]
    staged.clear()
    return staged


def test_a_principal_without_privileges_commits_nothing_on_a_cached_table(cached, attacker):
    Grant.objects.all().delete()
    before, stored = snapshot(), files(row().location)
    assert _commit(attacker) == 404
    assert (snapshot(), files(row().location), cached) == (before, stored, [])


def test_a_reader_commits_nothing_on_a_cached_table(cached, attacker):
    Grant.objects.update(mask=closure(Privilege.READ).value)
    before, stored = snapshot(), files(row().location)
    assert _commit(attacker) == 403
    assert (snapshot(), files(row().location), cached) == (before, stored, [])


def test_a_privilege_revoked_after_the_file_is_staged_commits_nothing(
    cached, attacker, monkeypatch
):
    stage_on = metadata_files.stage_on

    def revoked(*values: object) -> bool:
        staged = stage_on(*values)  # type: ignore[arg-type]
        Grant.objects.all().delete()
        return staged

    monkeypatch.setattr(metadata_files, "stage_on", revoked)
    stored = files(row().location)
    assert _commit(attacker) == 404
    assert cached == [True]
    assert files(row().location) == stored
    assert not StagedFile.objects.exists()


def test_a_cached_table_is_not_that_of_a_new_table_with_its_name(cached, attacker):
    iceberg_tables.unregister_table(actor=SYSTEM, table=MINE)
    cached_table = table_cache.documents.get(digest(MINE))
    make_iceberg_table(*MINE)
    table_cache.documents.put(digest(MINE), cached_table)  # as in another process
    assert _commit(attacker) == 200
    assert cached == [False]
    metadata = attacker.get(COMMIT)["metadata"]
    assert metadata["location"].endswith(row().location)
    assert len(metadata["metadata-log"]) == 1
