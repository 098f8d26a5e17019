"""Finding tables in storage, and registering them."""

import json
import shutil
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from catalog.access import SYSTEM, Principal
from catalog.errors import InvalidLocation, PermissionDenied
from catalog.models import Namespace, Table, TableFormat, TableState
from catalog.privileges import Privilege, closure
from catalog.services.discovery import plans, registration
from catalog.services.discovery.plans import CandidateStatus
from catalog.services.discovery.registration import Entry, Outcome
from catalog.services.iceberg import tables as iceberg_tables
from catalog.storage import locations
from tests.cases import shared_cases
from tests.factories import make_iceberg_table, make_namespace, make_root, make_table, unchanged

pytestmark = pytest.mark.django_db
LANCE, ICEBERG = TableFormat.LANCE, TableFormat.ICEBERG


@pytest.fixture
def root(db, settings, tmp_path) -> Path:
    """A warehouse with a directory ``lake`` in which other catalogs have left tables."""
    warehouse = tmp_path / "warehouse"
    settings.MONODON_WAREHOUSE = str(warehouse)
    settings.MONODON_ALLOWED_ROOTS = []
    (warehouse / "lake").mkdir(parents=True)
    make_root()
    return warehouse / "lake"


def write_lance(directory: Path) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    lance.write_dataset(pa.table({"id": [1, 2]}), str(directory))


def write_iceberg(directory: Path) -> Path:
    """An Iceberg table that no catalog has; returns its newest metadata file."""
    made = make_iceberg_table("scratch", directory.name)
    source = Path(locations.iceberg_path(made.metadata_location))
    document = json.loads(source.read_bytes())
    document["location"] = f"file://{directory}"
    (directory / "metadata").mkdir(parents=True)
    for number in (0, 1, 10, 9):
        file = directory / "metadata" / f"{number:05}-{document['table-uuid']}.metadata.json"
        file.write_text(json.dumps(document))
    iceberg_tables.drop_table(actor=SYSTEM, table=("scratch", directory.name))
    return directory / "metadata" / f"00010-{document['table-uuid']}.metadata.json"


def find_candidates(root: Path, **options) -> dict[tuple[str, ...], plans.Candidate]:
    plan = plans.plan(actor=SYSTEM, location=str(root), namespace=(), **options)
    assert plan.is_complete
    return {candidate.table: candidate for candidate in plan.candidates}


def entries(candidates) -> list[Entry]:
    return [
        Entry(c.format, c.table, c.metadata_location or c.location) for c in candidates.values()
    ]


def test_tables_of_both_formats_are_found_with_names_of_their_directories(root):
    write_lance(root / "users.lance")
    write_lance(root / "ml.db" / "features" / f"embeddings-{'0123456789abcdef' * 2}")
    newest = write_iceberg(root / "sales" / "orders")
    (root / "empty" / "metadata").mkdir(parents=True)
    (root / "plain").mkdir()
    (root / "plain" / "data.parquet").write_bytes(b"PAR1")
    with unchanged():
        candidates = find_candidates(root)
    assert {name: c.format for name, c in candidates.items()} == {
        ("users",): LANCE,
        ("ml", "features", "embeddings"): LANCE,
        ("sales", "orders"): ICEBERG,
    }
    assert candidates["sales", "orders"].metadata_location == f"file://{newest}"
    assert {c.status for c in candidates.values()} == {CandidateStatus.NEW}


def test_only_the_requested_format_is_find_candidates(root):
    write_lance(root / "users")
    write_iceberg(root / "sales" / "orders")
    assert set(find_candidates(root, formats=frozenset({ICEBERG}))) == {("sales", "orders")}


def test_a_plan_is_registered_and_can_be_repeated(root):
    write_lance(root / "ml" / "users")
    write_iceberg(root / "sales" / "orders")
    planned = entries(find_candidates(root))
    results = list(registration.register(actor=SYSTEM, entries=planned))
    assert {result.outcome for result in results} == {Outcome.REGISTERED}
    rows = {row.identifier: row for row in Table.objects.present().select_related("namespace")}
    assert rows["ml", "users"].state == rows["sales", "orders"].state == TableState.LIVE
    assert rows["ml", "users"].location == str(root / "ml" / "users")
    with unchanged():
        again = list(registration.register(actor=SYSTEM, entries=planned))
    assert {result.outcome for result in again} == {Outcome.PRESENT}
    assert {c.status for c in find_candidates(root).values()} == {CandidateStatus.REGISTERED}


def test_taken_names_are_planned_as_taken_and_refused(root):
    make_table("ml", "users")
    make_namespace("twice")
    write_lance(root / "ml" / "users")
    write_lance(root / "twice" / "t.lance")
    write_lance(root / "twice" / "t")
    candidates = plans.plan(actor=SYSTEM, location=str(root), namespace=()).candidates
    statuses = {Path(c.location).name: c.status for c in candidates}
    assert statuses == {
        "users": CandidateStatus.NAME_TAKEN,
        "t": CandidateStatus.NEW,
        "t.lance": CandidateStatus.NAME_TAKEN,
    }
    with unchanged():
        taken = [Entry(LANCE, ("ml", "users"), str(root / "ml" / "users"))]
        (result,) = registration.register(actor=SYSTEM, entries=taken)
    assert result.outcome is Outcome.REFUSED
    assert "exists already" in result.message


def test_a_refused_table_does_not_keep_the_others_out(root):
    write_lance(root / "a")
    write_lance(root / "c")
    requested = [
        Entry(LANCE, ("ns", "a"), str(root / "a")),
        Entry(ICEBERG, ("ns", "b"), f"file://{root}/b/metadata/00000-x.metadata.json"),
        Entry(LANCE, ("c",), str(root / "c")),
        Entry(LANCE, ("ns", "c"), str(root / "c")),
    ]
    outcomes = [r.outcome for r in registration.register(actor=SYSTEM, entries=requested)]
    assert outcomes == [
        Outcome.REGISTERED,
        Outcome.REFUSED,
        Outcome.REFUSED,
        Outcome.REGISTERED,
    ]
    assert set(Table.objects.values_list("name", flat=True)) == {"a", "c"}
    assert Namespace.objects.named(("ns",)).exists()


EDITS: dict[str, Entry] = {
    "a location outside": Entry(LANCE, ("new", "deep", "t"), "/etc"),
    "another store": Entry(LANCE, ("new", "t"), "s3://elsewhere/t"),
    "climbing": Entry(LANCE, ("new", "t"), "a/../../../etc"),
    "metadata outside": Entry(ICEBERG, ("new", "t"), "file:///etc/passwd"),
    "missing metadata": Entry(
        ICEBERG, ("new", "deep", "t"), "file:///nothing/metadata/1.metadata.json"
    ),
    "an empty name": Entry(LANCE, ("new", "", "t"), "a"),
    "a control character": Entry(LANCE, ("new", "t\n"), "a"),
    "a route": Entry(LANCE, ("new", "t/version"), "a"),
    "no namespace": Entry(LANCE, ("t",), "a"),
    "a missing directory": Entry(LANCE, ("new", "deep", "t"), "nothing"),
    "a directory without versions": Entry(LANCE, ("new", "t"), "lake/a/data"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_refused_entry_changes_nothing(root, edit):
    """Not even the namespaces above the table are created."""
    write_lance(root / "a")
    with unchanged():
        (result,) = registration.register(actor=SYSTEM, entries=[EDITS[edit]])
        assert result.outcome is Outcome.REFUSED


@shared_cases(
    "location",
    ["/", "/etc", "/etc/passwd", "s3://lake/tables", "file:///etc", "../lake", "ftp://x/y", ""],
)
def test_locations_outside_the_roots_are_refused(root, location):
    with unchanged(), pytest.raises(InvalidLocation):
        plans.plan(actor=SYSTEM, location=location, namespace=())


def test_links_are_not_followed(root, tmp_path):
    outside = tmp_path / "outside"
    write_lance(outside / "secret")
    (root / "link").symlink_to(outside)
    assert find_candidates(root) == {}
    shutil.rmtree(outside)


def test_listing_and_registering_require_manage_on_the_whole_catalog(root):
    write_lance(root / "users")
    actor = Principal("analyst", closure(Privilege.CREATE))
    with unchanged(), pytest.raises(PermissionDenied):
        plans.plan(actor=actor, location=str(root), namespace=())
    with unchanged(), pytest.raises(PermissionDenied):
        list(
            registration.register(
                actor=actor, entries=[Entry(LANCE, ("ns", "users"), str(root / "users"))]
            )
        )


def test_a_plan_has_a_limit(root, monkeypatch):
    for number in range(3):
        write_lance(root / f"t{number}")
    monkeypatch.setattr(plans, "MAX_TABLES", 2)
    plan = plans.plan(actor=SYSTEM, location=str(root), namespace=())
    assert (len(plan.candidates), plan.is_complete) == (2, False)
    monkeypatch.setattr(plans, "_MAX_DIRECTORIES", 2)
    assert not plans.plan(actor=SYSTEM, location=str(root), namespace=()).is_complete
