"""Links and special files in the directories that Lance opens, and would follow. Object stores have none."""

from itertools import chain

from catalog.errors import ForeignFile
from catalog.identifiers import Identifier
from catalog.services.lance.ledger.snapshots import Snapshot
from catalog.storage import locations, stores

READ = ("data", "_deletions", "_indices")
"""The directories of a table's rows and indexes."""
_COMMITTED = ("_transactions", "_versions")
"""Those of commits. While Lance writes, it opens what it finds there, whether a version leads to it or not."""


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
    """Raises ForeignFile when a link would lead Lance elsewhere while it writes to a table or a branch."""
    if locations.is_object(location):
        return
    store = stores.store_of(location)
    for root in (location, f"{location}/tree/{branch}") if branch else (location,):
        if not store.is_free_of_links(root):
            raise ForeignFile(root, table, "written")
        linked = (name for name in READ if store.is_link(f"{root}/{name}"))
        irregular = (name for name in _COMMITTED if not store.is_plain(f"{root}/{name}"))
        for name in chain(linked, irregular):
            raise ForeignFile(f"{root}/{name}", table, "written")
