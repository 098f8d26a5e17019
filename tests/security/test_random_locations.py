"""Random lives of tables in a directory: no file becomes another tenant's, and none is lost."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from catalog.access import SYSTEM
from catalog.models import (
    Grant,
    Job,
    PrincipalLevel,
    RemainingFiles,
    Table,
    TableState,
)
from catalog.privileges import Privilege
from catalog.services.access import api_keys
from catalog.services.storage.file_owners import Belonging
from catalog.services.storage.table_files import TableFiles
from catalog.storage.locations import is_below
from tests.factories import make_namespace, make_root
from tests.security.random_lives import TENANTS, RandomLives

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse", "held_jobs")]
_STEPS = 120


class Warehouse(RandomLives):
    """Two tenants with all privileges in a namespace of their own, and none elsewhere."""

    LOCATIONS = ("a", "a/b", "a/b/c", "a/d", "e", "e/f")

    def __init__(self, warehouse: Path, seed: int) -> None:
        super().__init__(str(warehouse), seed)
        make_root()
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

    def operations(self) -> Mapping[Callable[[str], Any], int]:
        return {
            self.create_iceberg: 4,
            self.create_lance: 3,
            self.set_path: 3,
            self.move: 2,
            self.drop: 5,
            self.stop: 1,
            self.purge_now: 2,
            self.run_purge: 3,
            self.undrop: 4,
            self.create_namespace: 1,
            self.drop_namespace: 1,
            self.clean: 2,
            self.review: 2,
        }

    def namespace(self, tenant: str) -> str:
        return tenant

    def filters(self, tenant: str, prefix: str = "") -> dict[str, Any]:
        return {f"{prefix}namespace__path__0": tenant}

    def step(self) -> None:
        super().step()
        self.mark()

    def mark(self) -> None:
        """Each tenant writes a file into each directory of its present tables."""
        for row in Table.objects.present().filter(kind="table"):
            for directory in (row.location, *row.paths.values_list("path", flat=True)):
                path = f"{directory}/{row.pk}.marker"
                if path not in self.markers and TableFiles(row).may_change(path):
                    Path(directory).mkdir(parents=True, exist_ok=True)
                    Path(path).touch()
                    self.markers[path] = row.pk

    def tenant_of(self, pk: int) -> str:
        return str(Table.objects.select_related("namespace").get(pk=pk).namespace.path[0])

    def run_purge(self, tenant: str) -> Job | None:
        before = [path for path in self.markers if Path(path).exists()]
        job = super().run_purge(tenant)
        for path in before:
            if job is not None and not Path(path).exists():
                pk = self.markers.pop(path)
                assert self.tenant_of(pk) == job.table.namespace.path[0], (
                    f"{path} of {pk} was removed with {job.table_id}"
                )
        return job

    def clean(self, tenant: str) -> None:
        """The tenant removes what remains of a table itself."""
        remaining = RemainingFiles.objects.filter(**self.filters(tenant, "table__"))
        row = self._chosen(remaining.select_related("table__namespace").order_by("pk"))
        self.note(tenant, "removes the", row)
        if row is None:
            return
        for path in [path for path, pk in self.markers.items() if pk == row.table_id]:
            Path(path).unlink()
            del self.markers[path]

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
def test_random_lives(warehouse: Path, seed: int) -> None:
    lives = Warehouse(warehouse, seed)
    lives.run(_STEPS)
    assert lives.outcomes["200"] > 3, lives.log
    assert lives.outcomes["409"] > 3, lives.log
    assert lives.purges["succeeded"] > 0, lives.log
