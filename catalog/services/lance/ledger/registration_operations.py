"""Giving names to Lance tables: declaring new ones, and registering those that lie in storage."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from catalog import access
from catalog.access import On, Principal
from catalog.errors import (
    InvalidLocation,
    InvalidManifestPath,
)
from catalog.formats.lance import naming as lance_naming
from catalog.formats.lance.manifest import BasePath
from catalog.identifiers import Identifier, check_table, label, slug
from catalog.models import (
    Branch,
    Table,
    TableFormat,
    TableState,
    TableVersion,
)
from catalog.privileges import Privilege
from catalog.services.engine.batch import Batch
from catalog.services.engine.statements import NewVersion
from catalog.services.lance.ledger import files, manifests
from catalog.services.storage import file_references, object_placement, recorded_references
from catalog.services.tables.table_operations import (
    NewTableOperation,
    already_exists,
    claim_location,
    replace_table,
    require_free_location,
)
from catalog.storage import locations, stores

_MOST_HOLDERS = 100
"""Tables at a location whose privileges are looked up before the commit."""


@dataclass(frozen=True, kw_only=True)
class DeclareTable(NewTableOperation):
    """Reserve a name and a location for a table that has no data yet. The result is its row."""

    name = "DeclareTable"
    action = "table.declare"

    location: str | None = None

    def admit(self, actor: Principal) -> "DeclareTable":
        if self.location is not None:
            object_placement.admit(actor, self.table, self.location)
        return self

    def prepare(self) -> "DeclareTable":
        check_table(self.table)
        if self.location is None:
            return self
        return replace(self, location=locations.check_location(self.location))

    def locations(self) -> Iterable[str]:
        return () if self.location is None else (self.location,)

    def keeps_locations(self) -> bool:
        return True

    def creates_in(self) -> Identifier | None:
        return self.table[:-1] if self.location is None else None

    def apply(self, batch: Batch) -> Table:
        namespace = batch.namespace(self.table[:-1])
        access.require(batch.actor, Privilege.CREATE, namespace)
        holder = batch.find_table(self.table)
        if holder is not None:
            raise already_exists(self.table, holder)
        if self.location is not None:
            claim_location(batch, self.location, namespace, format=TableFormat.LANCE)
        location = self.location or object_placement.new_location_in(
            batch, namespace, slug(self.table[-1:], 60)
        )
        return self.add_table(batch, location, TableState.DECLARED)


@dataclass(frozen=True, kw_only=True)
class RegisterTable(NewTableOperation):
    """Give a name to a table that lies in storage already, and enter its versions in the ledger.

    With ``overwrite`` the name's present table is deregistered first. If there are no versions at the
    location, the table is declared, or refused with ``requires_versions``. The result is the new row.
    """

    name = "RegisterTable"
    action = "table.register"

    location: str
    overwrite: bool = False
    requires_versions: bool = False
    manifests: tuple[tuple[str, int, str, int], ...] = ()
    """(branch, version, path relative to the table, size), from ``prepare``."""
    bases: tuple[BasePath, ...] = ()
    """The directories outside the table in which its newest versions have files, from ``prepare``."""

    def admit(self, actor: Principal) -> "RegisterTable":
        check_table(self.table)
        object_placement.admit(actor, self.table, self.location)
        location = locations.check_location(self.location)
        _require_no_hidden_table(actor, self.table, location)
        return replace(self, location=location)

    def prepare(self) -> "RegisterTable":
        manifests = tuple(_manifests(self.location))
        if self.requires_versions and not manifests:
            raise InvalidLocation(self.location, "holds no version of a Lance table")
        bases = tuple(self._foreign_bases(self.location, manifests))
        return replace(self, manifests=manifests, bases=bases)

    def _foreign_bases(
        self, location: str, paths: Iterable[tuple[str, int, str, int]]
    ) -> Iterable[BasePath]:
        """Look at the newest manifest of each branch; older ones are looked at when they are read."""
        newest = {branch: (version, path) for branch, version, path, _ in sorted(paths)}
        for branch, (version, path) in newest.items():
            if version > lance_naming.MAX_CONTINUED:
                raise InvalidManifestPath(
                    path, f"is that of a version above {lance_naming.MAX_CONTINUED}"
                )
            look = manifests.look(
                table=self.table,
                location=location,
                path=f"{location}/{path}",
                relative=path,
                version=version,
                branch=branch,
            )
            yield from look.foreign_bases(location)

    def _record_references(self, batch: Batch, row: Table, *, is_again: bool = False) -> None:
        if not self.bases:
            return
        batch.flush()
        references = files.require_bases(batch.actor, row, self.bases)
        former = {row.pk} if is_again else files.former_holders(row)
        references = recorded_references.as_registered(former, references)
        file_references.require_no_removal(references.sources)
        files.record_references(batch.actor, row, references)

    def apply(self, batch: Batch) -> Table:
        namespace = batch.namespace(self.table[:-1])
        access.require(batch.actor, Privilege.CREATE, namespace)
        existing = batch.find_table(self.table)
        if existing is not None:
            if not self.overwrite:
                raise already_exists(self.table, existing)
            self.require_own(existing)
            access.require(batch.actor, Privilege.MANAGE, existing)
            if existing.location == self.location:
                return self._again(batch, existing)
            replace_table(batch, existing)
        claim_location(batch, self.location, namespace, format=TableFormat.LANCE)
        row = self.add_table(
            batch, self.location, TableState.LIVE if self.manifests else TableState.DECLARED
        )
        self._record_references(batch, row)
        self._enter(batch, row, entered=set())
        return row

    def _again(self, batch: Batch, row: Table) -> Table:
        """Register the same table again: add the versions that its ledger lacks."""
        batch.flush()
        before = {"properties": row.properties}
        row.properties = dict(self.properties)
        self._record_references(batch, row, is_again=True)
        entered = set(TableVersion.objects.filter(table=row).values_list("branch", "version"))
        self._enter(batch, row, entered=entered)
        if self.manifests:
            row.state = TableState.LIVE
        row.save(update_fields=["properties", "state", "updated_at"])
        batch.record(
            label(self.table),
            table=row,
            before=before,
            after={"location": row.location, "properties": row.properties},
        )
        return row

    def _enter(self, batch: Batch, row: Table, entered: set[tuple[str, int]]) -> None:
        branches = {branch for branch, *_ in self.manifests if branch}
        present = set(Branch.objects.filter(table_id=row.pk).values_list("name", flat=True))
        for branch in sorted(branches - present):
            batch.add(Branch(table=row, name=branch))
        for branch, version, path, size in self.manifests:
            if (branch, version) in entered:
                continue
            batch.add(
                NewVersion(
                    table=row,
                    branch=branch,
                    version=version,
                    manifest_path=locations.store_path(self.location, path),
                    staged_path=None,
                    manifest_size=size,
                    e_tag=None,
                    metadata=None,
                    transaction_id=batch.transaction.id,
                )
            )


def _require_no_hidden_table(actor: Principal, table: Identifier, location: str) -> None:
    """Refuse the location of a table that the actor may not read, before anything is read there.

    The commit would refuse it later, in the same words. No statement if the actor may read every table;
    otherwise two for a location that is not refused.
    """
    if actor.holds_everywhere(Privilege.READ):
        return
    # A directory with more tables is checked as the commit does.
    holders = Table.objects.meeting(location).values_list("pk", flat=True)
    some = set(holders[: _MOST_HOLDERS + 1])
    if len(some) <= _MOST_HOLDERS and access.readable_tables(actor, some) == some:
        return
    access.require(actor, Privilege.CREATE, On.namespace(table[:-1]))
    require_free_location(actor, location)


def _manifests(location: str) -> Iterable[tuple[str, int, str, int]]:
    """The manifests in storage, one for each version. Raises InvalidLocation."""
    newest: dict[tuple[str, int], tuple[str, int, str, int]] = {}
    try:
        store = stores.store_of(location)
        for branch in ("", *store.list_branches(location)):
            directory = lance_naming.versions_directory(branch)
            for file in sorted(store.list_files(location, directory), key=lambda f: f.name):
                manifest = lance_naming.parse_manifest_name(file.name)
                if manifest is not None:
                    entry = (branch, manifest.version, f"{directory}/{file.name}", file.size)
                    # Two names of one version: V2's, which has more digits, is what readers take.
                    present = newest.setdefault((branch, manifest.version), entry)
                    if len(present[2]) < len(entry[2]):
                        newest[branch, manifest.version] = entry
    except OSError as error:
        raise InvalidLocation(location, f"cannot be read: {error.strerror}") from error
    return newest.values()
