"""Creating Iceberg tables in a namespace that this process has cached: two statements, and no read."""

from pathlib import Path

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from catalog.access import SYSTEM
from catalog.errors import (
    CatalogError,
    InvalidMetadata,
    NamespaceNotFound,
    ServiceUnavailable,
    TableAlreadyExists,
)
from catalog.identifiers import digest
from catalog.models import Namespace, StagedFile, StorageProfile, Table
from catalog.services.engine import table_cache
from catalog.services.iceberg import commits, metadata_files
from catalog.services.iceberg.tables import LoadedTable, load_table
from tests.factories import ICEBERG_SCHEMA, files, make_namespace, unchanged

pytestmark = [pytest.mark.django_db]


@pytest.fixture(autouse=True)
def cached(warehouse: Path) -> Path:
    """Create a table in a namespace, which is then cached. Returns the warehouse."""
    make_namespace("ns", "below")
    create("first")
    assert table_cache.unplaced_namespaces.cached(digest(("ns", "below"))) is not None
    return warehouse


def create(name: str, **options: object) -> LoadedTable:
    table = ("ns", "below", name)
    return commits.create_table(actor=SYSTEM, table=table, **{"schema": ICEBERG_SCHEMA, **options})  # type: ignore[arg-type]


def refused(error: type[CatalogError], warehouse: Path, name: str, **options: object) -> None:
    before = files(warehouse)
    with unchanged(), pytest.raises(error) as caught:
        create(name, **options)
    assert files(warehouse) == before
    assert caught.type is error


def test_a_table_takes_two_statements(cached: Path):
    with CaptureQueriesContext(connection) as captured:
        created = create("t")
    # The second is in a savepoint, because the test has a transaction.
    assert len([query for query in captured if "SAVEPOINT" not in query["sql"]]) == 2
    assert load_table(actor=SYSTEM, table=("ns", "below", "t")) == created
    assert Path(created.location).parent == cached
    assert not StagedFile.objects.exists()


@pytest.mark.parametrize("name", ["ns", "below"])
@pytest.mark.parametrize("is_profile", [False, True])
def test_a_location_that_was_chosen_later_applies(cached: Path, name: str, is_profile: bool):
    row = Namespace.objects.get(name=name)
    directory = cached / "chosen"
    if is_profile:
        row.storage_profile = StorageProfile.objects.create(
            name="local", kind="s3", roots=[str(directory)], region="", endpoint=""
        )
    else:
        row.location, row.properties = str(directory), {"location": f"file://{directory}"}
    row.save()
    assert create("t").location.startswith(f"{directory}/")
    assert not StagedFile.objects.exists()


def test_a_dropped_namespace(cached: Path):
    Namespace.objects.filter(name="below").update(dropped_at="2026-01-01T00:00:00Z")
    refused(NamespaceNotFound, cached, "t")
    new = make_namespace("ns", "below")
    assert Table.objects.get(pk=create("t").pk).namespace == new


def test_the_row_of_another_namespace(cached: Path):
    Namespace.objects.filter(name="below").update(digest=digest(("other",)))
    refused(NamespaceNotFound, cached, "t")


def test_a_taken_name(cached: Path):
    refused(TableAlreadyExists, cached, "first")
    # The name is refused before the schema, as without the cache.
    create("second")
    assert table_cache.unplaced_namespaces.cached(digest(("ns", "below"))) is not None
    refused(TableAlreadyExists, cached, "first", schema={})


def test_an_invalid_schema(cached: Path):
    refused(InvalidMetadata, cached, "t", schema={})


def test_a_record_whose_answer_was_lost(cached: Path, monkeypatch):
    """Its repetition finds the record, so the table is created with another file."""
    outcomes = []

    def repeated(stage):
        outcomes.append([stage(), stage()])
        return outcomes[-1][-1]

    monkeypatch.setattr(metadata_files.outcomes, "repeated", repeated)
    created = create("t")
    assert outcomes[0] == [True, False]
    assert load_table(actor=SYSTEM, table=("ns", "below", "t")) == created
    (abandoned,) = StagedFile.objects.all()
    assert not Path(abandoned.path).exists()


def test_a_commit_that_fails_leaves_nothing(cached: Path, monkeypatch):
    def fail(*arguments: object, **options: object) -> None:
        assert StagedFile.objects.exists()
        raise ServiceUnavailable("no")

    monkeypatch.setattr(commits, "commit", fail)
    refused(ServiceUnavailable, cached, "t")
    assert not StagedFile.objects.exists()
