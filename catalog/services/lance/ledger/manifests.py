"""Looking at Lance manifests before they are entered in the ledger, and before the server reads them.

A manifest is a regular file of its table, without a link on the way, and it says of itself which version
and which branch it is. Nothing else is opened: not a link, a directory, a pipe or a device, and nothing
outside the table's location.
"""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from django.conf import settings

from catalog.errors import (
    CatalogError,
    ForeignFile,
    InvalidManifestPath,
    ManifestNotFound,
    ServiceUnavailable,
)
from catalog.formats.lance import history as lance_history
from catalog.formats.lance import manifest as lance_manifest
from catalog.formats.lance import naming as lance_naming
from catalog.formats.lance.history import NO_BASES, AddedBases
from catalog.formats.lance.manifest import BasePath, Contents, Head, NotAManifest
from catalog.identifiers import Identifier
from catalog.regular_files import NotRegular, TooLarge
from catalog.storage import locations, stores
from catalog.storage.stores import FileStatus

_MAX_MANIFEST = 512 * 1024**2


@dataclass(frozen=True, slots=True)
class Look:
    """The facts that a first look at a manifest yields."""

    relative: str
    """Its path in the table."""
    size: int
    head: Head
    added: AddedBases = NO_BASES
    """What its own transaction brings in; read only if it has foreign base paths."""
    continues_files: bool = False
    """True if the manifest of the version before it leads to all files of base paths to which it leads."""

    def foreign_bases(self, location: str) -> tuple[BasePath, ...]:
        """The base paths that are not the table itself."""
        return tuple(base for base in self.head.base_paths if not is_location(base, location))

    def continued_bases(self, location: str) -> tuple[BasePath, ...]:
        """Those of them that its writer took over from another version."""
        added = {(base.path, base.is_root) for base in self.added.paths}
        bases = self.foreign_bases(location)
        return tuple(base for base in bases if (base.path, base.is_root) not in added)


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
    if status.names > 1:
        raise InvalidManifestPath(path, "is a file with several names: copy it instead of linking")
    try:
        head = lance_manifest.read_head(end)
    except NotAManifest as error:
        raise InvalidManifestPath(path, f"is not a Lance manifest: {error}") from None
    _require_own(head, path, version, branch)
    if head.obstacle:
        raise InvalidManifestPath(
            path, f"is refused, as no client could write after it: {head.obstacle}"
        )
    look = Look(relative, status.size, head)
    if not look.foreign_bases(location):
        return look
    file = f"{location}/{relative}"
    try:
        content, _ = stores.store_of(file).read(file, _MAX_MANIFEST)
        added = lance_history.added_bases(content)
    except NotAManifest as error:
        raise InvalidManifestPath(path, f"is not a Lance manifest: {error}") from None
    except OSError as error:
        raise _refusal(error, table, path, version) from error
    is_continued = _continues_files(content, location, version, branch)
    return replace(look, added=added, continues_files=is_continued)


def _continues_files(content: bytes, location: str, version: int, branch: str) -> bool:
    for scheme in lance_naming.NamingScheme:
        path = lance_naming.final_manifest_path(branch, version - 1, scheme)
        file = f"{location}/{path}"
        try:
            before = lance_manifest.read(stores.store_of(file).read(file, _MAX_MANIFEST)[0])
            files = _files_of_bases(lance_manifest.read(content))
        except (NotAManifest, OSError):
            continue
        is_before = (before.head.version, before.head.branch) == (version - 1, branch)
        return is_before and files <= _files_of_bases(before)
    return False


def _files_of_bases(contents: Contents) -> set[tuple[str, bool, str]]:
    """The files and directories in base paths: the base path, whether it is a root, and the path in it."""
    placed = (*contents.paths(), *contents.directory_paths())
    return {(base.path, base.is_root, path) for base, path in placed if base is not None}


def _read_end(
    table: Identifier, location: str, path: str, relative: str, version: int
) -> tuple[bytes, FileStatus]:
    file = f"{location}/{relative}"
    try:
        return stores.store_of(file).read_end(file, lance_manifest.message_start, _MAX_MANIFEST)
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
    return ServiceUnavailable(
        f"Manifest {path!r} cannot be read: {error.strerror}; try again",
        retry_seconds=stores.retry_seconds(error),
    )


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


def status(*, table: Identifier, location: str, manifest_path: str, version: int) -> FileStatus:
    """The status of a version's manifest, which is not opened.

    Raises ForeignFile, ManifestNotFound, InvalidManifestPath.
    """
    relative = file_of(table=table, location=location, manifest_path=manifest_path)
    try:
        return stores.store_of(location).status(f"{location}/{relative}")
    except OSError as error:
        raise _refusal(error, table, manifest_path, version) from error


def require_regular(*, table: Identifier, location: str, manifest_path: str) -> None:
    """Raises ForeignFile unless a manifest is a regular file of its table, or missing."""
    if not is_regular(location, manifest_path):
        raise ForeignFile(manifest_path, table)


def is_regular(location: str, manifest_path: str) -> bool:
    """True if a manifest is a regular file of its table, or missing."""
    relative = locations.path_in_table(location, manifest_path)
    if relative is None or not locations.is_surely_in_table(location, relative):
        return False
    if locations.is_object(location):
        return True  # every object is regular; Lance reports a missing one
    try:
        stores.store_of(location).status(f"{location}/{relative}")
    except NotRegular:
        return False
    except OSError:
        pass  # Lance meets it as well, and says what is wrong
    return True


def read(
    *, table: Identifier, location: str, manifest_path: str, version: int, branch: str
) -> tuple[Contents, FileStatus]:
    """A version's manifest with all files that it leads to, and the status of its file.

    Raises as ``status`` does, and InvalidManifestPath for what is not that version's manifest.
    """
    content, file_status = _content(table, location, manifest_path, version, _MAX_MANIFEST)
    try:
        contents = lance_manifest.read(content)
    except NotAManifest as error:
        raise InvalidManifestPath(manifest_path, f"is not a Lance manifest: {error}") from None
    _require_own(contents.head, manifest_path, version, branch)
    return contents, file_status


def content(
    *, table: Identifier, location: str, manifest_path: str, version: int, limit: int
) -> bytes:
    """The file of a version's manifest, of at most this many bytes.

    Raises as ``status`` does, and InvalidManifestPath for a larger file.
    """
    return _content(table, location, manifest_path, version, min(limit, _MAX_MANIFEST))[0]


def _content(
    table: Identifier, location: str, manifest_path: str, version: int, limit: int
) -> tuple[bytes, FileStatus]:
    relative = file_of(table=table, location=location, manifest_path=manifest_path)
    file = f"{location}/{relative}"
    try:
        return stores.store_of(file).read(file, limit)
    except OSError as error:
        raise _refusal(error, table, manifest_path, version) from error


# --- manifests that clients removed -------------------------------------------------------------

_SEEN_SECONDS = 60.0
_MOST_SEEN = 100_000
_lock = threading.Lock()
_seen_at: OrderedDict[str, float] = OrderedDict()
"""The manifests in object stores, and the moves of staged ones, that this process saw to be there or done
lately, with the time by time.monotonic()."""


def is_gone(location: str, manifest_path: str) -> bool:
    """True if the manifest of a version is missing although its table's directory exists.

    On a local file system one system call, of 1 µs, for one that is there. In an object store one
    request for each manifest and minute: within a minute after it was seen, its removal goes unnoticed.
    """
    if locations.is_object(location):
        return _is_gone_from_store(location, manifest_path)
    try:
        os.lstat("/" + manifest_path.lstrip("/"))
    except OSError as error:
        return stores.is_missing(error) and _has_directory(location, manifest_path)
    return False


def _is_gone_from_store(location: str, manifest_path: str) -> bool:
    relative = locations.path_in_table(location, manifest_path)
    if relative is None:
        return False
    path = f"{location}/{relative}"
    if was_seen(path):
        return False
    try:
        stores.store_of(path).status(path)
    except OSError as error:
        if stores.is_missing(error):
            return _has_directory(location, manifest_path)
    # An unavailable store is not asked again at once either: readers need not wait for it.
    note_seen(path)
    return False


def _has_directory(location: str, manifest_path: str) -> bool:
    """True if a path is that of a manifest whose directory is in storage."""
    relative = locations.path_in_table(location, manifest_path)
    if relative is None or lance_naming.parse_manifest_name(relative.rpartition("/")[2]) is None:
        return False
    return is_in_storage(location, relative.rpartition("/")[0])


def is_in_storage(location: str, directory: str) -> bool:
    """True if a directory of a table is in storage, so that a file that is not in it was removed.

    Otherwise this process may be without the volume, or the bucket is not the one that it was: an
    object store has a directory as long as it has a file in it.
    """
    store = stores.store_of(location)
    if not locations.is_object(location):
        return store.can_see(f"{location}/{directory}")
    return any(True for _ in store.list_files(location, directory))


def was_seen(path: str) -> bool:
    """True if ``note_seen`` was called for a manifest or a move within the last minute."""
    with _lock:
        seen_at = _seen_at.get(path)
    return seen_at is not None and time.monotonic() - seen_at < _SEEN_SECONDS


def note_seen(path: str) -> None:
    """Note that a manifest is in an object store, or that a move was done."""
    with _lock:
        _seen_at[path] = time.monotonic()
        _seen_at.move_to_end(path)
        while len(_seen_at) > _MOST_SEEN:
            _seen_at.popitem(last=False)
