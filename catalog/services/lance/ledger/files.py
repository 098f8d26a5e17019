"""Whose files a version of a Lance table leads to, before the server opens any of them.

A manifest may name files of other tables by its base paths: shallow clones do. Its own directory may hold
links. So the manifest is read here first, without Lance, and every file that it leads to must be a regular
file of the table, or one that the reader may read (``table_files``). What was found of a version is kept,
as a version never changes; the rights of readers to other tables' files are asked each time.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace

from catalog import access, models
from catalog.access import SYSTEM, Principal
from catalog.errors import ForeignFile, InvalidManifestPath, ManifestNotFound, ServiceUnavailable
from catalog.formats.lance import manifest as manifest_format
from catalog.formats.lance.manifest import BasePath, Contents, NotAManifest
from catalog.identifiers import Identifier
from catalog.models import TableFormat
from catalog.privileges import NOTHING
from catalog.services.lance.ledger import language_models, links, manifests
from catalog.services.lance.ledger.snapshots import Snapshot
from catalog.services.storage import file_references, recorded_references
from catalog.services.storage.file_owners import References
from catalog.services.storage.table_files import TableFiles
from catalog.storage import locations, stores

_MOST_KEPT = 10_000

_lock = threading.Lock()
_checked: OrderedDict[Hashable, "_Verdict"] = OrderedDict()


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What the check of a version found."""

    identity: Hashable
    """Of its manifest."""
    foreign: tuple[str, ...]
    """A file in each directory of other tables."""
    bases: tuple[tuple[str, str], ...]
    """The base paths in object stores: as the manifest spells them, and canonical."""
    digest: bytes
    """Of the base paths and files with rows that were checked."""
    directories: frozenset[str]
    """Those of indexes, and of blobs beside rows, that were checked."""
    auto_cleanup: tuple[tuple[str, str], ...]
    """The settings of Lance's automatic clean-up."""
    models: Hashable
    """The identity of the files that name tokenizers."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A table whose files are looked at, without a row of it."""

    pk: int
    location: str
    identifier: Identifier
    format: str = TableFormat.LANCE


Table = Holder | models.Table


def check(snapshot: Snapshot) -> tuple[str, ...]:
    """Check every file of a version that is about to be opened; returns those of other tables.

    Of those one for each directory, to be given to ``require_rights`` when it is used again. Raises
    ForeignFile, ManifestNotFound, InvalidManifestPath.
    """
    with _lock:
        verdict = _checked.get(snapshot.key)
    if (
        verdict is not None
        and not verdict.foreign
        and verdict.identity == _identity(snapshot)
        and is_unchanged(snapshot, ())
    ):
        return ()
    contents, status = manifests.read(
        table=snapshot.table,
        location=snapshot.location,
        manifest_path=snapshot.entry.manifest_path,
        version=snapshot.version,
        branch=snapshot.branch,
    )
    own, others = _paths(snapshot, contents)
    own_directories, other_directories = _directories(snapshot, contents)
    directories = frozenset((*own_directories, *other_directories))
    if verdict and (verdict.digest, verdict.directories) != (contents.digest, directories):
        raise _replaced(snapshot)  # an open dataset leads to the files of before
    store = stores.store_of(snapshot.location)
    others += store.irregular(own)
    others += [f"{path}/-" for path in own_directories if store.resolve(path) != path]
    others += [path for directory in own_directories for path in store.irregular_below(directory)]
    others += [f"{directory}/-" for directory in other_directories]
    others += _uncommitted(snapshot, contents)
    require_rights(snapshot, others)
    linked = [
        path
        for directory in other_directories
        for path in stores.store_of(directory).irregular_below(directory)
    ]
    require_rights(snapshot, linked)
    others += linked
    models = language_models.identity(directories)
    language_models.require_inside(snapshot.table, directories)
    foreign = tuple({path.rpartition("/")[0]: path for path in others}.values())
    with _lock:
        _checked[snapshot.key] = _Verdict(
            status.identity,
            foreign,
            _object_bases(contents),
            contents.digest,
            directories,
            contents.head.auto_cleanup,
            models,
        )
        while len(_checked) > _MOST_KEPT:
            _checked.popitem(last=False)
    return foreign


def require_checked(snapshot: Snapshot, message: bytes) -> None:
    """Require that the manifest which Lance has opened leads to the files that were checked.

    Lance reads the manifest again, and clients with credentials for the table can replace it in between, or
    later, while the dataset is open.
    ``message`` is the manifest as Lance holds it. Raises InvalidManifestPath.
    """
    with _lock:
        verdict = _checked.get(snapshot.key)
    try:
        digest = manifest_format.digest_of(message)
    except NotAManifest:
        digest = b""
    if verdict is None or digest != verdict.digest:
        raise _replaced(snapshot)


def _replaced(snapshot: Snapshot) -> InvalidManifestPath:
    return InvalidManifestPath(
        snapshot.entry.manifest_path, "was replaced while or after it was opened"
    )


def _identity(snapshot: Snapshot) -> Hashable:
    """The identity of a version's manifest file."""
    return manifests.status(
        table=snapshot.table,
        location=snapshot.location,
        manifest_path=snapshot.entry.manifest_path,
        version=snapshot.version,
    ).identity


def object_bases(snapshot: Snapshot) -> tuple[tuple[str, str], ...]:
    """The base paths of a checked version in object stores: as its manifest spells them, and canonical."""
    with _lock:
        verdict = _checked.get(snapshot.key)
    return () if verdict is None else verdict.bases


def auto_cleanup(snapshot: Snapshot) -> dict[str, str]:
    """The settings of Lance's automatic clean-up in a checked version; empty if it has none."""
    with _lock:
        verdict = _checked.get(snapshot.key)
    return {} if verdict is None else dict(verdict.auto_cleanup)


def _object_bases(contents: Contents) -> tuple[tuple[str, str], ...]:
    directories = ((base.path, _directory(base)) for base in contents.needed_bases().values())
    return tuple(
        (text, directory)
        for text, directory in directories
        if directory is not None and locations.is_object(directory)
    )


def is_unchanged(snapshot: Snapshot, foreign: Collection[str]) -> bool:
    """True if a version that was checked need not be checked again before its reader uses it.

    Since the check, links may have been put in the place of its files, or on the path of its directory,
    or another manifest in the place of its own. ``foreign`` are its files in base paths, one for each
    directory. A few µs, unless a directory has changed. Object stores have no links.

    Raises ForeignFile if the reader may not read these files now.
    """
    if not (links.has_plain_files(snapshot) and _has_same_manifest(snapshot)):
        return False
    require_rights(snapshot, foreign)  # before directories of others are listed
    return all(map(links.is_plain, {path.rpartition("/")[0] for path in foreign}))


def _has_same_manifest(snapshot: Snapshot) -> bool:
    """True unless a version's manifest is no regular file, or not the one that was checked.

    Lance reports a missing one. Objects are not asked for.
    """
    if locations.is_object(snapshot.location):
        return True
    with _lock:
        verdict = _checked.get(snapshot.key)
    try:
        identity = _identity(snapshot)
    except (ForeignFile, InvalidManifestPath):
        return False
    except (ManifestNotFound, ServiceUnavailable):
        return True
    if verdict is None:
        return True
    is_same = verdict.models == language_models.identity(verdict.directories)
    return is_same and verdict.identity == identity


def require_rights(snapshot: Snapshot, paths: Iterable[str]) -> None:
    """Raises ForeignFile unless the reader may read these files of other tables now."""
    paths = list(paths)
    if not paths:
        return
    files = TableFiles(Holder(snapshot.pk, snapshot.location, snapshot.table))
    reader = _reader(snapshot.reader)
    try:
        files.require_readable(reader, paths)
    except ForeignFile:
        # Not by the rights of the version's committer: others may have changed its files since.
        recorded_references.record_implied(snapshot.pk, files.references(paths))
        files.require_readable(reader, paths)


def require_committed(snapshot: Snapshot, paths: Collection[str]) -> None:
    """Raises ForeignFile unless references to these files of other tables have been committed.

    The next version leads there as well, so a writer would commit what others put into this one.
    """
    if not paths:
        return
    table = Holder(snapshot.pk, snapshot.location, snapshot.table)
    recorded_references.require_recorded(table, TableFiles(table).references(paths))


def absolute_paths(contents: Contents, root: str) -> Iterator[str]:
    """The paths of a version's files, and of the directories all of whose files it needs.

    ``root`` is the directory of its branch. Base paths are resolved, as links may lead to them.
    """
    directories: dict[BasePath | None, str | None] = {None: root}
    for base, path in (*contents.paths(), *contents.directory_paths()):
        if base is not None and base not in directories:
            directory = _directory(base)
            directories[base] = directory and stores.store_of(directory).resolve(directory)
        if directories[base] is not None:
            yield f"{directories[base]}/{path}"


def require_bases(
    actor: Principal, table: Table, bases: Iterable[BasePath], continued: Iterable[BasePath] = ()
) -> References:
    """What the base paths of a new version refer to, if the actor may read it.

    References of the ``continued`` ones must be recorded already: somebody may have put these into the version
    from which the actor's client continued. Raises ForeignFile.
    """
    paths = [path for base in bases for path in _representatives(table, base)]
    files = TableFiles(table)
    reader = _reader(actor)
    files.require_readable(reader, paths)
    if before := [path for base in continued for path in _representatives(table, base)]:
        recorded_references.require_recorded(table, files.references(before))
    references = files.references(paths)
    return references.only(access.readable_tables(reader, references.sources))


def as_cloned(references: References, table: models.Table, source: str) -> References:
    """The references of a clone: of other tables, only those that its source has committed.

    Others may have put theirs into the version that was cloned. ``source`` is the location in the clone's
    transaction; empty if the table is no clone.
    """
    directory = _directory(BasePath(0, source, is_root=True)) if source and references else None
    if directory is None:
        return references
    path = f"{stores.store_of(directory).resolve(directory)}/-"
    return recorded_references.as_registered(
        recorded_references.former_holders(path, table.pk), references
    )


def is_first(table: models.Table) -> bool:
    """True if no version of a table is in the ledger, and no former table has left some at its location."""
    versions = models.TableVersion.objects.filter(table=table)
    return not (versions.exists() or former_holders(table))


def former_holders(table: models.Table) -> set[int]:
    """The dropped tables that have left files at the location of a table."""
    return recorded_references.former_holders(f"{table.location}/-", table.pk)


def record_references(actor: Principal, table: models.Table, references: References) -> None:
    """Record what a new version refers to, inside its commit.

    The catalog itself and jobs note nothing: what they write leads only where an older version led.
    """
    if _reader(actor) is actor:
        file_references.record(actor=actor, table_id=table.pk, references=references)


def _representatives(table: Table, base: BasePath) -> list[str]:
    """A file in each directory that is read of a base path, whether it is there or not.

    Its directory decides whose it is.
    """
    directory = _directory(base)
    if directory is None:
        raise ForeignFile(base.path, table.identifier)
    return [f"{directory}/{name}/-" for name in links.READ] if base.is_root else [f"{directory}/-"]


def _directory(base: BasePath) -> str | None:
    """The directory of a base path as Lance reads it; None if it is relative or not served."""
    directory = locations.lance_path(base.path)
    if directory is None or locations.is_object(directory):
        return directory
    if not directory.startswith("/") or "//" in directory:
        return None
    return directory.rstrip("/")


def _paths(snapshot: Snapshot, contents: Contents) -> tuple[list[str], list[str]]:
    """The files of a version: those below the table's own directory, and the others."""
    location, root = snapshot.location, snapshot.uri
    table = Holder(snapshot.pk, location, snapshot.table)
    own, others = [], []
    for base, path in contents.paths():
        if base is None:
            own.append(f"{root}/{path}")
        elif manifests.is_location(base, location):
            own.append(f"{location}/{path}")
        else:
            directory = _directory(base)
            if directory is None:
                raise ForeignFile(base.path, snapshot.table)
            others.append(f"{directory}/{path}")
    others.extend(
        path
        for base in contents.needed_bases().values()
        if not manifests.is_location(base, location)
        for path in _representatives(table, base)
    )
    return own, others


def _uncommitted(snapshot: Snapshot, contents: Contents) -> list[str]:
    """Files in base paths that a version does not need, and to which its table never had a reference.

    Lance reads the indexes from the manifest again when a query needs them. Clients with credentials for the
    table can replace it until then, with one whose indexes are in such a base path.
    """
    table = Holder(snapshot.pk, snapshot.location, snapshot.table)
    needed = contents.needed_bases().values()
    paths = [
        path
        for base in contents.head.base_paths
        if base not in needed and not manifests.is_location(base, snapshot.location)
        for path in _representatives(table, base)
    ]
    if not paths:
        return []
    recorded = recorded_references.recorded_directories(snapshot.pk)
    # Objects are never links, and the profile of their store may be gone.
    real = (p if locations.is_object(p) else stores.store_of(p).resolve(p) for p in paths)
    return [path for path in real if not locations.is_below_any(path, recorded)]


def _directories(snapshot: "Snapshot", contents: Contents) -> tuple[list[str], list[str]]:
    """The same for the directories whose files a version does not name one by one."""
    own, others = [], []
    for base, path in contents.directory_paths():
        if base is None:
            own.append(f"{snapshot.uri}/{path}")
        elif manifests.is_location(base, snapshot.location):
            own.append(f"{snapshot.location}/{path}")
        else:
            others.append(f"{_directory(base)}/{path}")  # that of a file was looked at before
    return own, others


def _reader(actor: Principal) -> Principal:
    """For whom files of other tables are read: the catalog itself has no right to any, and jobs have none.

    The principal that starts a job may read more than the readers of its result.
    """
    is_catalog = actor.name == SYSTEM.name and actor.interface != access.COMMAND.interface
    if is_catalog or actor.interface == "job" or actor.job_kind:
        return replace(actor, everywhere=NOTHING, ceiling=NOTHING)
    return actor
