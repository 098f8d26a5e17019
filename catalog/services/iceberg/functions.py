"""User-defined functions: listing, loading and changing them."""

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from django.db import IntegrityError, transaction

from catalog import access
from catalog.access import On, Principal
from catalog.errors import (
    CommitConflict,
    FunctionAlreadyExists,
    FunctionNotFound,
    InvalidIdentifier,
    NamespaceNotFound,
)
from catalog.formats.iceberg import functions
from catalog.formats.iceberg.reading import Document
from catalog.identifiers import Identifier, check_name, check_table, digest, label
from catalog.models import Function, Namespace
from catalog.postgresql.cursors import hot_cursor
from catalog.privileges import Privilege
from catalog.services.engine import audit_records, locks

_LIST = """
    SELECT ARRAY(
        SELECT name FROM catalog_function
        WHERE namespace_id = n.id AND name > %s
        ORDER BY name LIMIT %s
    )
    FROM catalog_namespace n
    WHERE n.digest = %s AND n.dropped_at IS NULL
"""


@dataclass(frozen=True, kw_only=True)
class Content:
    """The part of a function's metadata that a person enters; the rest is derived."""

    definitions: object
    """FunctionDefinitions; ids, times and current versions are optional."""
    doc: str = ""
    secure: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)


def list_functions(
    *,
    actor: Principal,
    namespace: Identifier,
    limit: int | None = None,
    page_token: str | None = None,
) -> tuple[list[str], str | None]:
    """A page of the names of a namespace's functions, and the token of the next page.

    Without a limit, all of them. Raises NamespaceNotFound. One statement.
    """
    access.require(actor, Privilege.BROWSE, On.namespace(namespace))
    cursor = hot_cursor()
    more = limit + 1 if limit is not None else None
    cursor.execute(_LIST, [page_token or "", more, digest(namespace)])
    row = cursor.fetchone()
    if row is None:
        raise NamespaceNotFound(namespace)
    names: list[str] = row[0]
    if limit is None or len(names) <= limit:
        return names, None
    return names[:limit], names[limit - 1]


def load_function(*, actor: Principal, function: Identifier) -> Function:
    """A function. One statement. Raises NamespaceNotFound, FunctionNotFound."""
    access.require(actor, Privilege.READ, On.namespace(function[:-1]))
    row = Function.objects.filter(
        namespace__digest=digest(function[:-1]), namespace__dropped_at=None, name=function[-1]
    ).first()
    if row is None:
        if not Namespace.objects.named(function[:-1]).exists():
            raise NamespaceNotFound(function[:-1])
        raise FunctionNotFound(function)
    return row


def create_function(*, actor: Principal, function: Identifier, content: Content) -> Function:
    """Define a function. Raises NamespaceNotFound, InvalidMetadata, FunctionAlreadyExists."""
    check_table(function)
    if len(function) == 1:
        raise InvalidIdentifier("The root namespace holds no functions")
    now = _now_ms()
    metadata: Document = {"function-uuid": str(uuid.uuid4()), "format-version": 1}
    metadata |= _metadata_of(content, now)
    metadata["definition-log"] = []
    functions.check(metadata)
    metadata["definition-log"] = [functions.log_entry(metadata, now)]
    try:
        with transaction.atomic():
            namespace = _lock(actor, function[:-1])
            row = Function(
                namespace=namespace,
                name=check_name(function[-1]),
                metadata=metadata,
                owner=actor.name,
            )
            row.save(force_insert=True)
            audit_records.record(
                actor, "function.create", label(function), after=_audit_values(metadata)
            )
    except IntegrityError as error:
        raise FunctionAlreadyExists(function) from error
    return row


def update_function(
    *,
    actor: Principal,
    function: Identifier,
    content: Content,
    seen_at: datetime | None = None,
) -> Function:
    """Replace the definition of a function; existing versions cannot change.

    ``seen_at`` is the time of the last change that the caller has seen. Raises FunctionNotFound,
    NamespaceNotFound, InvalidMetadata; CommitConflict when the function was changed since.
    """
    now = _now_ms()
    with transaction.atomic():
        row = _find(_lock(actor, function[:-1]), function)
        if seen_at is not None and row.updated_at != seen_at:
            raise CommitConflict("Function '{function}' was changed meanwhile", function=function)
        before: Document = row.metadata
        metadata = {
            key: before[key] for key in before if key not in {"doc", "properties", "secure"}
        }
        metadata |= _metadata_of(content, now)
        functions.check(metadata)
        functions.check_successor(metadata, before)
        entry = functions.log_entry(metadata, now)
        log = metadata["definition-log"]
        if not log or log[-1]["definition-versions"] != entry["definition-versions"]:
            metadata["definition-log"] = [*log, entry]
        row.metadata = metadata
        row.save(update_fields=["metadata", "updated_at"])
        audit_records.record(
            actor,
            "function.update",
            label(function),
            before=_audit_values(before),
            after=_audit_values(metadata),
        )
    return row


def drop_function(*, actor: Principal, function: Identifier) -> None:
    """Remove a function. Raises FunctionNotFound, NamespaceNotFound."""
    with transaction.atomic():
        row = _find(_lock(actor, function[:-1]), function)
        row.delete()
        audit_records.record(
            actor, "function.drop", label(function), before=_audit_values(row.metadata)
        )


def _lock(actor: Principal, namespace: Identifier) -> Namespace:
    """Lock the namespace, which serializes the changes of its functions."""
    row = locks.lock_namespaces([namespace]).get(digest(namespace))
    if row is None:
        raise NamespaceNotFound(namespace)
    access.require(actor, Privilege.CREATE, row)
    return row


def _find(namespace: Namespace, function: Identifier) -> Function:
    row = Function.objects.filter(namespace=namespace, name=function[-1]).first()
    if row is None:
        raise FunctionNotFound(function)
    return row


def _metadata_of(content: Content, now: int) -> Document:
    metadata: Document = {"definitions": functions.complete(content.definitions, now)}
    if content.doc:
        metadata["doc"] = content.doc
    if content.secure:
        metadata["secure"] = True
    if content.properties:
        metadata["properties"] = dict(content.properties)
    return metadata


def _audit_values(metadata: Document) -> Document:
    """The values for the audit trail: the current versions, without the body of a secure function."""
    return {
        "definitions": {
            definition["definition-id"]: definition["current-version-id"]
            for definition in metadata["definitions"]
        },
        "doc": metadata.get("doc", ""),
        "secure": metadata.get("secure", False),
        "properties": metadata.get("properties", {}),
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
