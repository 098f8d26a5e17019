"""List, create and delete the branches of Lance tables."""

import logging
from dataclasses import dataclass
from itertools import chain
from typing import Any

from django.db import DatabaseError
from django.db.models import OuterRef, Subquery

from catalog.access import Principal
from catalog.errors import (
    BranchAlreadyExists,
    BranchNotFound,
    CommitConflict,
    InvalidInput,
    InvalidTableState,
    ServiceUnavailable,
)
from catalog.formats.lance import naming as lance_naming
from catalog.formats.lance import refs as lance_refs
from catalog.formats.lance.refs import BranchFile
from catalog.identifiers import Identifier, label
from catalog.models import Branch, Table, TableVersion
from catalog.services.engine import locks
from catalog.services.engine.commit import commit
from catalog.services.lance import commits
from catalog.services.lance.ledger.needed_files import OF_REQUESTS, NeededFiles
from catalog.services.lance.ledger.snapshots import Snapshot
from catalog.services.lance.refs import ref_operations
from catalog.services.lance.refs.ref_files import (
    PAGE_SIZE,
    has_file,
    locked_refs,
    read_branch,
    read_tag,
    ref_names,
    require_location,
    require_regular_files,
)
from catalog.services.storage import file_references
from catalog.storage import stores

log = logging.getLogger(__name__)
_MAX_METADATA = 4 * 1024 * 1024
"""Characters in a page. Clients write the files, of up to 1 MiB each."""


@dataclass(frozen=True, slots=True)
class BranchDetails:
    """A branch and the version it was created from; the empty parent is main."""

    name: str
    parent_version: int
    parent: str
    create_at: int
    manifest_size: int
    metadata: dict[str, str]
    has_file: bool = True
    """False while the file is missing that names the parent."""


def list_branches(
    *, actor: Principal, table: Identifier, limit: int | None = None, page_token: str | None = None
) -> tuple[list[BranchDetails], str | None]:
    """Return a page of a table's branches by name, and the token of the next page.

    A page with much metadata ends early. The details of a branch whose file is missing come from the ledger: its first version has the
    same number as the version of its parent. Raises TableHasNoData.
    """
    location = require_location(actor, table)
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
    branches: list[BranchDetails] = []
    metadata_size = 0
    for row in rows[:size]:
        branches.append(_describe(location, row))
        metadata_size += sum(map(len, chain(*branches[-1].metadata.items())))
        if metadata_size > _MAX_METADATA:
            break
    return branches, branches[-1].name if len(rows) > len(branches) else None


def create_branch(
    *,
    actor: Principal,
    table: Identifier,
    name: str,
    from_branch: str = "",
    from_version: int | None = None,
) -> str | None:
    """Create a branch at a version, by default the newest, of main or of another branch.

    Returns the transaction's id. Raises BranchAlreadyExists, also if only files of such a branch
    remain in storage, BranchNotFound, VersionNotFound, TableHasNoData.
    """
    lance_refs.check_branch(name)
    with locked_refs(actor, table, from_branch, from_version) as source:
        require_regular_files(source, f"tree/{name}")
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
        except (OSError, InvalidTableState) as error:
            if not _is_in_ledger(source, name):
                raise
            # Another machine created the branch first, which Lance does not report.
            log.warning("Creating branch '%s' of %s failed", name, label(table), exc_info=True)
            raise BranchAlreadyExists(table, name) from error
        return written.transaction_id


def delete_branch(*, actor: Principal, table: Identifier, name: str) -> str | None:
    """Remove a branch from the ledger, then remove its files; return the transaction's id.

    The branch is invisible from the commit on. If files remain after a failure, deleting the branch
    again removes them. Raises BranchNotFound, TableHasNoData, and InvalidTableState if tags refer
    to its versions, other branches were created from it, or other tables may need its files.
    """
    if name in {"", "main"}:
        raise InvalidInput("The main branch cannot be deleted")
    lance_naming.check_branch(name)
    with locked_refs(actor, table) as main:
        require_regular_files(main, f"tree/{name}")
        has_files = _is_in_storage(main.location, name)
        if not has_files and not _is_in_ledger(main, name):
            raise BranchNotFound(table, name)
        _require_unused(main, name)
        row = Table.objects.select_related("namespace").get(pk=main.pk)
        needed = NeededFiles(row, below=f"{main.location}/tree/{name}", limits=OF_REQUESTS)
        _require_unneeded(needed, row, name)
        transaction = commit(
            [ref_operations.DeleteTableBranch(table=table, branch=name, may_be_absent=has_files)],
            actor=actor,
        )
        try:
            path = f"{main.location}/{lance_refs.BRANCHES}/{lance_refs.file_name(name)}"
            stores.store_of(path).remove(path)
            with locks.exclude_commits(main.pk):  # those that need files of the table are refused
                _require_unneeded(needed, row, name)
                _remove_files(main, name)
        except (OSError, InvalidTableState, ServiceUnavailable, DatabaseError):
            # The branch is deleted anyway. A late writer may have left a file.
            log.warning("Files of branch '%s' of %s stay", name, label(table), exc_info=True)
        return transaction.id


def _is_in_ledger(snapshot: Snapshot, branch: str) -> bool:
    return Branch.objects.filter(table__uuid=snapshot.uuid, name=branch).exists()


def _is_in_storage(location: str, branch: str) -> bool:
    """True if the branch has a file or complete manifests in storage."""
    if has_file(location, lance_refs.BRANCHES, branch):
        return True
    directory = lance_naming.versions_directory(branch)
    files = stores.store_of(location).list_files(location, directory)
    return any(lance_naming.parse_manifest_name(file.name) for file in files)


def _require_unused(snapshot: Snapshot, branch: str) -> None:
    """Require that no tag or branch refers to a branch.

    Raises InvalidTableState, CommitConflict.
    """
    location, subject = snapshot.location, f"Branch '{branch}' of table '{label(snapshot.table)}'"
    tags = sorted(
        name
        for name in ref_names(location, lance_refs.TAGS)
        if (tag := read_tag(location, name)) and tag.branch == branch
    )
    if tags:
        raise InvalidTableState(
            f"{subject} cannot be deleted: tag '{tags[0]}' names a version of it"
        )
    files = {name: read_branch(location, name) for name in ref_names(location, lance_refs.BRANCHES)}
    children = sorted(name for name, file in files.items() if file and file.parent == branch)
    if children:
        raise InvalidTableState(f"{subject} cannot be deleted: branch '{children[0]}' began there")
    if files.get(branch) is None:
        return
    others = Branch.objects.filter(table__uuid=snapshot.uuid).exclude(name=branch)
    unknown = [name for name in others.values_list("name", flat=True) if files.get(name) is None]
    if unknown:
        # A client enters the first version before it writes the file of the branch.
        raise CommitConflict(
            f"{subject} cannot be deleted yet: branch '{min(unknown)}' may have begun there",
            detail=f"The file that states where '{min(unknown)}' began is missing. Either a client is creating"
            " the branch, and you can try again; or delete the branch first.",
        )


def _require_unneeded(needed: NeededFiles, row: Table, branch: str) -> None:
    """Require that no other table needs files of a branch. Raises InvalidTableState, ServiceUnavailable."""
    subject = f"Branch '{branch}' of table '{row}' cannot be deleted"
    try:
        needed.update()
    except InvalidTableState as unknown:
        raise InvalidTableState(f"{subject}: {unknown.message}") from unknown
    start = len(f"{row.location}/tree/{branch}/")
    is_needed = any(
        lance_refs.is_own_directory(path[start:].partition("/")[0]) for path in needed.files
    )
    if is_needed or needed.has_others:
        dependents = file_references.describe_dependents(row)
        raise InvalidTableState(f"{subject}: {dependents} to its files")


def _remove_files(snapshot: Snapshot, branch: str) -> None:
    """Remove Lance's files from a branch's directory, which may contain other branches as well."""
    location = snapshot.location
    others = {
        *ref_names(location, lance_refs.BRANCHES),
        *Branch.objects.filter(table__uuid=snapshot.uuid).values_list("name", flat=True),
    }
    branch_directories = {
        name[len(branch) + 1 :].partition("/")[0]
        for name in others
        if name.startswith(f"{branch}/")
    }
    directory = f"{location}/tree/{branch}"
    store = stores.store_of(location)
    for name in store.list_directories(location, f"tree/{branch}"):
        if lance_refs.is_own_directory(name) and name not in branch_directories:
            for _ in store.remove_tree(f"{directory}/{name}"):
                pass
    for _ in store.remove_empty_directories(directory):
        pass


def _describe(location: str, row: Any) -> BranchDetails:
    written = read_branch(location, row.name)
    file = written or BranchFile(
        parent_version=row.first or 0,
        create_at=int(row.created_at.timestamp()),
        manifest_size=row.first_size or 0,
    )
    return BranchDetails(
        row.name,
        file.parent_version,
        file.parent,
        file.create_at,
        file.manifest_size,
        file.metadata,
        has_file=written is not None,
    )
