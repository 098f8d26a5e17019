"""The language models of full-text indexes, which clients with access to a table's files may name as they like."""

import os
from collections.abc import Collection, Hashable

from catalog.errors import ForeignFile
from catalog.formats.lance import language_models
from catalog.identifiers import Identifier
from catalog.services.lance.errors import refusing
from catalog.storage import lance_options, locations


def identity(directories: Collection[str]) -> Hashable:
    """The identity of the files that name tokenizers, which a client may replace after the check.

    None on a machine without models. Objects are not asked for.
    """
    if not language_models.are_installed():
        return None
    return tuple(
        _status(f"{directory}/{name}")
        for directory in directories
        if "/_indices/" in directory and not locations.is_object(directory)
        for name in language_models.SOURCES
    )


def _status(path: str) -> Hashable:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def require_inside(table: Identifier, directories: Collection[str]) -> None:
    """Require that the indexes in these directories use no file outside of the machine's language models.

    Without a model on the machine, Lance finds no file either. Raises ForeignFile and StorageUnavailable.
    """
    if not language_models.are_installed():
        return
    for directory in directories:
        if "/_indices/" not in directory:
            continue
        with refusing(table):
            tokenizer = language_models.outside_model(
                directory, lance_options.storage_options(directory)
            )
        if tokenizer is not None:
            raise ForeignFile(tokenizer, table)
