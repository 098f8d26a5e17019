"""The wording of refusals in the Iceberg protocol.

Java clients, and tests for the reference catalogs, match these messages. Names have the form of the
request: relative to its warehouse, levels joined by dots, without quotes.
"""

from collections.abc import Sequence

from api.iceberg import prefixes
from catalog import errors
from catalog.identifiers import Identifier, fold

_OUTSIDE = "(outside this warehouse)"

TEMPLATES: dict[type[errors.CatalogError], str] = {
    errors.NamespaceNotFound: "Namespace does not exist: {namespace}",
    errors.TableNotFound: "Table does not exist: {table}",
    errors.ViewNotFound: "View does not exist: {view}",
    errors.FunctionNotFound: "Function does not exist: {function}",
    errors.NamespaceAlreadyExists: "Namespace already exists: {namespace}",
    errors.TableAlreadyExists: "Table already exists: {table}",
    errors.ViewAlreadyExists: "View already exists: {view}",
    errors.FunctionAlreadyExists: "Function already exists: {function}",
    errors.NamespaceNotEmpty: "Namespace {namespace} is not empty. It holds {contents}",
}
"""Other classes keep the plain message of ``catalog.errors``."""

_SAME_NAME: dict[tuple[type[errors.CatalogError], str], str] = {
    (errors.TableAlreadyExists, "view"): "Table with same name already exists: {table}",
    (errors.ViewAlreadyExists, "table"): "View with same name already exists: {view}",
}
"""Messages for names that belong to an object of another kind."""


_DETAILS: dict[type[errors.CatalogError], str] = {
    # The default detail names an option that this protocol does not have.
    errors.NamespaceNotEmpty: "Drop what it holds first",
}


def message(error: errors.CatalogError, warehouse: Identifier) -> str:
    """The message of a refusal, without its detail."""
    if isinstance(error, errors.NamespaceNotFound) and _holds(error.namespace, warehouse):
        return f"Warehouse does not exist: {prefixes.spell(warehouse)}"
    key = type(error), getattr(error, "requested", "")
    template = _SAME_NAME.get(key) or TEMPLATES.get(type(error))
    return error.worded(lambda identifier: name(identifier, warehouse), template)


def complete(error: errors.CatalogError, text: str) -> str:
    """The message first, because clients match its words; then the detail, then the index in a
    batch."""
    detail = _DETAILS.get(type(error), error.detail)
    if detail is not None:
        text = f"{text}. {detail}"
    return text if error.operation is None else f"{text} (operation {error.operation})"


def name(identifier: Sequence[str], warehouse: Identifier) -> str:
    """An identifier in the form of a request through this warehouse.

    Objects outside the warehouse have no such name and are not named: a client of a warehouse need
    not know its path in the catalog.
    """
    depth = len(warehouse)
    # The name of the warehouse may have two spellings: that of the request and that of the row.
    if depth and fold(identifier[:depth]) != fold(warehouse):
        return _OUTSIDE
    return errors.label(identifier[depth:])


def _holds(namespace: Identifier, warehouse: Identifier) -> bool:
    """True if a namespace is the warehouse, or one of its ancestors."""
    depth = len(namespace)
    return 0 < depth <= len(warehouse) and fold(warehouse[:depth]) == fold(namespace)
