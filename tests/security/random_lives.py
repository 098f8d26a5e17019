"""Random lives of the tables of two tenants at a few locations. What must hold is checked after each step."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from django.http import HttpResponse

from catalog import access
from catalog.access import Principal
from catalog.errors import CatalogError
from catalog.models import (
    Job,
    JobKind,
    JobStatus,
    Namespace,
    RemainingFiles,
    Table,
    TableFormat,
    TableKind,
    TrashItem,
)
from catalog.services.maintenance import job_runner
from catalog.services.recovery import remaining_files
from catalog.services.recovery import undrop as recovery_undrop
from tests.api.client import Lance
from tests.api.iceberg.client import Iceberg
from tests.factories import ICEBERG_SCHEMA

TENANTS = ("ann", "bob")
_PATHS = ("write.data.path", "write.metadata.path")


class RandomLives:
    """The operations of two tenants, each with a key of its own, and a log of what they did."""

    LOCATIONS: ClassVar[Sequence[str]]
    """Relative to the root of all locations."""

    def __init__(self, root: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.root = root
        self.keys: dict[str, str] = {}
        self.log: list[str] = []
        self.outcomes: Counter[str] = Counter()
        """Of the operations: the status of the answer, or the class of the error."""
        self.purges: Counter[str] = Counter()
        """The statuses of purges after they ran."""
        self._number = 0

    # -- what a test defines

    def operations(self) -> Mapping[Callable[[str], Any], int]:
        """The operations, and how often each is chosen in relation to the others."""
        raise NotImplementedError

    def namespace(self, tenant: str) -> str:
        """The namespace in which a tenant creates tables."""
        raise NotImplementedError

    def filters(self, tenant: str, prefix: str = "") -> dict[str, Any]:
        """The conditions on rows of tables, whose lookups begin with ``prefix``, that are a tenant's."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise AssertionError if something does not hold."""
        raise NotImplementedError

    # -- steps

    def run(self, steps: int) -> None:
        """Take some steps. Raises AssertionError with the log of all steps."""
        for _ in range(steps):
            try:
                self.step()
                self.check()
            except AssertionError as error:
                raise AssertionError(f"{error}\n" + "\n".join(self.log)) from error

    def step(self) -> None:
        tenant = self.random.choice(TENANTS)
        weights = self.operations()
        (operation,) = self.random.choices([*weights], [*weights.values()])
        try:
            answer = operation(tenant)
            outcome = answer.status_code if isinstance(answer, HttpResponse) else "done"
            if isinstance(answer, HttpResponse) and answer.status_code >= 500:
                self.examine_failure(answer)
        except CatalogError as error:
            outcome = type(error).__name__
        self.log[-1] += f" → {outcome}"
        self.outcomes[str(outcome)] += 1

    def examine_failure(self, answer: HttpResponse) -> None:
        """Raise AssertionError for an answer with a status from 500, unless it is expected."""
        raise AssertionError(answer.content)

    def note(self, *words: object) -> None:
        self.log.append(" ".join(map(str, words)))

    def new_name(self) -> str:
        self._number += 1
        return f"t{self._number}"

    def location(self) -> str:
        return f"{self.root}/{self.random.choice(self.LOCATIONS)}"

    def uri(self) -> str:
        location = self.location()
        return f"file://{location}" if location.startswith("/") else location

    def own(self, tenant: str, kind: TableKind = TableKind.TABLE, **fields: Any) -> Table | None:
        """A present table or view of a tenant."""
        rows = Table.objects.present().filter(kind=kind, **self.filters(tenant), **fields)
        return self._chosen(rows.order_by("pk"))

    def item(self, tenant: str) -> TrashItem | None:
        rows = TrashItem.objects.filter(**self.filters(tenant, "table__"))
        return self._chosen(rows.order_by("pk"))

    def principal(self, tenant: str) -> Principal:
        principal = access.named(tenant)
        assert principal is not None
        return principal

    def iceberg(self, tenant: str, method: str, path: str, body: Any = None) -> HttpResponse:
        return Iceberg(self.keys[tenant]).call(method, path, body)

    def lance(self, tenant: str, table: str, operation: str, body: Any) -> HttpResponse:
        path = f"/v1/table/{self.namespace(tenant)}${table}/{operation}"
        return Lance(self.keys[tenant]).call("POST", path, body)

    def tables(self, tenant: str, name: str = "") -> str:
        """The path of the Iceberg tables of a tenant, or of one of them."""
        return f"namespaces/{self.namespace(tenant)}/tables" + (f"/{name}" if name else "")

    def _chosen(self, rows: Any) -> Any:
        values = list(rows)
        return self.random.choice(values) if values else None

    # -- operations

    def create_iceberg(self, tenant: str, **fields: Any) -> Any:
        name, location, properties = self.new_name(), self.uri(), {}
        if self.random.random() < 0.5:
            properties = {self.random.choice(_PATHS): self.uri()}
        self.note(tenant, "creates iceberg", name, "at", location, properties, fields)
        body = {
            "name": name,
            "schema": ICEBERG_SCHEMA,
            "location": location,
            "properties": properties,
        }
        return self.iceberg(tenant, "POST", self.tables(tenant), body | fields)

    def create_lance(self, tenant: str) -> Any:
        name, location = self.new_name(), self.location()
        self.note(tenant, "declares lance", name, "at", location)
        return self.lance(tenant, name, "declare", {"location": location})

    def set_path(self, tenant: str) -> Any:
        row, location = self.own(tenant, format=TableFormat.ICEBERG), self.uri()
        path = self.random.choice(_PATHS)
        self.note(tenant, "sets", path, "of", row, "to", location)
        return self._update(tenant, row, action="set-properties", updates={path: location})

    def move(self, tenant: str) -> Any:
        row, location = self.own(tenant, format=TableFormat.ICEBERG), self.uri()
        self.note(tenant, "moves", row, "to", location)
        return self._update(tenant, row, action="set-location", location=location)

    def _update(self, tenant: str, row: Table | None, **update: Any) -> Any:
        if row is None:
            return None
        body = {"requirements": [], "updates": [update]}
        return self.iceberg(tenant, "POST", self.tables(tenant, row.name), body)

    def drop(self, tenant: str) -> Any:
        row, purge = self.own(tenant), self.random.random() < 0.7
        self.note(tenant, "drops", row, "with purge" if purge else "and keeps the files")
        if row is None:
            return None
        if row.format == TableFormat.ICEBERG:
            path = f"{self.tables(tenant, row.name)}?purgeRequested={str(purge).lower()}"
            return self.iceberg(tenant, "DELETE", path)
        return self.lance(tenant, row.name, "drop" if purge else "deregister", {})

    def stop(self, tenant: str) -> None:
        item = self.item(tenant)
        self.note(tenant, "stops the purge of", item)
        if item is not None:
            recovery_undrop.stop_purge(actor=self.principal(tenant), item=item.pk)

    def purge_now(self, tenant: str) -> None:
        item = self.item(tenant)
        self.note(tenant, "purges", item)
        if item is not None:
            recovery_undrop.purge_now(actor=self.principal(tenant), item=item.pk)

    def run_purge(self, tenant: str) -> Job | None:
        purges = Job.objects.filter(kind=JobKind.PURGE_TABLE, status=JobStatus.QUEUED)
        job = self._chosen(purges.select_related("table__namespace").order_by("pk"))
        self.note("the purge runs of", job and job.table)
        if job is None:
            return None
        purges.filter(pk=job.pk).update(lease_until=None)
        job_runner.run_job(job.pk)
        job.refresh_from_db(fields=["status", "error"])
        self.log[-1] += f" {job.status} {job.error}"
        self.purges[job.status] += 1
        assert job.status in {JobStatus.SUCCEEDED, JobStatus.CANCELED, JobStatus.QUEUED}, job.error
        if job.status == JobStatus.SUCCEEDED:
            TrashItem.objects.filter(table=job.table_id).delete()
        return job

    def undrop(self, tenant: str) -> None:
        item = self.item(tenant)
        self.note(tenant, "restores", item)
        if item is not None:
            new = (self.namespace(tenant), self.new_name())
            recovery_undrop.undrop(actor=self.principal(tenant), item=item.pk, new=new)

    def create_namespace(self, tenant: str) -> Any:
        name, location = self.new_name(), self.uri()
        self.note(tenant, "creates namespace", name, "at", location)
        body = {
            "namespace": [self.namespace(tenant), name],
            "properties": {"location": location},
        }
        return self.iceberg(tenant, "POST", "namespaces", body)

    def drop_namespace(self, tenant: str) -> Any:
        rows = Namespace.objects.live().filter(parent__name=self.namespace(tenant))
        row = self._chosen(rows.order_by("pk"))
        self.note(tenant, "drops namespace", row)
        if row is None:
            return None
        path = f"namespaces/{self.namespace(tenant)}%1F{row.name}"
        answer = self.iceberg(tenant, "DELETE", path)
        TrashItem.objects.filter(namespace=row).delete()
        return answer

    def review(self, tenant: str) -> None:
        self.note("remaining files are reviewed")
        RemainingFiles.objects.update(checked_at=None)
        remaining_files.review(5)
