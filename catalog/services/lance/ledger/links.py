"""Links and special files in the directories that Lance opens, and would follow. Object stores have none."""

from catalog.errors import ForeignFile
from catalog.formats.lance import naming as lance_naming
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


def require_plain_directories(
    table: Identifier, location: str, branch: str = "", newest: int | None = None
) -> None:
    """Raises ForeignFile when a link would lead Lance elsewhere while it writes to a table or a branch.

    ``newest`` is the branch's newest version, if it is known: the directories of commits, which may be large,
    are then searched only if there is a later manifest, which Lance would open.
    """
    if locations.is_object(location):
        return
    store = stores.store_of(location)
    written = f"{location}/tree/{branch}" if branch else location
    for root in dict.fromkeys((location, written)):
        if not store.is_free_of_links(root):
            raise ForeignFile(root, table, "written")
        for directory in (*READ, *_COMMITTED):
            if store.is_link(f"{root}/{directory}"):
                raise ForeignFile(f"{root}/{directory}", table, "written")
    if newest is not None and _is_last(location, branch, newest):
        return
    for directory in _COMMITTED:
        if not store.is_plain(f"{written}/{directory}"):
            raise ForeignFile(f"{written}/{directory}", table, "written")


def _is_last(location: str, branch: str, version: int) -> bool:
    """True if nothing in storage has a name of the manifest after a version."""
    for scheme in lance_naming.NamingScheme:
        path = lance_naming.final_manifest_path(branch, version + 1, scheme)
        try:
            stores.store_of(location).status(f"{location}/{path}")
        except OSError as error:
            if stores.is_missing(error):
                continue
        return False
    return True
