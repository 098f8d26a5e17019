"""The files of tags and branches in storage, and the turn to change them.

Storage is the source of truth for tags: clients tag there without asking the catalog, and Lance's
cleanup keeps tagged versions. The ledger is the source of truth for branches: a branch exists once
its first version is in the ledger.

Lance checks whether a name is free before it writes. On one machine, changes of a table's
references therefore take turns; across machines the ledger decides which branches exist.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from catalog import access
from catalog.access import On, Principal
from catalog.errors import InvalidTableState, TableHasNoData
from catalog.formats.lance import refs as lance_refs
from catalog.formats.lance.refs import BranchFile, TagFile
from catalog.identifiers import Identifier, label
from catalog.privileges import Privilege
from catalog.regular_files import NotRegular, TooLarge
from catalog.services.engine.commit_queue import turns
from catalog.services.lance import datasets
from catalog.services.lance.ledger.snapshots import Snapshot
from catalog.services.tables import tables
from catalog.storage import stores

PAGE_SIZE = 10_000
_MAX_FILE = 1024 * 1024  # metadata included


@contextmanager
def locked_refs(
    actor: Principal, table: Identifier, branch: str = "", version: int | None = None
) -> Iterator[Snapshot]:
    """Wait for the turn to change a table's references; yield the requested version."""
    access.require(actor, Privilege.WRITE, On.table(table))
    require_location(actor, table)
    snapshot = datasets.find_snapshot(
        actor=actor, table=table, branch=branch, version=version, action=Privilege.WRITE
    )
    require_regular_files(snapshot, "_refs")
    with turns([snapshot.uuid]):
        yield snapshot


def require_regular_files(snapshot: Snapshot, directory: str) -> None:
    """Refuse a directory with a link, which Lance would follow, or a pipe, for which it would wait."""
    path = stores.store_of(snapshot.location).find_irregular(f"{snapshot.location}/{directory}")
    if path is not None:
        raise InvalidTableState(
            f"'{directory}/{path}' in the directory of table '{label(snapshot.table)}' is not a regular"
            " file"
        )


def find_fault(location: str) -> str:
    """The path below a table's directory, and the fault, of a file that prevents a removal; or an empty string.

    Lance would follow links and remove files elsewhere, wait for pipes, and end at tags and branches that it
    cannot read.
    """
    path = stores.store_of(location).find_irregular(location)
    if path is not None:
        return f"'{path}' in the table's directory is not a regular file"
    malformed = _find_malformed(location)
    return f"'{malformed}' is not the file of a tag or branch" if malformed else ""


def _find_malformed(location: str) -> str | None:
    """The path below a table's directory of a tag or branch that Lance cannot read; None if there is none."""
    for directory, parse in (
        (lance_refs.TAGS, lance_refs.parse_tag),
        (lance_refs.BRANCHES, lance_refs.parse_branch),
    ):
        for file in stores.store_of(location).list_files(location, directory):
            name = lance_refs.name_of(file.name)
            if name is None:
                continue  # Lance ignores it
            is_canonical = lance_refs.file_name(name) == file.name
            try:
                content = _read_present(location, directory, name) if is_canonical else None
            except OSError as error:
                if stores.is_missing(error):  # somebody has deleted the tag meanwhile
                    continue
                raise
            if content is None or parse(content) is None:
                return f"{directory}/{file.name}"
    return None


def require_location(actor: Principal, table: Identifier) -> str:
    description = tables.describe_table(actor=actor, table=table)
    if description.is_only_declared:
        raise TableHasNoData(table)
    return description.location


def ref_names(location: str, directory: str) -> Iterator[str]:
    for file in stores.store_of(location).list_files(location, directory):
        name = lance_refs.name_of(file.name)
        if name is not None:
            yield name


def read_content(location: str, directory: str, name: str) -> bytes | None:
    """The file of a tag or branch; None if there is none that could be its."""
    try:
        return _read_present(location, directory, name)
    except OSError as error:
        if stores.is_missing(error):
            return None
        raise


def _read_present(location: str, directory: str, name: str) -> bytes | None:
    """The same; raises OSError if there is no file."""
    if not name.isprintable():  # the audit trail cannot store it
        return None
    path = f"{location}/{directory}/{lance_refs.file_name(name)}"
    try:
        content, _ = stores.store_of(path).read(path, _MAX_FILE)
    except (NotRegular, TooLarge):  # not a file of the table, or too large for a tag
        return None
    return content


def read_tag(location: str, name: str) -> TagFile | None:
    content = read_content(location, lance_refs.TAGS, name)
    return None if content is None else lance_refs.parse_tag(content)


def read_branch(location: str, name: str) -> BranchFile | None:
    content = read_content(location, lance_refs.BRANCHES, name)
    return None if content is None else lance_refs.parse_branch(content)


def has_file(location: str, directory: str, name: str) -> bool:
    return read_content(location, directory, name) is not None
