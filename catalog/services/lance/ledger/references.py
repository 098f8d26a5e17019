"""The versions of a Lance table that its tags and branches refer to, by their files in storage."""

from catalog.formats.lance import refs as lance_refs
from catalog.models import Table
from catalog.storage import stores
from catalog.storage.stores import AccessDenied, StorageUnavailable

_MAX_FILE = 1024**2


def needed_versions(table: Table, branch: str) -> dict[str, int]:
    """The versions of a branch that tags name and other branches began with, by what needs them."""
    needed = {}
    store = stores.store_of(table.location)
    for directory, kind in ((lance_refs.TAGS, "tag"), (lance_refs.BRANCHES, "branch")):
        for file in store.list_files(table.location, directory):
            name = lance_refs.name_of(file.name)
            if name is None or file.size > _MAX_FILE:
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
