"""Looking at Lance manifests before they are entered in the ledger, and before the server reads them.

A manifest is a regular file of its table, without a link on the way, and it says of itself which version
and which branch it is. Nothing else is opened: not a link, a directory, a pipe or a device, and nothing
outside the table's location.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from django.conf import settings

from catalog import regular_files
from catalog.errors import (
    CatalogError,
    ForeignFile,
    InvalidManifestPath,
    ManifestNotFound,
    ServiceUnavailable,
)
from catalog.formats.lance import manifest as lance_manifest
from catalog.formats.lance import naming as lance_naming
from catalog.formats.lance.manifest import BasePath, Contents, Head, NotAManifest
from catalog.identifiers import Identifier
from catalog.regular_files import NotRegular, TooLarge
from catalog.storage import local_directories, locations, stores

_MAX_MANIFEST = 512 * 1024**2


@dataclass(frozen=True, slots=True)
class Look:
    """The facts that a first look at a manifest yields."""

    relative: str
    """Its path in the table."""
    size: int
    head: Head

    def foreign_bases(self, location: str) -> tuple[BasePath, ...]:
        """The base paths that are not the table itself."""
        return tuple(base for base in self.head.base_paths if not is_location(base, location))


def is_location(base: BasePath, location: str) -> bool:
    """True if a base path is the table's own location, as on every branch."""
    directory = locations.lance_path(base.path)
    return base.is_root and directory is not None and directory.rstrip("/") == location


def may_only_be_recorded(path: str) -> bool:
    """True if a manifest path has a prefix at which manifests are recorded and never read."""
    prefixes: Sequence[str] = settings.MONODON_MANIFEST_PATHS
    spellings = {path.lstrip("/"), (locations.lance_path(path) or path).lstrip("/")}
    return any(
        spelling.startswith(prefix.strip("/") + "/")
        for prefix in prefixes
        for spelling in spellings
    )


def look(
    *, table: Identifier, location: str, path: str, relative: str, version: int, branch: str
) -> Look:
    """Look at a manifest that is to be entered as a version of a branch.

    Raises ManifestNotFound, and InvalidManifestPath for anything that is not that version's manifest.
    """
    end, status = _read_end(table, location, path, relative, version)
    if status.st_nlink > 1:
        raise InvalidManifestPath(path, "is a file with several names: copy it instead of linking")
    try:
        head = lance_manifest.read_head(end)
    except NotAManifest as error:
        raise InvalidManifestPath(path, f"is not a Lance manifest: {error}") from None
    _require_own(head, path, version, branch)
    return Look(relative, status.st_size, head)


def _read_end(
    table: Identifier, location: str, path: str, relative: str, version: int
) -> tuple[bytes, regular_files.Status]:
    try:
        return regular_files.read_end(
            f"{location}/{relative}", lance_manifest.message_start, _MAX_MANIFEST
        )
    except NotAManifest as error:
        raise InvalidManifestPath(path, f"is not a Lance manifest: {error}") from None
    except OSError as error:
        raise _refusal(error, table, path, version) from error


def _refusal(error: OSError, table: Identifier, path: str, version: int) -> CatalogError:
    if isinstance(error, NotRegular):
        return InvalidManifestPath(
            path, "is not a regular file of the table: links are not followed"
        )
    if isinstance(error, TooLarge):
        return InvalidManifestPath(path, f"is larger than {_MAX_MANIFEST} bytes")
    if stores.is_missing(error):
        return ManifestNotFound(table, version, path)
    return ServiceUnavailable(f"Manifest {path!r} cannot be read: {error.strerror}; try again")


def _require_own(head: Head, path: str, version: int, branch: str) -> None:
    if head.version != version:
        raise InvalidManifestPath(
            path, f"is the manifest of version {head.version}, not of version {version}"
        )
    if head.branch != branch:
        raise InvalidManifestPath(
            path, f"is a manifest of {_name(head.branch)}, not of {_name(branch)}"
        )


def _name(branch: str) -> str:
    return f"branch '{branch}'" if branch else "main"


# --- what is in the ledger ----------------------------------------------------------------------


def file_of(*, table: Identifier, location: str, manifest_path: str) -> str:
    """The path, relative to the table, of a manifest that the server may open.

    Raises ForeignFile for what was recorded outside the table: it is never opened.
    """
    relative = locations.path_in_table(location, manifest_path)
    if relative is None or not locations.is_surely_in_table(location, relative):
        raise ForeignFile(manifest_path, table)
    return relative


def status(
    *, table: Identifier, location: str, manifest_path: str, version: int
) -> regular_files.Status:
    """The status of a version's manifest, which is not opened.

    Raises ForeignFile, ManifestNotFound, InvalidManifestPath.
    """
    relative = file_of(table=table, location=location, manifest_path=manifest_path)
    try:
        return regular_files.status(f"{location}/{relative}")
    except OSError as error:
        raise _refusal(error, table, manifest_path, version) from error


def require_regular(*, table: Identifier, location: str, manifest_path: str) -> None:
    """Raises ForeignFile unless a manifest is a regular file of its table, or missing."""
    relative = file_of(table=table, location=location, manifest_path=manifest_path)
    try:
        regular_files.status(f"{location}/{relative}")
    except NotRegular:
        raise ForeignFile(manifest_path, table) from None
    except OSError:
        return  # Lance meets it as well, and says what is wrong


def read(
    *, table: Identifier, location: str, manifest_path: str, version: int, branch: str
) -> Contents:
    """A version's manifest with all files that it leads to.

    Raises as ``status`` does, and InvalidManifestPath for what is not that version's manifest.
    """
    relative = file_of(table=table, location=location, manifest_path=manifest_path)
    try:
        content, _ = regular_files.read(f"{location}/{relative}", _MAX_MANIFEST)
        contents = lance_manifest.read(content)
    except NotAManifest as error:
        raise InvalidManifestPath(manifest_path, f"is not a Lance manifest: {error}") from None
    except OSError as error:
        raise _refusal(error, table, manifest_path, version) from error
    _require_own(contents.head, manifest_path, version, branch)
    return contents


def is_gone(location: str, manifest_path: str) -> bool:
    """True if the manifest of a version is missing although its table's directory exists.

    One system call, of 1 µs, for one that is there.
    """
    try:
        os.lstat("/" + manifest_path.lstrip("/"))
    except OSError as error:
        if not stores.is_missing(error):
            return False
        relative = locations.path_in_table(location, manifest_path)
        if (
            relative is None
            or lance_naming.parse_manifest_name(relative.rpartition("/")[2]) is None
        ):
            return False
        return local_directories.can_see(f"{location}/{relative.rpartition('/')[0]}")
    return False
