"""Files of a Lance table that other tables refer to: shallow clones do, by their base paths.

Clean-up and the removal of orphans keep them. What a clone that never went through the catalog needs is
unknown here.
"""

from collections.abc import Collection

from catalog.errors import CatalogError, ServiceUnavailable
from catalog.formats.lance import naming as lance_naming
from catalog.formats.lance.manifest import Contents
from catalog.identifiers import Identifier
from catalog.models import Table, TableFormat, TableVersion
from catalog.services.lance.ledger import files as lance_files
from catalog.services.lance.ledger import manifests as lance_manifests
from catalog.services.storage import file_references
from catalog.storage import locations


def needed_files(table: Table) -> frozenset[str]:
    """The files and directories below a table's location that versions of its dependents need.

    A dependent whose versions cannot be read needs what it cannot say; such a version is passed over,
    as nobody can read it.
    """
    file_references.record_claimed(table)
    prefix = f"{table.location}/"
    needed: set[str] = set()
    for dependent in file_references.dependents(table).filter(format=TableFormat.LANCE):
        rows = TableVersion.objects.visible().filter(table=dependent)
        for branch, version, path in rows.values_list("branch", "version", "manifest_path"):
            root = _root(dependent.location, branch)
            contents = _contents(dependent.identifier, dependent.location, path, version, branch)
            if contents is not None:
                files = lance_files.absolute_paths(contents, root)
                needed.update(file for file in files if file.startswith(prefix))
    return frozenset(needed)


def is_needed(path: str, needed: frozenset[str]) -> bool:
    """True if dependents need a file, or a directory above it."""
    return path in needed or any(parent in needed for parent in locations.parents(path))


def files_of(table: Table, branch: str, version: int) -> frozenset[str] | None:
    """The files and directories that a version in storage needs; None if its manifest cannot be read."""
    for scheme in lance_naming.NamingScheme:
        path = lance_naming.final_manifest_path(branch, version, scheme)
        absolute = f"{table.location}/{path}"
        contents = _contents(table.identifier, table.location, absolute, version, branch)
        if contents is not None:
            root = _root(table.location, branch)
            return frozenset(lance_files.absolute_paths(contents, root))
    return None


def without_files(
    table: Table, branch: str, versions: Collection[int], files: Collection[str]
) -> list[int]:
    """The versions of a branch that have none of these files."""
    return [
        version
        for version in sorted(versions)
        if (own := files_of(table, branch, version)) is not None and own.isdisjoint(files)
    ]


def _root(location: str, branch: str) -> str:
    return f"{location}/tree/{branch}" if branch else location


def _contents(
    table: Identifier, location: str, path: str, version: int, branch: str
) -> Contents | None:
    try:
        contents, _ = lance_manifests.read(
            table=table, location=location, manifest_path=path, version=version, branch=branch
        )
    except CatalogError as error:
        if isinstance(error, ServiceUnavailable) and locations.is_object(location):
            raise  # nothing may be removed while the object store does not say what is needed
        return None
    return contents
