"""The files that belong to a table, which alone may be deleted."""

from collections.abc import Sequence

from .paths import is_below, is_link, is_plain, local_path, real_path


class Guard:
    """Decides which files belong to the table, from prefixes alone.

    A file belongs to the table if the longest of the table's prefixes above it is longer than that of
    any other table. Symbolic links in local paths are resolved. URIs of object stores are compared
    as text. Links themselves, and paths with ``..``, never belong to the table, nor do those with ``?`` or ``#`` in
    object stores.
    """

    def __init__(self, own: Sequence[str], foreign: Sequence[str]) -> None:
        self._own = [real_path(prefix) for prefix in own]
        self._foreign = [real_path(prefix) for prefix in foreign]
        self._directories: dict[str, bool] = {}
        self.shown = ", ".join(self._own)

    def is_own(self, path: str) -> bool:
        if not is_plain(path):
            return False
        local = local_path(path)
        if local is None and ("?" in path or "#" in path):  # Iceberg would open another object
            return False
        if local is not None and is_link(local):
            return False
        directory = path.rpartition("/")[0]
        if directory not in self._directories:
            self._directories[directory] = self._is_own(real_path(directory))
        return self._directories[directory]

    def _is_own(self, directory: str) -> bool:
        own = max(
            (len(location) for location in self._own if is_below(directory, location)), default=-1
        )
        foreign = max(
            (len(location) for location in self._foreign if is_below(directory, location)),
            default=-1,
        )
        return own > foreign
