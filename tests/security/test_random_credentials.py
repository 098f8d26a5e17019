"""Random lives of tables in one bucket: nobody gets a location while another tenant's clients may write there."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from django.http import HttpResponse

from catalog.models import Namespace, Table, TableFormat, TableKind, TableVersion
from catalog.privileges import Privilege
from catalog.services.storage.table_files import TableFiles
from catalog.storage.locations import is_below
from tests.api.iceberg.client import Iceberg
from tests.factories import make_namespace, make_root
from tests.security.location_operations import view_body
from tests.security.random_lives import TENANTS, RandomLives
from tests.security.test_staged_locations import make_tenant
from tests.stores.fixtures import MakeProfile
from tests.stores.s3 import Moto
from tests.vending import DELEGATED

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("held_jobs")]
_STEPS = 150
_RIGHTS = Privilege.BROWSE | Privilege.CREATE


class Bucket(RandomLives):
    """Two tenants who may create tables in one namespace, and own them."""

    LOCATIONS = tuple(f"{above}{name}" for above in ("", "a/", "b/", "a/c/") for name in "abcd")

    def __init__(self, root: str, seed: int, *, signs: bool) -> None:
        super().__init__(root, seed)
        self.signs = signs
        for name in TENANTS:
            self.keys[name] = make_tenant(name, _RIGHTS)
        self.opened: set[tuple[str, str]] = set()
        """Tenants, and the directories that their clients may write into until the end of the test."""

    def operations(self) -> Mapping[Callable[[str], Any], int]:
        return {
            self.create_iceberg: 4,
            self.stage: 3,
            self.create_lance: 3,
            self.load: 3,
            self.set_path: 3,
            self.move: 2,
            self.register: 3,
            self.register_lance: 2,
            self.create_view: 2,
            self.rename: 1,
            self.drop: 5,
            self.drop_view: 1,
            self.stop: 1,
            self.purge_now: 3,
            self.run_purge: 5,
            self.undrop: 4,
            self.create_namespace: 1,
            self.drop_namespace: 1,
            self.review: 3,
        }

    def namespace(self, tenant: str) -> str:
        return "ns"

    def filters(self, tenant: str, prefix: str = "") -> dict[str, Any]:
        return {f"{prefix}owner": tenant}

    def step(self) -> None:
        super().step()
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

    def iceberg(self, tenant: str, method: str, path: str, body: Any = None) -> HttpResponse:
        """Send a request, and note the directories for which the answer has credentials."""
        answer = Iceberg(self.keys[tenant]).call(method, path, body, headers=DELEGATED)
        if answer.status_code == 200:
            for entry in answer.json().get("storage-credentials") or []:
                prefix = entry["prefix"].rstrip("/")
                if prefix != "s3":  # the credentials of a table with several directories
                    self.opened.add((tenant, prefix))
        return answer

    def stage(self, tenant: str) -> Any:
        return self.create_iceberg(tenant, **{"stage-create": True})

    def load(self, tenant: str) -> Any:
        row = self.own(tenant, format=TableFormat.ICEBERG)
        self.note(tenant, "loads", row)
        return None if row is None else self.iceberg(tenant, "GET", self.tables(tenant, row.name))

    def register(self, tenant: str) -> Any:
        name = self.new_name()
        versions = TableVersion.objects.filter(table__format="iceberg", table__kind="table")
        paths = versions.exclude(manifest_path="").order_by("pk")
        file = self._chosen(paths.values_list("manifest_path", flat=True)) or f"{self.root}/none"
        self.note(tenant, "registers", name, "from", file)
        body = {"name": name, "metadata-location": file}
        return self.iceberg(tenant, "POST", "namespaces/ns/register", body)

    def register_lance(self, tenant: str) -> Any:
        name, location = self.new_name(), self.location()
        self.note(tenant, "registers lance", name, "at", location)
        return self.lance(tenant, name, "register", {"location": location})

    def create_view(self, tenant: str) -> Any:
        name, location = self.new_name(), self.uri()
        self.note(tenant, "creates view", name, "at", location)
        body = view_body(name, location=location)
        return self.iceberg(tenant, "POST", "namespaces/ns/views", body)

    def drop_view(self, tenant: str) -> Any:
        row = self.own(tenant, TableKind.VIEW)
        self.note(tenant, "drops view", row)
        if row is None:
            return None
        return self.iceberg(tenant, "DELETE", f"namespaces/ns/views/{row.name}")

    def rename(self, tenant: str) -> Any:
        row, name = self.own(tenant, format=TableFormat.ICEBERG), self.new_name()
        self.note(tenant, "renames", row, "to", name)
        if row is None:
            return None
        body = {
            "source": {"namespace": ["ns"], "name": row.name},
            "destination": {"namespace": ["ns"], "name": name},
        }
        return self.iceberg(tenant, "POST", "tables/rename", body)

    def check(self) -> None:
        present = list(Table.objects.present().select_related("namespace"))
        for row in present:
            directories = {row.location, *row.paths.values_list("path", flat=True)}
            for tenant, opened in self.opened:
                if tenant == row.owner:
                    continue
                for directory in directories:
                    is_reachable = is_below(f"{directory}/", opened) or (
                        is_below(f"{opened}/", directory) and directory == row.location
                    )
                    assert not is_reachable, (
                        f"{tenant} may write into {opened}, and {row.owner} has {directory} of {row}"
                    )
            for other in present:
                if other.pk != row.pk:
                    assert not is_below(f"{other.location}/", row.location), (row, other)


@pytest.mark.parametrize("access", ["sts", "signing"])
@pytest.mark.parametrize("seed", range(2))
def test_random_lives(moto_s3: Moto, make_profile: MakeProfile, seed: int, access: str) -> None:
    make_root()
    fields = moto_s3.profile_fields() | {"client_access": access}
    if access == "sts":
        fields["role"] = moto_s3.role
    profile = make_profile(name="lake", roots=[f"s3://{moto_s3.new_bucket()}/root"], **fields)
    namespace = make_namespace("ns")
    root = f"{profile.roots[0]}/ns"
    Namespace.objects.filter(pk=namespace.pk).update(
        storage_profile=profile, location=root, properties={"location": root}
    )
    lives = Bucket(root, seed, signs=access == "signing")
    lives.run(_STEPS)
    assert len(lives.opened) > 1, lives.log
    assert lives.purges["succeeded"] > 0, lives.log
