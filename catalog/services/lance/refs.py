"""Tags and branches of Lance tables.

Storage is the truth of tags: clients tag there without asking the catalog, and Lance's cleanup
keeps what has a tag. The ledger is the truth of branches: one is there when its first version is.

Lance looks whether a name is free and writes then. So those who change a table's references take
turns, on one machine; the ledger decides which branch there is, whatever the machine.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db.models import OuterRef, Subquery

from catalog import access, regular_files
from catalog.access import On, Principal
from catalog.errors import (
    BranchAlreadyExists,
    BranchNotFound,
    CommitConflict,
    InvalidInput,
    InvalidTableState,
    TableHasNoData,
    TagAlreadyExists,
    TagNotFound,
)
from catalog.formats.lance import naming as lance_naming
from catalog.formats.lance import refs as lance_refs
from catalog.formats.lance.refs import BranchFile, TagFile
from catalog.identifiers import Identifier, label
from catalog.models import Branch, Table, TableVersion
from catalog.privileges import Privilege
from catalog.regular_files import NotRegular, TooLarge
from catalog.services.engine.commit import commit
from catalog.services.engine.commit_queue import turns
from catalog.services.lance import commits, datasets, ref_operations
from catalog.services.lance.ledger.snapshots import Snapshot
from catalog.services.tables import tables
from catalog.storage import listing, local_directories, local_files

log = logging.getLogger(__name__)

PAGE_SIZE = 10_000
_MAX_FILE = 1024 * 1024  # metadata included


@dataclass(frozen=True, slots=True)
class Tag:
    """A name of a version; the empty branch is main."""

    name: str
    version: int
    branch: str
    manifest_size: int


@dataclass(frozen=True, slots=True)
class BranchFacts:
    """A branch and what it was made from; the empty parent is main."""

    name: str
    parent_version: int
    parent: str
    create_at: int
    manifest_size: int
    metadata: dict[str, str]


def resolve(*, actor: Principal, table: Identifier, tag: str) -> tuple[str, int]:
    """The branch (empty: main) and the version that a tag names, which need not exist any more.

    Raises NamespaceNotFound, TableNotFound, TableHasNoData, TagNotFound.
    """
    found = _read_tag(_location(actor, table), tag)
    if found is None:
        raise TagNotFound(table, tag)
    return found.branch, found.version


def list_tags(
    *, actor: Principal, table: Identifier, limit: int | None = None, page_token: str | None = None
) -> tuple[list[Tag], str | None]:
    """A page of a table's tags by name, and the token of the next page.

    Files that do not read as tags are passed over. Raises TableHasNoData.
    """
    location = _location(actor, table)
    size = min(limit, PAGE_SIZE) if limit is not None else PAGE_SIZE
    names = sorted(name for name in _names(location, lance_refs.TAGS) if name > (page_token or ""))
    page = [(name, _read_tag(location, name)) for name in names[:size]]
    found = [Tag(name, tag.version, tag.branch, tag.manifest_size) for name, tag in page if tag]
    return found, names[size - 1] if len(names) > size else None


def create_tag(
    *, actor: Principal, table: Identifier, tag: str, version: int, branch: str = ""
) -> str | None:
    """Give a name to a version; returns the transaction's id.

    The tag is written to storage, then recorded: who fails in between leaves a tag without an
    audit row. Raises TagAlreadyExists, BranchNotFound, VersionNotFound, TableHasNoData.
    """
    lance_refs.check_tag(tag)
    with _turn(actor, table, branch, version) as snapshot:
        if _has_file(snapshot.location, lance_refs.TAGS, tag):
            raise TagAlreadyExists(table, tag)
        commits.visit(
            actor=actor,
            table=table,
            branch=branch,
            version=version,
            work=lambda dataset: dataset.tags.create(tag, (branch or None, version)),
        )
        after = _described(version, branch)
        return _record(actor, ref_operations.CreateTableTag(table=table, tag=tag, after=after))


def update_tag(
    *, actor: Principal, table: Identifier, tag: str, version: int, branch: str = ""
) -> str | None:
    """Let a tag name another version; returns the transaction's id.

    In the order of ``create_tag``. Raises TagNotFound, BranchNotFound, VersionNotFound,
    TableHasNoData.
    """
    with _turn(actor, table, branch, version) as snapshot:
        before = _read_tag(snapshot.location, tag)
        if before is None:
            raise TagNotFound(table, tag)
        commits.visit(
            actor=actor,
            table=table,
            branch=branch,
            version=version,
            work=lambda dataset: dataset.tags.update(tag, (branch or None, version)),
        )
        update = ref_operations.UpdateTableTag(
            table=table,
            tag=tag,
            before=_described(before.version, before.branch),
            after=_described(version, branch),
        )
        return _record(actor, update)


def delete_tag(*, actor: Principal, table: Identifier, tag: str) -> str | None:
    """Take a tag away, and not the version; returns the transaction's id.

    In the order of ``create_tag``. Raises TagNotFound, TableHasNoData.
    """
    with _turn(actor, table) as snapshot:
        if not _has_file(snapshot.location, lance_refs.TAGS, tag):
            raise TagNotFound(table, tag)
        before = _read_tag(snapshot.location, tag)
        local_files.remove_file(
            f"{snapshot.location}/{lance_refs.TAGS}/{lance_refs.file_name(tag)}"
        )
        known = None if before is None else _described(before.version, before.branch)
        return _record(actor, ref_operations.DeleteTableTag(table=table, tag=tag, before=known))


def list_branches(
    *, actor: Principal, table: Identifier, limit: int | None = None, page_token: str | None = None
) -> tuple[list[BranchFacts], str | None]:
    """A page of a table's branches by name, and the token of the next page.

    Of a branch whose file is missing the ledger tells what it can: that it began with a version of
    its parent, which has the same number. Raises TableHasNoData.
    """
    location = _location(actor, table)
    size = min(limit, PAGE_SIZE) if limit is not None else PAGE_SIZE
    first = TableVersion.objects.filter(
        table_id=OuterRef("table_id"), branch=OuterRef("name")
    ).order_by("version")
    rows = list(
        Branch.objects.filter(table__in=Table.objects.named(table), name__gt=page_token or "")
        .annotate(
            first=Subquery(first.values("version")[:1]),
            first_size=Subquery(first.values("manifest_size")[:1]),
        )
        .order_by("name")[: size + 1]
    )
    found = [_facts(location, row) for row in rows[:size]]
    return found, found[-1].name if len(rows) > size else None


def create_branch(
    *,
    actor: Principal,
    table: Identifier,
    name: str,
    from_branch: str = "",
    from_version: int | None = None,
) -> str | None:
    """Begin a branch at a version, by default the newest, of main or of another branch.

    Returns the transaction's id. Raises BranchAlreadyExists, also when only files of such a branch
    are left in storage, BranchNotFound, VersionNotFound, TableHasNoData.
    """
    lance_refs.check_branch(name)
    with _turn(actor, table, from_branch, from_version) as source:
        _require_no_link(source, f"tree/{name}")
        if _is_in_ledger(source, name):
            raise BranchAlreadyExists(table, name)
        if _is_in_storage(source.location, name):
            refused = BranchAlreadyExists(table, name)
            refused.detail = "The catalog has no such branch, but its files are there: delete it."
            raise refused
        try:
            written = commits.write(
                actor=actor,
                table=table,
                branch=from_branch,
                version=source.version,
                operation=ref_operations.CreateTableBranch,
                work=lambda dataset: dataset.create_branch(
                    name, (from_branch or None, source.version)
                ),
                summary={"from_version": source.version}
                | ({"from_branch": from_branch} if from_branch else {}),
                can_repeat=False,
            )
        except OSError as error:
            if not _is_in_ledger(source, name):
                raise
            # Another machine was faster, and Lance cannot say that.
            log.warning("Creating branch '%s' of %s failed", name, label(table), exc_info=True)
            raise BranchAlreadyExists(table, name) from error
        return written.transaction_id


def delete_branch(*, actor: Principal, table: Identifier, name: str) -> str | None:
    """Take a branch out of the ledger, then remove its files; returns the transaction's id.

    Nobody finds it from the commit on. When that was done and files are left, whatever the reason,
    the same again removes them. Raises BranchNotFound, TableHasNoData, and InvalidTableState when
    tags name its versions or other branches began there.
    """
    if name in {"", "main"}:
        raise InvalidInput("The main branch cannot be deleted")
    lance_naming.check_branch(name)
    with _turn(actor, table) as main:
        _require_no_link(main, f"tree/{name}")
        has_files = _is_in_storage(main.location, name)
        if not has_files and not _is_in_ledger(main, name):
            raise BranchNotFound(table, name)
        _require_unused(main, name)
        done = commit(
            [ref_operations.DeleteTableBranch(table=table, branch=name, may_be_absent=has_files)],
            actor=actor,
        )
        try:
            local_files.remove_file(
                f"{main.location}/{lance_refs.BRANCHES}/{lance_refs.file_name(name)}"
            )
            _remove_files(main, name)
        except OSError:
            # The branch is gone all the same. A writer who comes too late may leave a file meanwhile.
            log.warning("Files of branch '%s' of %s stay", name, label(table), exc_info=True)
        return done.id


@contextmanager
def _turn(
    actor: Principal, table: Identifier, branch: str = "", version: int | None = None
) -> Iterator[Snapshot]:
    """The turn to change a table's references; gives the version that was asked for."""
    access.require(actor, Privilege.WRITE, On.table(table))
    _location(actor, table)
    snapshot = datasets.find_snapshot(
        actor=actor, table=table, branch=branch, version=version, action=Privilege.WRITE
    )
    _require_no_link(snapshot, "_refs")
    with turns([snapshot.uuid]):
        yield snapshot


def _require_no_link(snapshot: Snapshot, directory: str) -> None:
    """Refuse to work below a link: Lance would follow it, to read, write or remove what lies there."""
    link = regular_files.find_link(f"{snapshot.location}/{directory}")
    if link is not None:
        raise InvalidTableState(
            f"'{directory}/{link}' in the directory of table '{label(snapshot.table)}' is a symbolic"
            " link, which is not followed"
        )


def _record(actor: Principal, operation: ref_operations.RecordTag) -> str | None:
    return commit([operation], actor=actor).id


def _described(version: int, branch: str) -> dict[str, Any]:
    return {"version": version} | ({"branch": branch} if branch else {})


def _is_in_ledger(snapshot: Snapshot, branch: str) -> bool:
    return Branch.objects.filter(table__uuid=snapshot.uuid, name=branch).exists()


def _is_in_storage(location: str, branch: str) -> bool:
    """Whether a branch's file is there, or manifests of it that are not just being written."""
    if _has_file(location, lance_refs.BRANCHES, branch):
        return True
    files = listing.list_files(location, lance_naming.versions_directory(branch))
    return any(lance_naming.parse_manifest_name(file.name) for file in files)


def _require_unused(snapshot: Snapshot, branch: str) -> None:
    """Raises InvalidTableState when something refers to a branch's versions or files."""
    location, known = snapshot.location, f"Branch '{branch}' of table '{label(snapshot.table)}'"
    tags = sorted(
        name
        for name in _names(location, lance_refs.TAGS)
        if (tag := _read_tag(location, name)) and tag.branch == branch
    )
    if tags:
        raise InvalidTableState(f"{known} cannot be deleted: tag '{tags[0]}' names a version of it")
    files = {name: _read_branch(location, name) for name in _names(location, lance_refs.BRANCHES)}
    children = sorted(name for name, file in files.items() if file and file.parent == branch)
    if children:
        raise InvalidTableState(f"{known} cannot be deleted: branch '{children[0]}' began there")
    if files.get(branch) is None:
        return
    others = Branch.objects.filter(table__uuid=snapshot.uuid).exclude(name=branch)
    unknown = [name for name in others.values_list("name", flat=True) if files.get(name) is None]
    if unknown:
        # A client enters the first version and writes the file then.
        raise CommitConflict(
            f"{known} cannot be deleted yet: branch '{min(unknown)}' may have begun there",
            detail=f"The file that tells what '{min(unknown)}' began with is missing. "
            "Either it is just being made, or it is to be deleted first.",
        )


def _remove_files(snapshot: Snapshot, branch: str) -> None:
    """Remove what Lance has put into a branch's directory, where branches below it lie as well."""
    location = snapshot.location
    others = {
        *_names(location, lance_refs.BRANCHES),
        *Branch.objects.filter(table__uuid=snapshot.uuid).values_list("name", flat=True),
    }
    kept = {
        name[len(branch) + 1 :].partition("/")[0]
        for name in others
        if name.startswith(f"{branch}/")
    }
    directory = f"{location}/tree/{branch}"
    for part in listing.list_directories(location, f"tree/{branch}"):
        if lance_refs.is_own_directory(part) and part not in kept:
            for _ in local_directories.remove_tree(f"{directory}/{part}"):
                pass
    for _ in local_directories.remove_empty_directories(directory):
        pass


def _facts(location: str, row: Any) -> BranchFacts:
    file = _read_branch(location, row.name) or BranchFile(
        parent_version=row.first or 0,
        create_at=int(row.created_at.timestamp()),
        manifest_size=row.first_size or 0,
    )
    return BranchFacts(
        row.name,
        file.parent_version,
        file.parent,
        file.create_at,
        file.manifest_size,
        file.metadata,
    )


def _location(actor: Principal, table: Identifier) -> str:
    facts = tables.describe_table(actor=actor, table=table)
    if facts.is_only_declared:
        raise TableHasNoData(table)
    return facts.location


def _names(location: str, directory: str) -> Iterator[str]:
    for file in listing.list_files(location, directory):
        name = lance_refs.name_of(file.name)
        if name is not None:
            yield name


def _read(location: str, directory: str, name: str) -> bytes | None:
    path = f"{location}/{directory}/{lance_refs.file_name(name)}"
    try:
        content, _ = regular_files.read(path, _MAX_FILE)
    except (NotRegular, TooLarge):  # no file of the table, or no tag of this size
        return None
    except OSError as error:
        if local_files.is_missing(error):
            return None
        raise
    return content


def _read_tag(location: str, name: str) -> TagFile | None:
    content = _read(location, lance_refs.TAGS, name)
    return None if content is None else lance_refs.parse_tag(content)


def _read_branch(location: str, name: str) -> BranchFile | None:
    content = _read(location, lance_refs.BRANCHES, name)
    return None if content is None else lance_refs.parse_branch(content)


def _has_file(location: str, directory: str, name: str) -> bool:
    return _read(location, directory, name) is not None
