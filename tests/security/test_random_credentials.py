"""Random lives of tables in one bucket: nobody gets a location while another tenant's clients may write there."""

import random
from collections import Counter
from typing import Any

import pytest

from catalog.errors import CatalogError
from catalog.models import (
    Job,
    Namespace,
    RemainingFiles,
    Table,
    TableKind,
    TrashItem,
)
from catalog.privileges import Privilege
from catalog.services.maintenance import job_runner
from catalog.services.recovery import remaining_files
from catalog.services.recovery import undrop as recovery_undrop
from catalog.services.storage.table_files import TableFiles
from catalog.storage.locations import is_below
from tests.api.client import Lance
from tests.api.iceberg.client import Iceberg
from tests.factories import ICEBERG_SCHEMA, make_namespace, make_root
from tests.security.location_operations import view_body
from tests.security.test_random_locations import PATHS, World
from tests.security.test_staged_locations import make_tenant
from tests.stores.fixtures import MakeProfile
from tests.stores.s3 import Moto
from tests.vending import DELEGATED

pytestmark = [pytest.mark.django_db]
_STEPS = 150
_RIGHTS = Privilege.BROWSE | Privilege.CREATE
_PLACES = [f"{above}{name}" for above in ("", "a/", "b/", "a/c/") for name in "abcd"]


class Lake(World):
    """Two tenants who may create tables in one namespace, and own them."""

    def __init__(self, store: Moto, base: str, seed: int, *, signs: bool) -> None:
        self.random = random.Random(seed)
        self.store, self.base, self.signs = store, base, signs
        self.log, self.number = [], 0
        self.outcomes, self.purges = Counter(), Counter()
        self.keys = {name: make_tenant(name, _RIGHTS) for name in ("ann", "bob")}
        self.markers = {}
        self.opened: set[tuple[str, str]] = set()
        """Tenants, and the directories that their clients may write into until the end of the test."""

    def place(self) -> str:
        return self.random.choice(_PLACES)

    def uri(self, place: str) -> str:
        return f"{self.base}/{place}"

    def path(self, place: str) -> str:
        return f"{self.base}/{place}"

    def step(self) -> None:
        name = self.random.choice(("ann", "bob"))
        operations = [
            *[self.create_iceberg] * 4,
            *[self.stage] * 3,
            *[self.create_lance] * 3,
            *[self.load] * 3,
            *[self.set_path] * 3,
            *[self.move] * 2,
            *[self.register] * 3,
            *[self.register_lance] * 2,
            *[self.create_view] * 2,
            *[self.rename] * 1,
            *[self.drop] * 6,
            *[self.stop] * 1,
            *[self.purge_now] * 3,
            *[self.run_purge] * 5,
            *[self.undrop] * 4,
            *[self.create_namespace] * 1,
            *[self.drop_namespace] * 1,
            *[self.review] * 3,
        ]
        operation = self.random.choice(operations)
        try:
            answer = operation(name)
            status = getattr(answer, "status_code", "done")
            is_failed = isinstance(status, int) and status >= 500
            assert not is_failed or b"another table has files inside" in answer.content, (
                answer.content
            )
        except CatalogError as error:
            status = type(error).__name__
        self.log[-1] += f" → {status}"
        self.outcomes[f"{operation.__name__} {status}"] += 1
        self.note_signed()

    def note_signed(self) -> None:
        """Requests are signed for files in each directory of a present table that no other one has."""
        for row in Table.objects.present().filter(kind="table") if self.signs else ():
            own, foreign = TableFiles(row).prefixes()
            self.opened |= {
                (row.owner, directory)
                for directory in own
                if not any(is_below(path, directory) for path in foreign)
            }

    def note_credentials(self, name: str, answer: Any) -> Any:
        if answer.status_code == 200:
            for entry in answer.json().get("storage-credentials") or []:
                prefix = entry["prefix"].rstrip("/")
                if prefix != "s3":  # the credentials of a table with several directories
                    self.opened.add((name, prefix))
        return answer

    def own(self, name: str, **fields: Any) -> Table | None:
        rows = Table.objects.present().filter(owner=name, **{"kind": "table", **fields})
        return self.random.choice(list(rows.order_by("pk"))) if rows else None

    def item(self, name: str) -> TrashItem | None:
        rows = list(TrashItem.objects.filter(table__owner=name).order_by("pk"))
        return self.random.choice(rows) if rows else None

    def create_iceberg(self, name: str, *, staged: bool = False) -> Any:
        self.number += 1
        place, properties = self.place(), {}
        if self.random.random() < 0.5:
            properties = {self.random.choice(PATHS): self.uri(self.place())}
        self.note(
            name, "stages" if staged else "creates iceberg", f"t{self.number}", place, properties
        )
        body = {
            "name": f"t{self.number}",
            "schema": ICEBERG_SCHEMA,
            "location": self.uri(place),
            "properties": properties,
            "stage-create": staged,
        }
        answer = Iceberg(self.keys[name]).call(
            "POST", "namespaces/ns/tables", body, headers=DELEGATED
        )
        return self.note_credentials(name, answer)

    def stage(self, name: str) -> Any:
        return self.create_iceberg(name, staged=True)

    def load(self, name: str) -> Any:
        row = self.own(name, format="iceberg")
        self.note(name, "loads", row)
        if row is None:
            return None
        answer = Iceberg(self.keys[name]).call(
            "GET", f"namespaces/ns/tables/{row.name}", headers=DELEGATED
        )
        return self.note_credentials(name, answer)

    def create_lance(self, name: str) -> Any:
        self.number += 1
        place = self.place()
        self.note(name, "declares lance", f"t{self.number}", "at", place)
        path = f"/v1/table/ns$t{self.number}/declare"
        return Lance(self.keys[name]).call("POST", path, {"location": self.path(place)})

    def register(self, name: str) -> Any:
        self.number += 1
        versions = list(
            Table.objects.filter(format="iceberg", kind="table")
            .order_by("pk")
            .values_list("versions__manifest_path", flat=True)
        )
        file = self.random.choice([v for v in versions if v] or [self.uri("none")])
        self.note(name, "registers", f"t{self.number}", "from", file)
        body = {"name": f"t{self.number}", "metadata-location": file}
        return Iceberg(self.keys[name]).call("POST", "namespaces/ns/register", body)

    def register_lance(self, name: str) -> Any:
        self.number += 1
        place = self.place()
        self.note(name, "registers lance", f"t{self.number}", "at", place)
        path = f"/v1/table/ns$t{self.number}/register"
        return Lance(self.keys[name]).call("POST", path, {"location": self.path(place)})

    def create_view(self, name: str) -> Any:
        self.number += 1
        place = self.place()
        self.note(name, "creates view", f"v{self.number}", "at", place)
        body = view_body(f"v{self.number}", location=self.uri(place))
        return Iceberg(self.keys[name]).call("POST", "namespaces/ns/views", body)

    def rename(self, name: str) -> Any:
        row = self.own(name, format="iceberg")
        self.number += 1
        self.note(name, "renames", row)
        if row is None:
            return None
        body = {
            "source": {"namespace": ["ns"], "name": row.name},
            "destination": {"namespace": ["ns"], "name": f"t{self.number}"},
        }
        return Iceberg(self.keys[name]).call("POST", "tables/rename", body)

    def update(self, name: str, row: Table | None, update: dict[str, Any]) -> Any:
        if row is None:
            return None
        path = f"namespaces/ns/tables/{row.name}"
        body = {"requirements": [], "updates": [update]}
        return Iceberg(self.keys[name]).call("POST", path, body)

    def drop(self, name: str) -> Any:
        kind = self.random.choice(["table", "table", "table", "view"])
        row, purge = self.own(name, kind=kind), self.random.random() < 0.7
        self.note(name, "drops", row, "with purge" if purge else "and keeps the files")
        if row is None:
            return None
        if row.kind == TableKind.VIEW:
            return Iceberg(self.keys[name]).call("DELETE", f"namespaces/ns/views/{row.name}")
        if row.format == "iceberg":
            path = f"namespaces/ns/tables/{row.name}?purgeRequested={purge}".lower()
            return Iceberg(self.keys[name]).call(
                "DELETE", path.replace("purgerequested", "purgeRequested")
            )
        operation = "drop" if purge else "deregister"
        return Lance(self.keys[name]).call("POST", f"/v1/table/ns${row.name}/{operation}", {})

    def run_purge(self, name: str) -> None:
        jobs = list(Job.objects.filter(kind="purge_table", status="queued").order_by("pk"))
        job = self.random.choice(jobs) if jobs else None
        self.note("the purge runs of", job and job.table)
        if job is None:
            return
        Job.objects.filter(pk=job.pk).update(lease_until=None)
        job_runner.run_job(job.pk)
        job.refresh_from_db()
        self.log[-1] += f" {job.status} {job.error}"
        self.purges[job.status] += 1
        if job.status == "succeeded":
            TrashItem.objects.filter(table=job.table_id).delete()

    def undrop(self, name: str) -> None:
        item = self.item(name)
        self.note(name, "restores", item)
        if item is not None:
            self.number += 1
            new = ("ns", f"t{self.number}")
            recovery_undrop.undrop(actor=self.principal(name), item=item.pk, new=new)

    def create_namespace(self, name: str) -> Any:
        self.number += 1
        place = self.place()
        self.note(name, "creates namespace", f"n{self.number}", "at", place)
        body = {"namespace": ["ns", f"n{self.number}"], "properties": {"location": self.uri(place)}}
        return Iceberg(self.keys[name]).call("POST", "namespaces", body)

    def drop_namespace(self, name: str) -> Any:
        rows = list(Namespace.objects.live().filter(parent__name="ns").order_by("pk"))
        row = self.random.choice(rows) if rows else None
        self.note(name, "drops namespace", row)
        if row is None:
            return None
        answer = Iceberg(self.keys[name]).call("DELETE", f"namespaces/ns%1F{row.name}")
        TrashItem.objects.filter(namespace=row).delete()
        return answer

    def review(self, name: str) -> None:
        self.note("remaining files are reviewed")
        RemainingFiles.objects.update(checked_at=None)
        remaining_files.review(5)

    def check(self) -> None:
        present = list(Table.objects.present().select_related("namespace"))
        for row in present:
            directories = {row.location, *row.paths.values_list("path", flat=True)}
            for tenant, opened in self.opened:
                if tenant == row.owner:
                    continue
                for directory in directories:
                    met = is_below(f"{directory}/", opened) or (
                        is_below(f"{opened}/", directory) and directory == row.location
                    )
                    assert not met, (
                        f"{directory} of {row} of {row.owner} meets {opened} of {tenant}"
                    )
            for other in present:
                if other.pk != row.pk:
                    assert not is_below(f"{other.location}/", row.location), (row, other)


@pytest.fixture
def _no_broker(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    settings.MONODON_TRASH_SECONDS = settings.MONODON_PURGE_GRACE_SECONDS = 3600


@pytest.mark.usefixtures("_no_broker")
@pytest.mark.parametrize("access", ["sts", "signing"])
@pytest.mark.parametrize("seed", range(2))
def test_random_lives(moto_s3: Moto, make_profile: MakeProfile, seed: int, access: str) -> None:
    make_root()
    fields = moto_s3.profile_fields() | {"client_access": access}
    if access == "sts":
        fields["role"] = moto_s3.role
    profile = make_profile(name="lake", roots=[f"s3://{moto_s3.new_bucket()}/root"], **fields)
    namespace = make_namespace("ns")
    base = f"{profile.roots[0]}/ns"
    Namespace.objects.filter(pk=namespace.pk).update(
        storage_profile=profile, location=base, properties={"location": base}
    )
    lake = Lake(moto_s3, base, seed, signs=access == "signing")
    for _ in range(_STEPS):
        lake.step()
        try:
            lake.check()
        except AssertionError as error:
            raise AssertionError(f"{error}\n" + "\n".join(lake.log)) from error
    assert len(lake.opened) > 1, lake.log
    assert lake.purges["succeeded"] > 0, lake.log
