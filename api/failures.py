"""Failures of requests: their classification, logging and audit records."""

import logging
from functools import lru_cache

from django.db import DatabaseError, DataError, InterfaceError
from django.http import HttpRequest

from api.credentials import presented_key
from api.request_id import request_id
from catalog import identifiers
from catalog.access import Principal
from catalog.errors import (
    CatalogError,
    CredentialsRefused,
    InvalidInput,
    NamespaceNotFound,
    OutcomeUnknown,
    ServiceUnavailable,
    TableNotFound,
)
from catalog.postgresql import outcomes
from catalog.services.audit import refusals
from catalog.services.engine import operation as engine_operation
from catalog.services.tables import spelling
from catalog.storage import stores
from catalog.storage.stores import AccessDenied, StorageUnavailable

log = logging.getLogger(__name__)


def as_refusal(error: Exception, actor: Principal | None, *, changes: bool) -> CatalogError | None:
    """Return the refusal for an exception, or None for an internal error.

    ``changes``: True if the operation writes, so that its outcome is unknown after a lost connection.
    """
    refusal: Exception | None = error
    if isinstance(error, DataError):
        # What PostgreSQL cannot store, such as a NUL character in a value.
        refusal = InvalidInput(f"A value cannot be stored: {first_line(error)}")
    elif isinstance(error, (DatabaseError, InterfaceError)):
        refusal = _database_refusal(error, changes=changes)
    elif isinstance(error, (AccessDenied, StorageUnavailable)):
        log.error("An object store failed: %s", error.strerror)
        refusal = ServiceUnavailable(
            f"The {error.strerror}; try again later", retry_seconds=stores.retry_seconds(error)
        )
    has_committed = actor is not None and actor.progress.committed
    if isinstance(refusal, (ServiceUnavailable, CredentialsRefused)) and has_committed:
        refusal = OutcomeUnknown(
            f"The change was made, and what follows it failed: {refusal.message}"
        )
    if isinstance(refusal, (NamespaceNotFound, TableNotFound)) and actor is not None:
        _add_hint(refusal, actor)
    return refusal if isinstance(refusal, CatalogError) else None


def _add_hint(refusal: NamespaceNotFound | TableNotFound, actor: Principal) -> None:
    """Name the right id, if a single name with dots is that of an existing object with its levels."""
    try:
        name = spelling.levels_of(actor=actor, name=refusal.identifier)
    except (DatabaseError, InterfaceError):  # the refusal is more useful than this error
        return
    if name is not None and refusal.detail is None:
        joined = identifiers.DEFAULT_DELIMITER.join(name)
        refusal.detail = (
            f"The levels of an id are joined by $, not by dots: '{joined}' exists. In a list of names,"
            " each level is one entry"
        )


def _database_refusal(
    error: DatabaseError | InterfaceError, *, changes: bool
) -> CatalogError | None:
    refusal = outcomes.refusal(error)
    if refusal is None:
        return None
    log.error("The database failed: %s", first_line(error))
    if isinstance(error, outcomes.OutcomeLost) and changes:
        return OutcomeUnknown(
            "The database was lost during the change, so its outcome is not known",
            detail="Read what the request was to change before you send it again.",
        )
    return refusal


def note(
    error: CatalogError,
    request: HttpRequest,
    actor: Principal | None,
    *,
    interface: str,
    operation: str,
    target: str,
    changes: bool,
) -> None:
    """Queue the audit record of a refusal, which another thread writes, if the trail records such
    refusals."""
    if refusals.concerns(error, actor, changes=changes):
        refusals.note(
            error,
            actor=actor,
            interface=interface,
            action=_action(operation),
            target=target,
            presented_key=presented_key(request) or "",
            address=request.META.get("REMOTE_ADDR", ""),
            request_id=request_id.get(),
        )


@lru_cache(maxsize=1024)
def _action(name: str, among: type[engine_operation.Operation] = engine_operation.Operation) -> str:
    """Return the action under which the audit trail records the operation, by default its name."""
    for kind in among.__subclasses__():
        if kind.__dict__.get("name") == name:
            return kind.action
        action = _action(name, kind)
        if action != name:
            return action
    return name


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
