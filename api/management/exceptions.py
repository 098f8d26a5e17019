"""The exception handler: every failure of an operation as problem details."""

import logging
from collections.abc import Mapping
from typing import Any

from django.db import DatabaseError
from django.http import HttpResponse
from rest_framework import exceptions

from api import failures
from api.errors import MethodNotAllowed
from api.front import marker
from api.management import errors
from api.request_id import request_id
from catalog.errors import CatalogError, InvalidInput, PermissionDenied, Unauthenticated

log = logging.getLogger(__name__)


class BodyAwaited(Exception):
    """The credentials are valid, and the body has not been read yet."""


def handle(error: Exception, context: Mapping[str, Any]) -> HttpResponse:
    """Return the response to an exception. Refusals that concern the audit trail are recorded there."""
    if isinstance(error, BodyAwaited):
        return marker.Proceed()
    view = context["view"]
    request = view.request._request  # noqa: SLF001 -- Django's request
    if isinstance(error, exceptions.APIException):
        error = _as_catalog_error(error, view)
    refusal = failures.as_refusal(error, view.actor, changes=view.changes)
    if refusal is None:
        log.error("%s failed", view.operation, exc_info=error)
        kind = "database" if isinstance(error, DatabaseError) else "server"
        status, title = errors.INTERNAL
        text = (
            f"An unexpected {kind} error; the log has it under this request id:"
            f" request id {request_id.get()}"
        )
        return _problem(request.method, status, errors.body(status, title, text, request.path), {})
    failures.note(
        refusal,
        request,
        view.actor,
        interface=view.interface,
        operation=view.operation,
        target=view.audit_target,
        changes=view.changes,
    )
    status, content, headers = errors.answer(refusal, request.path)
    return _problem(request.method, status, content, headers)


def _problem(
    method: str | None, status: int, content: bytes, headers: Mapping[str, str]
) -> HttpResponse:
    if method == "HEAD":
        content = b""
    return HttpResponse(content, status=status, content_type=errors.MEDIA, headers=dict(headers))


def _as_catalog_error(error: exceptions.APIException, view: Any) -> CatalogError:
    """Return the error of the catalog, or of the protocol, for an exception of REST framework."""
    match error:
        case exceptions.ValidationError():
            return InvalidInput(first_message(error.detail))
        case exceptions.MethodNotAllowed():
            return MethodNotAllowed(view.request.method or "", ", ".join(view.allowed_methods))
        case exceptions.NotAuthenticated():
            return Unauthenticated(str(error.detail))
        case exceptions.PermissionDenied():
            return PermissionDenied(str(error.detail))
    return InvalidInput(str(error.detail))


def first_message(detail: Any, path: str = "") -> str:
    """Return the first message of a validation error, after the path of the field: ``a.b: message``."""
    if isinstance(detail, Mapping):
        name, inner = next(iter(detail.items()))
        if name == "non_field_errors":
            return first_message(inner, path)
        return first_message(inner, f"{path}.{name}" if path else str(name))
    if isinstance(detail, list):
        index, inner = next((pair for pair in enumerate(detail) if pair[1]), (0, ""))
        if isinstance(inner, Mapping):
            return first_message(inner, f"{path}.{index}" if path else str(index))
        return first_message(inner, path)
    return f"{path}: {detail}" if path else f"The request body is not valid: {detail}"
