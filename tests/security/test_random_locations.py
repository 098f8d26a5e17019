"""Random lives of tables of two tenants at a few places: no file becomes another tenant's, and none is lost."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.http import HttpResponse

from catalog import access
from catalog.access import SYSTEM, Principal
from catalog.errors import CatalogError
from catalog.models import (
    Grant,
    Job,
    JobKind,
    JobStatus,
    Namespace,
    PrincipalLevel,
    RemainingFiles,
    Table,
    TableState,
    TrashItem,
)
from catalog.privileges import Privilege
from catalog.services.access import api_keys
from catalog.services.maintenance import job_runner
from catalog.services.recovery import remaining_files
from catalog.services.recovery import undrop as recovery_undrop
from catalog.services.storage.file_owners import Belonging
from catalog.services.storage.table_files import TableFiles
from catalog.storage.locations import is_below
from tests.api.client import Lance
from tests.api.iceberg.client import Iceberg
from tests.factories import ICEBERG_SCHEMA, make_namespace, make_root

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
PLACES = ("a", "a/b", "a/b/c", "a/d", "e", "e/f")
TENANTS = ("ann", "bob")
_STEPS = 120
PATHS = ("write.data.path", "write.metadata.path")


class World:
    """Two tenants with all privileges in a namespace of their own, and none elsewhere."""

    def __init__(self, warehouse: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.warehouse = warehouse
        self.log: list[str] = []
        self.outcomes: Counter[str] = Counter()
        """Of the operations: the status of the answer, or the class of the error."""
        self.purges: Counter[str] = Counter()
        self.number = 0
        make_root()
        self.keys: dict[str, str] = {}
        for name in TENANTS:
            namespace = make_namespace(name)
            key, text = api_keys.create_api_key(
                actor=SYSTEM, name=name, level=PrincipalLevel.GRANTED
            )
            Grant.objects.create(
                principal=key.principal, mask=Privilege.ALL.value, namespace=namespace
            )
            self.keys[name] = text
        self.markers: dict[str, int] = {}
        """Files that tenants wrote into directories of their tables, with these."""

    def step(self) -> None:
        name = self.random.choice(TENANTS)
        operations: list[Callable[[str], Any]] = [
            *[self.create_iceberg] * 4,
            *[self.create_lance] * 3,
            *[self.set_path] * 3,
            *[self.move] * 2,
            *[self.drop] * 5,
            *[self.stop] * 1,
            *[self.purge_now] * 2,
            *[self.run_purge] * 3,
            *[self.undrop] * 4,
            *[self.create_namespace] * 1,
            *[self.drop_namespace] * 1,
            *[self.clean] * 2,
            *[self.review] * 2,
        ]
        operation = self.random.choice(operations)
        try:
            answer = operation(name)
            outcome = answer.status_code if isinstance(answer, HttpResponse) else "done"
            if isinstance(answer, HttpResponse) and answer.status_code >= 500:
                raise AssertionError(answer.content)
        except CatalogError as error:
            outcome = type(error).__name__
        self.log[-1] += f" → {outcome}"
        self.outcomes[str(outcome)] += 1
        self.mark()

    def note(self, *words: object) -> None:
        self.log.append(" ".join(map(str, words)))

    def place(self) -> str:
        return self.random.choice(PLACES)

    def uri(self, place: str) -> str:
        return f"file://{self.warehouse}/{place}"

    def own(self, name: str, **fields: Any) -> Table | None:
        """A present table of a tenant."""
        rows = Table.objects.present().filter(namespace__path__0=name, kind="table", **fields)
        return self.random.choice(list(rows.order_by("pk"))) if rows else None

    def item(self, name: str) -> TrashItem | None:
        rows = list(TrashItem.objects.filter(table__namespace__path__0=name).order_by("pk"))
        return self.random.choice(rows) if rows else None

    def principal(self, name: str) -> Principal:
        principal = access.named(name)
        assert principal is not None
        return principal

    # -- operations

    def create_iceberg(self, name: str) -> Any:
        self.number += 1
        place, properties = self.place(), {}
        if self.random.random() < 0.5:
            properties = {self.random.choice(PATHS): self.uri(self.place())}
        self.note(name, "creates iceberg", f"t{self.number}", "at", place, properties)
        body = {
            "name": f"t{self.number}",
            "schema": ICEBERG_SCHEMA,
            "location": self.uri(place),
            "properties": properties,
        }
        return Iceberg(self.keys[name]).call("POST", f"namespaces/{name}/tables", body)

    def create_lance(self, name: str) -> Any:
        self.number += 1
        place = self.place()
        self.note(name, "declares lance", f"t{self.number}", "at", place)
        body = {"location": f"{self.warehouse}/{place}"}
        path = f"/v1/table/{name}$t{self.number}/declare"
        return Lance(self.keys[name]).call("POST", path, body)

    def set_path(self, name: str) -> Any:
        row, place, path = self.own(name, format="iceberg"), self.place(), self.random.choice(PATHS)
        self.note(name, "sets", path, "of", row, "to", place)
        update = {"action": "set-properties", "updates": {path: self.uri(place)}}
        return self.update(name, row, update)

    def move(self, name: str) -> Any:
        row, place = self.own(name, format="iceberg"), self.place()
        self.note(name, "moves", row, "to", place)
        return self.update(name, row, {"action": "set-location", "location": self.uri(place)})

    def update(self, name: str, row: Table | None, update: dict[str, Any]) -> Any:
        if row is None:
            return None
        path = f"namespaces/{name}/tables/{row.name}"
        return Iceberg(self.keys[name]).call(
            "POST", path, {"requirements": [], "updates": [update]}
        )

    def drop(self, name: str) -> Any:
        row, purge = self.own(name), self.random.random() < 0.6
        self.note(name, "drops", row, "with purge" if purge else "and keeps the files")
        if row is None:
            return None
        if row.format == "iceberg":
            path = f"namespaces/{name}/tables/{row.name}"
            return Iceberg(self.keys[name]).call("DELETE", f"{path}?purgeRequested={purge}".lower())
        operation = "drop" if purge else "deregister"
        path = f"/v1/table/{name}${row.name}/{operation}"
        return Lance(self.keys[name]).call("POST", path, {})

    def stop(self, name: str) -> None:
        item = self.item(name)
        self.note(name, "stops the purge of", item)
        if item is not None:
            recovery_undrop.stop_purge(actor=self.principal(name), item=item.pk)

    def purge_now(self, name: str) -> None:
        item = self.item(name)
        self.note(name, "purges", item)
        if item is not None:
            recovery_undrop.purge_now(actor=self.principal(name), item=item.pk)

    def run_purge(self, name: str) -> None:
        purges = Job.objects.filter(kind=JobKind.PURGE_TABLE, status=JobStatus.QUEUED)
        jobs = list(purges.select_related("table__namespace").order_by("pk"))
        job = self.random.choice(jobs) if jobs else None
        self.note("the purge runs of", job and job.table)
        if job is None:
            return
        name = job.table.namespace.path[0]
        purges.filter(pk=job.pk).update(lease_until=None)
        tree = {str(path) for path in self.warehouse.rglob("*.marker")}
        job_runner.run_job(job.pk)
        job.refresh_from_db()
        self.log[-1] += f" {job.status} {job.error}"
        self.purges[job.status] += 1
        assert job.status in {JobStatus.SUCCEEDED, JobStatus.CANCELED, JobStatus.QUEUED}, job.error
        for lost in tree - {str(path) for path in self.warehouse.rglob("*.marker")}:
            pk = self.markers.pop(lost)
            assert self.tenant_of(pk) == name, f"{lost} of {pk} was removed with {job.table_id}"
        if job.status == JobStatus.SUCCEEDED:
            TrashItem.objects.filter(table=job.table_id).delete()

    def undrop(self, name: str) -> None:
        item = self.item(name)
        self.note(name, "restores", item)
        if item is not None:
            self.number += 1
            new = (name, f"t{self.number}")
            recovery_undrop.undrop(actor=self.principal(name), item=item.pk, new=new)

    def create_namespace(self, name: str) -> Any:
        self.number += 1
        place = self.place()
        self.note(name, "creates namespace", f"n{self.number}", "at", place)
        body = {
            "namespace": [name, f"n{self.number}"],
            "properties": {"location": self.uri(place)},
        }
        return Iceberg(self.keys[name]).call("POST", "namespaces", body)

    def drop_namespace(self, name: str) -> Any:
        rows = list(Namespace.objects.live().filter(parent__name=name).order_by("pk"))
        row = self.random.choice(rows) if rows else None
        self.note(name, "drops namespace", row)
        if row is None:
            return None
        answer = Iceberg(self.keys[name]).call("DELETE", f"namespaces/{name}%1F{row.name}")
        TrashItem.objects.filter(namespace=row).delete()
        return answer

    def clean(self, name: str) -> None:
        remaining = RemainingFiles.objects.filter(table__namespace__path__0=name)
        rows = list(remaining.select_related("table__namespace").order_by("pk"))
        row = self.random.choice(rows) if rows else None
        self.note(name, "removes the", row)
        if row is None:
            return
        for path in [path for path, pk in self.markers.items() if pk == row.table_id]:
            Path(path).unlink()
            del self.markers[path]

    def review(self, name: str) -> None:
        self.note("remaining files are reviewed")
        RemainingFiles.objects.update(checked_at=None)
        remaining_files.review(5)

    # -- what must hold

    def tenant_of(self, pk: int) -> str:
        return str(Table.objects.select_related("namespace").get(pk=pk).namespace.path[0])

    def mark(self) -> None:
        """Each tenant writes a file into each directory of its present tables."""
        for row in Table.objects.present().filter(kind="table"):
            for directory in (row.location, *row.paths.values_list("path", flat=True)):
                path = f"{directory}/{row.pk}.marker"
                if path not in self.markers and TableFiles(row).may_change(path):
                    Path(directory).mkdir(parents=True, exist_ok=True)
                    Path(path).touch()
                    self.markers[path] = row.pk

    def check(self) -> None:
        present = list(Table.objects.present().filter(kind="table").select_related("namespace"))
        for row in present:
            files = TableFiles(row)
            tenant = row.namespace.path[0]
            for other in present:
                if other.pk != row.pk:
                    assert not is_below(f"{other.location}/", row.location), (row, other)
            if not self.markers:
                continue
            for path, owner in files.classify(self.markers).items():
                pk = self.markers[path]
                if owner.belonging == Belonging.OWN:
                    assert self.tenant_of(pk) == tenant, f"{path} of {pk} is {row.pk}'s"
                assert owner.belonging in {Belonging.OWN, Belonging.OTHER}, f"{path}: {owner}"
        states = {
            str(path): Table.objects.get(pk=self.markers[str(path)]).state
            for path in map(Path, self.markers)
            if not path.exists()
        }
        assert not states, f"files were lost: {states}"
        assert TableState.DROPPED not in {row.state for row in present}


@pytest.mark.parametrize("seed", range(3))
def test_random_lives(
    warehouse: Path, seed: int, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    settings.MONODON_TRASH_SECONDS = settings.MONODON_PURGE_GRACE_SECONDS = 3600
    world = World(warehouse, seed)
    for _ in range(_STEPS):
        world.step()
        try:
            world.check()
        except AssertionError as error:
            raise AssertionError(f"{error}\n" + "\n".join(world.log)) from error
    assert world.outcomes["200"] > 3, world.log
    assert world.outcomes["409"] > 3, world.log
    assert world.purges["succeeded"] > 0, world.log
