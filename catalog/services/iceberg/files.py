"""The files that Iceberg metadata names: may they be read for their table?

    check_updates    when a commit brings them in: what the commit itself names, and what new
                     manifest lists name; nothing is locked yet
    check_document   when a whole metadata document is brought in
    TableFileIO      when the server reads manifests: at every use

Data files are committed without a look at whose they are, as they may lie in storage that this
server does not reach. They are checked before anything is planned, measured or rewritten.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NoReturn

from pyiceberg.manifest import ManifestFile

from catalog import access
from catalog.access import Principal
from catalog.errors import InvalidMetadata, ServiceUnavailable
from catalog.formats.iceberg import manifests
from catalog.formats.iceberg.reading import Document
from catalog.regular_files import NotRegular, TooLarge
from catalog.services.iceberg import manifest_cache, parallel_reads
from catalog.services.iceberg.manifest_cache import ManifestIdentity
from catalog.services.storage import recorded_references
from catalog.services.storage.file_owners import References
from catalog.services.storage.table_files import NOBODY, TableFiles
from catalog.storage import stores
from catalog.storage.stores import AccessDenied, StorageUnavailable

_MAX_FILE_BYTES = 128 * 1024 * 1024  # manifests are written of 8 MB
# What a commit looks at: a list of 1,000 manifests has about 100 KB, a manifest of 1,000 files 150.
_MAX_LIST_BYTES = 4 * 1024 * 1024
_MAX_MANIFEST_BYTES = 256 * 1024
_MAX_MANIFESTS = 20_000
_MAX_ENTRIES = 2_000
_MAX_LISTS = 100


# --- when metadata comes in --------------------------------------------------------------------


def check_updates(
    actor: Principal, files: TableFiles, updates: Iterable[Mapping[str, Any]]
) -> References:
    """Check the files that updates bring in.

    No statement where all lie below the table's location. Jobs refer to nothing new: their manifests name
    files of older ones, which their requesters may be able to read while those who committed them may not.
    Raises ForeignFile.
    """
    snapshots, named = [], []
    for update in updates:
        match update.get("action"):
            case "add-snapshot":
                snapshots.append(update["snapshot"])
            case "set-statistics":
                named.append(update["statistics"]["statistics-path"])
            case "set-partition-statistics":
                named.append(update["partition-statistics"]["statistics-path"])
    if not snapshots and not named:
        return References()
    if actor.job_kind:
        _check(NOBODY, files, snapshots, named)
        return References()
    return _check(actor, files, snapshots, named)


def check_document(actor: Principal, files: TableFiles, document: Document) -> References:
    """The same for all that a metadata document names. Raises ForeignFile."""
    named = [
        file["statistics-path"]
        for key in ("statistics", "partition-statistics")
        for file in document.get(key) or []
    ]
    named += [entry["metadata-file"] for entry in document.get("metadata-log") or []]
    return _check(actor, files, document.get("snapshots") or [], named, is_whole=True)


def _check(
    actor: Principal,
    files: TableFiles,
    snapshots: Collection[Mapping[str, Any]],
    named: Collection[str],
    *,
    is_whole: bool = False,
) -> References:
    """``is_whole``: the snapshots' older manifests came in before no commit that looked at them."""
    is_new = is_whole or not files.table.pk
    new_snapshots = {s["snapshot-id"] for s in snapshots}
    lists = {s["manifest-list"]: s["snapshot-id"] for s in snapshots if s.get("manifest-list")}
    added = {
        path: s["snapshot-id"]
        for s in snapshots
        if not s.get("manifest-list")
        for path in s.get("manifests") or ()
    }
    listed, continued = set(added), set[str]()
    real, references = files.check(actor, {*named, *lists, *listed})
    unread = set(islice(lists.values(), max(len(lists) - _MAX_LISTS, 0)))
    newest = dict(islice(reversed(lists.items()), _MAX_LISTS))
    contents = parallel_reads.contents([real[path] for path in newest], _MAX_LIST_BYTES)
    for snapshot_id, content in zip(newest.values(), contents, strict=True):
        remaining = max(_MAX_MANIFESTS - len(listed), 0)
        manifests_in_list = _listed(content, remaining)
        if manifests_in_list is None or len(manifests_in_list) >= remaining:
            unread.add(snapshot_id)
        for path, added_by in manifests_in_list or ():
            listed.add(path)
            if not is_new and added_by not in new_snapshots:
                continued.add(path)
            if is_whole or added_by is None or added_by == snapshot_id:
                added.setdefault(path, snapshot_id)
    for paths in (listed - continued, continued):
        real_listed, references_listed = files.check(actor, paths)
        real |= real_listed
        references |= references_listed
    # Those of the continued manifests: others may have put them into a list since its commit.
    recorded_references.require_recorded(files.table, references_listed)
    picked = set() if is_new else {s["snapshot-id"] for s in snapshots if is_cherry_picked(s)}
    continued |= {path for path, snapshot_id in added.items() if snapshot_id in picked}
    references |= _data_references(files, real, added, continued, is_new=is_new)
    references |= References(unread=frozenset(unread))
    if references.sources:
        references = references.only(access.readable_tables(actor, references.sources))
    return references


def _data_references(
    files: TableFiles,
    real: Mapping[str, str],
    added: Mapping[str, int],
    continued: Collection[str],
    *,
    is_new: bool,
) -> References:
    """What the files in manifests refer to. ``added`` are the manifests with their snapshots.

    Writers take over the files of older manifests, which others may have replaced since their commits: all
    files of the ``continued`` manifests, and those that a manifest does not add, unless the table ``is_new``.
    """
    data: dict[str, bool] = {}
    unread: set[int] = set()
    contents = parallel_reads.contents([real[path] for path in added], _MAX_MANIFEST_BYTES)
    for number, (path, snapshot_id) in enumerate(added.items()):
        remaining = _MAX_ENTRIES - max(len(data), number)
        entries = _entries(next(contents), remaining) if remaining > 0 else None
        for file, is_added in entries or ():
            is_own = is_new or (is_added and path not in continued)
            data[file] = is_own or data.get(file, False)
        if entries is None or len(entries) >= remaining:
            unread.add(snapshot_id)
    references = files.references(file for file, is_own in data.items() if is_own)
    taken_over = files.references(file for file, is_own in data.items() if not is_own)
    return references | taken_over.as_continued() | References(unread=frozenset(unread))


def is_cherry_picked(snapshot: Mapping[str, Any]) -> bool:
    """True if a snapshot repeats the changes of another one, whose manifests others may have replaced."""
    return "source-snapshot-id" in (snapshot.get("summary") or {})


def _listed(content: bytes | OSError, limit: int) -> list[tuple[str, int | None]] | None:
    """The first manifests in a list; None for a list that is too large or cannot be read.

    Content that is not a manifest list has none: whoever uses it gets an error.
    """
    if isinstance(content, OSError):
        return None
    try:
        return manifests.paths_in_list(content, limit)
    except InvalidMetadata:
        return []


def _entries(content: bytes | OSError, limit: int) -> list[tuple[str, bool]] | None:
    """The same for the first files in a manifest."""
    if isinstance(content, OSError):
        return None
    try:
        return list(islice(manifests.paths_in_manifest(content), limit))
    except InvalidMetadata:
        return []


# --- when it is used ---------------------------------------------------------------------------


class TableFileIO(manifests.CheckedIO):
    """The files of one table's metadata, for reading on behalf of a principal.

    Each is checked before it is opened. A local file is checked again once it is open.
    """

    def __init__(self, files: TableFiles, actor: Principal) -> None:
        self._files, self._actor = files, actor
        self._real: dict[str, str] = {}

    @property
    def files(self) -> TableFiles:
        return self._files

    def require(self, locations: Iterable[str]) -> None:
        new = {location for location in locations if location not in self._real}
        if new:
            self._real |= self._files.require_readable(self._actor, new)

    def readable(self, locations: Collection[str]) -> set[str]:
        """Those of the files that ``require`` accepts. Opens no file."""
        new = {location for location in locations if location not in self._real}
        if new:
            self._real |= self._files.judge(self._actor, new)[0]
        return {location for location in locations if location in self._real}

    def canonical(self, locations: Iterable[str]) -> dict[str, str]:
        return self._files.canonical(locations)

    def contents(self, locations: Sequence[str]) -> Iterator[bytes]:
        self.require(locations)
        paths = [self._real[location] for location in locations]
        yield from _readable(locations, parallel_reads.contents(paths, _MAX_FILE_BYTES))

    def manifests(self, listed: Sequence[ManifestFile]) -> Iterator[bytes]:
        locations = [manifest.manifest_path for manifest in listed]
        self.require(locations)
        paths = [self._real[location] for location in locations]
        identities = [_identity(manifest) for manifest in listed]
        yield from _readable(locations, manifest_cache.contents(paths, identities, _MAX_FILE_BYTES))

    def real_path(self, location: str) -> str:
        """Where a file really lies. Raises ForeignFile unless it may be read."""
        self.require([location])
        return self._real[location]

    def size(self, location: str) -> int:
        """The size of a file in bytes. Raises ForeignFile, and the errors of reading."""
        path = self.real_path(location)
        try:
            return stores.store_of(path).status(path).size
        except OSError as error:
            _refuse(location, error)


def _readable(locations: Sequence[str], contents: Iterator[bytes | OSError]) -> Iterator[bytes]:
    for location, content in zip(locations, contents, strict=True):
        if isinstance(content, OSError):
            _refuse(location, content)
        yield content


def _identity(manifest: ManifestFile) -> ManifestIdentity | None:
    if manifest.added_snapshot_id is None:
        return None
    return ManifestIdentity(
        manifest.manifest_length, manifest.added_snapshot_id, manifest.sequence_number
    )


def _refuse(location: str, error: OSError) -> NoReturn:
    """Raise the error for a file that cannot be read; a plain OSError for one that is missing."""
    match error:
        case TooLarge():
            raise InvalidMetadata(f"'{location}' is larger than {_MAX_FILE_BYTES} bytes") from error
        case NotRegular():
            raise InvalidMetadata(f"'{location}' is no file") from error
        case AccessDenied() | StorageUnavailable():
            raise ServiceUnavailable(
                str(error.strerror), retry_seconds=stores.retry_seconds(error)
            ) from error
    raise error


def data_files(
    reader: TableFileIO, locations: Sequence[str]
) -> Iterator[Iterator[tuple[str, bool]]]:
    """The files that each of several manifests names, and whether it adds them.

    Raises ForeignFile, InvalidMetadata.
    """
    contents = reader.contents(locations)
    for location in locations:
        try:
            content = next(contents)
        except OSError as error:
            raise InvalidMetadata(
                f"Manifest '{location}' cannot be read: {error.strerror}"
            ) from error
        yield manifests.paths_in_manifest(content)
