"""List, create, move and delete the tags of Lance tables."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import DatabaseError

from catalog.access import SYSTEM, Principal
from catalog.errors import CatalogError, OutcomeUnknown, TagAlreadyExists, TagNotFound
from catalog.formats.lance import refs as lance_refs
from catalog.formats.lance.refs import TagFile
from catalog.identifiers import Identifier
from catalog.models import TableVersion
from catalog.services.engine.commit import commit
from catalog.services.lance import commits
from catalog.services.lance.ledger.snapshots import Snapshot
from catalog.services.lance.refs import ref_operations
from catalog.services.lance.refs.ref_files import (
    PAGE_SIZE,
    has_file,
    locked_refs,
    read_content,
    read_tag,
    ref_names,
    require_location,
)
from catalog.storage import stores

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tag:
    """A named version; the empty branch is main."""

    name: str
    version: int
    branch: str
    manifest_size: int


def resolve(*, actor: Principal, table: Identifier, tag: str) -> tuple[str, int]:
    """Return the branch (empty: main) and the version of a tag; the version may no longer exist.

    Raises NamespaceNotFound, TableNotFound, TableHasNoData, TagNotFound.
    """
    file = read_tag(require_location(actor, table), tag)
    if file is None:
        raise TagNotFound(table, tag)
    return file.branch, file.version


def list_tags(
    *, actor: Principal, table: Identifier, limit: int | None = None, page_token: str | None = None
) -> tuple[list[Tag], str | None]:
    """Return a page of a table's tags by name, and the token of the next page.

    Files that are not valid tags are skipped. Raises TableHasNoData.
    """
    location = require_location(actor, table)
    size = min(limit, PAGE_SIZE) if limit is not None else PAGE_SIZE
    names = sorted(
        name for name in ref_names(location, lance_refs.TAGS) if name > (page_token or "")
    )
    page = [(name, read_tag(location, name)) for name in names[:size]]
    tags = [Tag(name, tag.version, tag.branch, tag.manifest_size) for name, tag in page if tag]
    return tags, names[size - 1] if len(names) > size else None


def create_tag(
    *, actor: Principal, table: Identifier, tag: str, version: int, branch: str = ""
) -> str | None:
    """Create a tag for a version; return the transaction's id.

    The tag is written to storage, then recorded: a failure in between leaves a tag without an
    audit row. If the record is refused, for example because a clean-up has removed the version meanwhile, the
    tag is removed again. Raises TagAlreadyExists, BranchNotFound, VersionNotFound, TableHasNoData.
    """
    lance_refs.check_tag(tag)
    with locked_refs(actor, table, branch, version) as snapshot:
        if has_file(snapshot.location, lance_refs.TAGS, tag):
            raise TagAlreadyExists(table, tag)
        commits.change_storage(
            actor=actor,
            table=table,
            branch=branch,
            version=version,
            work=lambda dataset: dataset.tags.create(tag, (branch or None, version)),
        )
        create = ref_operations.CreateTableTag(
            table=table,
            tag=tag,
            after=_summary(version, branch),
            named=(branch, version, snapshot.entry.created_at),
        )
        with _undone(lambda: _remove_file(snapshot, tag)):
            return _record(actor, create)


def update_tag(
    *, actor: Principal, table: Identifier, tag: str, version: int, branch: str = ""
) -> str | None:
    """Move a tag to another version; return the transaction's id.

    Storage and ledger are changed in the order of ``create_tag``. Raises TagNotFound,
    BranchNotFound, VersionNotFound, TableHasNoData.
    """
    with locked_refs(actor, table, branch, version) as snapshot:
        content, before = _read(snapshot, tag)
        if before is None:
            raise TagNotFound(table, tag)
        commits.change_storage(
            actor=actor,
            table=table,
            branch=branch,
            version=version,
            work=lambda dataset: dataset.tags.update(tag, (branch or None, version)),
        )
        update = ref_operations.UpdateTableTag(
            table=table,
            tag=tag,
            before=_summary(before.version, before.branch),
            after=_summary(version, branch),
            named=(branch, version, snapshot.entry.created_at),
        )
        with _undone(lambda: _put_back(snapshot, tag, content)):
            return _record(actor, update)


def delete_tag(*, actor: Principal, table: Identifier, tag: str) -> str | None:
    """Delete a tag but not its version; return the transaction's id.

    Storage and ledger are changed in the order of ``create_tag``. Raises TagNotFound,
    TableHasNoData.
    """
    with locked_refs(actor, table) as snapshot:
        content, before = _read(snapshot, tag)
        if content is None:
            raise TagNotFound(table, tag)
        _remove_file(snapshot, tag)
        previous = None if before is None else _summary(before.version, before.branch)
        delete = ref_operations.DeleteTableTag(table=table, tag=tag, before=previous)
        with _undone(lambda: _put_back(snapshot, tag, content)):
            return _record(actor, delete)


@contextmanager
def _undone(undo: Callable[[], None]) -> Iterator[None]:
    """Undo a change of the storage if its record is refused."""
    try:
        yield
    except OutcomeUnknown:
        raise
    except CatalogError:
        try:
            undo()
        except (OSError, DatabaseError):
            log.warning("A refused change of a tag stays in storage", exc_info=True)
        raise


def _read(snapshot: Snapshot, tag: str) -> tuple[bytes | None, TagFile | None]:
    content = read_content(snapshot.location, lance_refs.TAGS, tag)
    return content, None if content is None else lance_refs.parse_tag(content)


def _path(snapshot: Snapshot, tag: str) -> str:
    return f"{snapshot.location}/{lance_refs.TAGS}/{lance_refs.file_name(tag)}"


def _remove_file(snapshot: Snapshot, tag: str) -> None:
    path = _path(snapshot, tag)
    stores.store_of(path).remove(path)


def _put_back(snapshot: Snapshot, tag: str, content: bytes | None) -> None:
    """Restore the file of a tag, unless its version was removed while no tag held it."""
    _remove_file(snapshot, tag)
    path = _path(snapshot, tag)
    if content is None:
        return
    stores.store_of(path).write_new(path, content)
    file = lance_refs.parse_tag(content)
    if file is None:
        return
    versions = TableVersion.objects.visible().filter(table__uuid=snapshot.uuid)
    if not versions.filter(branch=file.branch, version=file.version).exists():
        _remove_file(snapshot, tag)
        previous = _summary(file.version, file.branch)
        _record(
            SYSTEM, ref_operations.DeleteTableTag(table=snapshot.table, tag=tag, before=previous)
        )


def _record(actor: Principal, operation: ref_operations.RecordTag) -> str | None:
    return commit([operation], actor=actor).id


def _summary(version: int, branch: str) -> dict[str, Any]:
    return {"version": version} | ({"branch": branch} if branch else {})
