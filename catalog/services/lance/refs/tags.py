"""List, create, move and delete the tags of Lance tables."""

from dataclasses import dataclass
from typing import Any

from catalog.access import Principal
from catalog.errors import TagAlreadyExists, TagNotFound
from catalog.formats.lance import refs as lance_refs
from catalog.identifiers import Identifier
from catalog.services.engine.commit import commit
from catalog.services.lance import commits
from catalog.services.lance.refs import ref_operations
from catalog.services.lance.refs.ref_files import (
    PAGE_SIZE,
    has_file,
    locked_refs,
    read_tag,
    ref_names,
    require_location,
)
from catalog.storage import stores


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
    audit row. Raises TagAlreadyExists, BranchNotFound, VersionNotFound, TableHasNoData.
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
        after = _summary(version, branch)
        return _record(actor, ref_operations.CreateTableTag(table=table, tag=tag, after=after))


def update_tag(
    *, actor: Principal, table: Identifier, tag: str, version: int, branch: str = ""
) -> str | None:
    """Move a tag to another version; return the transaction's id.

    Storage and ledger are changed in the order of ``create_tag``. Raises TagNotFound,
    BranchNotFound, VersionNotFound, TableHasNoData.
    """
    with locked_refs(actor, table, branch, version) as snapshot:
        before = read_tag(snapshot.location, tag)
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
        )
        return _record(actor, update)


def delete_tag(*, actor: Principal, table: Identifier, tag: str) -> str | None:
    """Delete a tag but not its version; return the transaction's id.

    Storage and ledger are changed in the order of ``create_tag``. Raises TagNotFound,
    TableHasNoData.
    """
    with locked_refs(actor, table) as snapshot:
        if not has_file(snapshot.location, lance_refs.TAGS, tag):
            raise TagNotFound(table, tag)
        before = read_tag(snapshot.location, tag)
        path = f"{snapshot.location}/{lance_refs.TAGS}/{lance_refs.file_name(tag)}"
        stores.store_of(path).remove(path)
        previous = None if before is None else _summary(before.version, before.branch)
        return _record(actor, ref_operations.DeleteTableTag(table=table, tag=tag, before=previous))


def _record(actor: Principal, operation: ref_operations.RecordTag) -> str | None:
    return commit([operation], actor=actor).id


def _summary(version: int, branch: str) -> dict[str, Any]:
    return {"version": version} | ({"branch": branch} if branch else {})
