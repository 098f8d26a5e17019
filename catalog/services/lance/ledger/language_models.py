"""The language models of full-text indexes, which clients with access to a table's files may name as they like."""

from collections.abc import Collection, Hashable, Iterator

from catalog.errors import ForeignFile, InvalidTableState
from catalog.formats.lance import language_models
from catalog.formats.lance.wire import MalformedMessage
from catalog.identifiers import Identifier, label
from catalog.services.lance.errors import refusing
from catalog.storage import lance_options, locations, stores


def identity(directories: Collection[str]) -> Hashable:
    """The identity of the files of indexes that name tokenizers, which a client may replace after the check.

    Empty on a machine without models. Objects are not asked for.
    """
    return tuple(
        _identity(f"{directory}/{name}")
        for directory in _indexes(directories)
        if not locations.is_object(directory)
        for name in language_models.SOURCES
    )


def require_inside(table: Identifier, directories: Collection[str]) -> None:
    """Require that the indexes in these directories use no file outside of the machine's language models.

    Without a model on the machine, Lance finds no file either. Raises ForeignFile, InvalidTableState and
    StorageUnavailable.
    """
    for directory in _indexes(directories):
        options = lance_options.storage_options(directory)
        try:
            with refusing(table):
                tokenizer = language_models.outside_model(directory, options)
        except MalformedMessage as error:
            raise InvalidTableState(f"Table '{label(table)}': {error}") from error
        if tokenizer is not None:
            raise ForeignFile(tokenizer, table)


def _indexes(directories: Collection[str]) -> Iterator[str]:
    """Those of indexes, on a machine with language models."""
    indexes = [directory for directory in directories if "/_indices/" in directory]
    return iter(indexes if indexes and language_models.are_installed() else ())


def _identity(path: str) -> Hashable:
    try:
        return stores.store_of(path).status(path).identity
    except OSError:
        return None
