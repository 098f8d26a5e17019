"""The versions of a Lance table that its tags and branches refer to, by their files in storage."""

from catalog.errors import InvalidTableState
from catalog.formats.lance import refs as lance_refs
from catalog.identifiers import label
from catalog.models import Table
from catalog.storage import stores
from catalog.storage.stores import AccessDenied, StorageUnavailable

_MAX_FILE = 1024**2
_MAX_FILES, _MAX_BYTES = 10_000, 64 * 1024**2
"""Of all tags and branches of a table, which are read while it is locked."""


def needed_versions(table: Table, branch: str) -> dict[str, int]:
    """The versions of a branch that tags name and other branches began with, by what needs them.

    Raises InvalidTableState if the files are too many or too large.
    """
    needed = {}
    files = size = 0
    store = stores.store_of(table.location)
    for directory, kind in ((lance_refs.TAGS, "tag"), (lance_refs.BRANCHES, "branch")):
        for file in store.list_files(table.location, directory):
            files += 1
            name = lance_refs.name_of(file.name)
            is_read = name is not None and file.size <= _MAX_FILE
            size += file.size if is_read else 0
            if files > _MAX_FILES or size > _MAX_BYTES:
                raise InvalidTableState(
                    f"Table '{label(table.identifier)}' has too many tags and branches in storage to"
                    f" delete versions: more than {_MAX_FILES:,} files or {_MAX_BYTES:,} bytes"
                )
            if not is_read:
                continue
            try:
                path = f"{table.location}/{directory}/{file.name}"
                content, _ = store.read(path, _MAX_FILE)
            except (AccessDenied, StorageUnavailable):
                raise
            except OSError:
                continue
            if kind == "tag":
                tag = lance_refs.parse_tag(content)
                if tag is not None and tag.branch == branch:
                    needed[f"tag '{name}'"] = tag.version
            else:
                child = lance_refs.parse_branch(content)
                if child is not None and child.parent == branch:
                    needed[f"branch '{name}'"] = child.parent_version
    return needed
