"""The language models of full-text indexes, which clients with access to a table's files may name as they like."""

from collections.abc import Iterable

from catalog.errors import ForeignFile
from catalog.formats.lance import language_models
from catalog.identifiers import Identifier
from catalog.services.lance.errors import refusing
from catalog.storage import lance_options


def require_inside(table: Identifier, directories: Iterable[str]) -> None:
    """Require that the indexes in these directories use no file outside of the machine's language models.

    Without a model on the machine, Lance finds no file either. Raises ForeignFile and StorageUnavailable.
    """
    if not language_models.are_installed():
        return
    for directory in directories:
        with refusing(table):
            tokenizer = language_models.outside_model(
                directory, lance_options.storage_options(directory)
            )
        if tokenizer is not None:
            raise ForeignFile(tokenizer, table)
