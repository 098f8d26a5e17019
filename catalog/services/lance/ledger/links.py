"""Links and special files in the directories that Lance opens, and would follow. Object stores have none."""

from catalog.errors import ForeignFile
from catalog.identifiers import Identifier
from catalog.services.lance.ledger.snapshots import Snapshot
from catalog.storage import locations, stores

READ = ("data", "_deletions", "_indices")
"""The directories of a table's rows and indexes."""
_WRITTEN = (*READ, "_transactions", "_versions")


def has_plain_files(snapshot: Snapshot) -> bool:
    """True if a table's rows and indexes are only in regular files and directories."""
    if locations.is_object(snapshot.location):
        return True
    store = stores.store_of(snapshot.location)
    # Looking at a file in a directory follows the links on the directory's own path.
    return store.is_free_of_links(snapshot.uri) and all(
        store.is_plain(f"{root}/{directory}")
        for root in {snapshot.location, snapshot.uri}
        for directory in READ
    )


def is_plain(directory: str) -> bool:
    """True if a directory of any table holds only regular files and directories, with no link on its path."""
    if locations.is_object(directory):
        return True
    store = stores.store_of(directory)
    return store.is_free_of_links(directory) and store.is_plain(directory)


def require_plain_directories(table: Identifier, location: str, branch: str = "") -> None:
    """Raises ForeignFile when Lance would write to a table's directory, or a branch's, through a link."""
    if locations.is_object(location):
        return
    store = stores.store_of(location)
    for root in (location, f"{location}/tree/{branch}") if branch else (location,):
        if not store.is_free_of_links(root):
            raise ForeignFile(root, table, "written")
        for directory in _WRITTEN:
            if store.is_link(f"{root}/{directory}"):
                raise ForeignFile(f"{root}/{directory}", table, "written")
