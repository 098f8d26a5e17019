"""Versions of Lance tables as the ledger has them, with where their files lie."""

import uuid
from collections.abc import Hashable
from dataclasses import dataclass

from catalog.access import Principal
from catalog.formats.lance import naming as lance_naming
from catalog.identifiers import Identifier
from catalog.services.lance.ledger.versions import Version
from catalog.storage import locations


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of a Lance table, on one branch (empty: main), as the ledger has it."""

    table: Identifier
    uuid: uuid.UUID
    location: str
    branch: str
    entry: Version
    pk: int
    """Of the table."""
    reader: Principal
    """On whose behalf its files are read."""
    is_materialized: bool = False

    @property
    def version(self) -> int:
        return self.entry.version

    @property
    def key(self) -> Hashable:
        """Cache key, unique per table version."""
        entry = self.entry
        # A branch may be deleted and made again, with the same versions; not at the same moment.
        return self.uuid, self.branch, entry.version, entry.manifest_path, entry.created_us

    @property
    def uri(self) -> str:
        """Where the branch lies: a table's branches are directories of it."""
        return f"{self.location}/tree/{self.branch}" if self.branch else self.location

    @property
    def is_in_place(self) -> bool:
        """True if its manifest has the name by which Lance finds it in storage.

        Lance looks for the name of V2 first, so a manifest with the name of V1 is opened by its path.
        """
        path = self.entry.manifest_path
        name = lance_naming.final_manifest_path(
            self.branch, self.version, lance_naming.NamingScheme.V2
        )
        return path == locations.store_path(self.location, name)
