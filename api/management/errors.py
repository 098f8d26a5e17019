"""Problem details (RFC 9457): the status and the title of each class of refusals.

The type of a problem is a URN derived from its title, such as ``urn:monodon:table-not-found``. Clients
decide by the type or by the status.
"""

import orjson

from api.errors import (
    BodyTooLarge,
    BodyTooSlow,
    MethodNotAllowed,
    RouteNotFound,
    TooManyRequests,
    UnsupportedEncoding,
)
from api.request_id import request_id
from catalog import errors

MEDIA = "application/problem+json"
INTERNAL = (500, "Internal server error")

STATUS_AND_TITLE: dict[type[errors.CatalogError], tuple[int, str]] = {
    errors.InvalidInput: (400, "Invalid input"),
    errors.InvalidIdentifier: (400, "Invalid identifier"),
    errors.InvalidLocation: (400, "Invalid location"),
    errors.ForeignFile: (400, "Foreign file"),
    errors.InvalidManifestPath: (400, "Invalid manifest path"),
    errors.InvalidMetadata: (400, "Invalid metadata"),
    errors.SchemaMismatch: (400, "Schema mismatch"),
    errors.ContradictoryInput: (400, "Contradictory input"),
    errors.Unauthenticated: (401, "Unauthenticated"),
    errors.TokenExpired: (401, "Token expired"),
    errors.PermissionDenied: (403, "Permission denied"),
    RouteNotFound: (404, "Route not found"),
    errors.NotFound: (404, "Not found"),
    errors.NamespaceNotFound: (404, "Namespace not found"),
    errors.TableNotFound: (404, "Table not found"),
    errors.VersionNotFound: (404, "Version not found"),
    errors.ManifestNotFound: (404, "Manifest not found"),
    errors.BranchNotFound: (404, "Branch not found"),
    errors.TagNotFound: (404, "Tag not found"),
    errors.ColumnNotFound: (404, "Column not found"),
    errors.IndexNotFound: (404, "Index not found"),
    errors.TransactionNotFound: (404, "Transaction not found"),
    errors.JobNotFound: (404, "Job not found"),
    errors.WarehouseNotFound: (404, "Warehouse not found"),
    errors.ViewNotFound: (404, "View not found"),
    errors.FunctionNotFound: (404, "Function not found"),
    errors.LabelNotFound: (404, "Label not found"),
    errors.WebhookNotFound: (404, "Webhook not found"),
    errors.StorageProfileNotFound: (404, "Storage profile not found"),
    errors.EngineProfileNotFound: (404, "Engine profile not found"),
    errors.StorageTestNotFound: (404, "Storage test not found"),
    errors.PrincipalNotFound: (404, "Principal not found"),
    errors.KeyNotFound: (404, "Key not found"),
    errors.TrashItemNotFound: (404, "Not in the trash"),
    errors.ApprovalNotFound: (404, "Approval request not found"),
    errors.PlanNotFound: (404, "Plan not found"),
    errors.PlanTaskNotFound: (404, "Plan task not found"),
    MethodNotAllowed: (405, "Method not allowed"),
    errors.Conflict: (409, "Conflict"),
    errors.NamespaceAlreadyExists: (409, "Namespace already exists"),
    errors.NamespaceNotEmpty: (409, "Namespace not empty"),
    errors.TableAlreadyExists: (409, "Table already exists"),
    errors.ViewAlreadyExists: (409, "View already exists"),
    errors.CannotRename: (409, "Cannot rename"),
    errors.FunctionAlreadyExists: (409, "Function already exists"),
    errors.LabelAlreadyExists: (409, "Label already exists"),
    errors.LabelInUse: (409, "Label in use"),
    errors.StorageProfileAlreadyExists: (409, "Storage profile already exists"),
    errors.StorageProfileInUse: (409, "Storage profile in use"),
    errors.EngineProfileAlreadyExists: (409, "Engine profile already exists"),
    errors.EngineProfileInUse: (409, "Engine profile in use"),
    errors.PrincipalAlreadyExists: (409, "Principal already exists"),
    errors.LastAdministrator: (409, "Last administrator"),
    errors.VersionAlreadyExists: (409, "Version already exists"),
    errors.TagAlreadyExists: (409, "Tag already exists"),
    errors.BranchAlreadyExists: (409, "Branch already exists"),
    errors.IndexAlreadyExists: (409, "Index already exists"),
    errors.PropertyAlreadySet: (409, "Property already set"),
    errors.LocationTaken: (409, "Location taken"),
    errors.RequirementFailed: (409, "Requirement failed"),
    errors.CommitConflict: (409, "Commit conflict"),
    errors.InvalidTableState: (409, "Invalid table state"),
    errors.TableHasNoData: (409, "Table has no data"),
    errors.CredentialsRefused: (409, "Credentials refused"),
    errors.InvalidTransactionState: (409, "Invalid transaction state"),
    errors.InvalidJobState: (409, "Invalid job state"),
    errors.InvalidApprovalState: (409, "Invalid approval state"),
    errors.NotRecoverable: (409, "Not recoverable"),
    errors.ApprovalOutdated: (409, "Approval outdated"),
    errors.Protected: (409, "Protected"),
    errors.ApprovalRequired: (409, "Approval required"),
    BodyTooSlow: (408, "Body too slow"),
    BodyTooLarge: (413, "Body too large"),
    UnsupportedEncoding: (415, "Unsupported encoding"),
    errors.DataTooLarge: (413, "Data too large"),
    errors.TooManyAttempts: (429, "Too many attempts"),
    TooManyRequests: (429, "Too many requests"),
    errors.OutcomeUnknown: (500, "Outcome unknown"),
    errors.Unsupported: (501, "Unsupported"),
    errors.ServiceUnavailable: (503, "Service unavailable"),
    errors.Busy: (503, "Busy"),
}

_EXTRA_HEADERS: dict[type[errors.CatalogError], dict[str, str]] = {
    errors.Unauthenticated: {"WWW-Authenticate": "Bearer"},
    errors.TokenExpired: {"WWW-Authenticate": 'Bearer error="invalid_token"'},
    UnsupportedEncoding: {"Accept-Encoding": "gzip"},
}


def answer(error: errors.CatalogError, instance: str) -> tuple[int, bytes, dict[str, str]]:
    """Return the status, the body and the extra headers of a refusal. ``instance``: the request's path."""
    status, title = STATUS_AND_TITLE[type(error)]
    headers = dict(_EXTRA_HEADERS.get(type(error), {}))
    if isinstance(error, MethodNotAllowed):
        headers["Allow"] = error.allowed
    if isinstance(error, (errors.TooManyAttempts, TooManyRequests)):
        headers["Retry-After"] = str(error.seconds)
    elif isinstance(error, errors.ServiceUnavailable):
        headers["Retry-After"] = str(error.retry_seconds)
    text = error.message if error.detail is None else f"{error.message}. {error.detail}"
    return status, body(status, title, text, instance), headers


def body(status: int, title: str, detail: str, instance: str) -> bytes:
    problem = {
        "type": kind(title),
        "title": title,
        "status": status,
        "detail": _text(detail),
        "instance": _text(instance),
        "request_id": request_id.get(),
    }
    return orjson.dumps(problem)


def kind(title: str) -> str:
    return f"urn:monodon:{title.lower().replace(' ', '-')}"


def _text(text: str) -> str:
    """Replace halves of surrogate pairs, which a path may contain and JSON may not."""
    return text.encode("utf-8", "replace").decode()
