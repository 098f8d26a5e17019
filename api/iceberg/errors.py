"""The Iceberg form of refusals: a table from class to status and type.

Clients decide by the status, and for the same status by the type. Some match words of the message,
which are in ``wording.py``.
"""

from collections.abc import Mapping
from http import HTTPStatus

import orjson

from api.errors import (
    BodyTooLarge,
    BodyTooSlow,
    MethodNotAllowed,
    RouteNotFound,
    TooManyRequests,
    UnsupportedEncoding,
)
from catalog import errors

_TIMEOUT = 419  # defined by the specification, not by an RFC

INTERNAL = (500, "InternalServerError")
COMMIT_FAILED = (409, "CommitFailedException")
COMMIT_STATE_UNKNOWN = (500, "CommitStateUnknownException")
RETRY = {"Retry-After": "1"}

STATUS_AND_TYPE: dict[type[errors.CatalogError], tuple[int, str]] = {
    errors.InvalidInput: (400, "BadRequestException"),
    errors.InvalidIdentifier: (400, "BadRequestException"),
    errors.InvalidLocation: (400, "BadRequestException"),
    errors.ForeignFile: (400, "BadRequestException"),
    errors.InvalidManifestPath: (400, "BadRequestException"),
    errors.InvalidTransactionState: (400, "BadRequestException"),
    errors.InvalidJobState: (400, "BadRequestException"),
    errors.InvalidApprovalState: (400, "BadRequestException"),
    errors.InvalidMetadata: (400, "BadRequestException"),
    errors.SchemaMismatch: (400, "BadRequestException"),
    errors.DataTooLarge: (400, "BadRequestException"),
    errors.Unauthenticated: (401, "NotAuthorizedException"),
    errors.PermissionDenied: (403, "NotAuthorizedException"),
    # Not 409, which Iceberg's clients interpret as "exists already" or "is not empty".
    errors.Protected: (403, "NotAuthorizedException"),
    errors.CredentialsRefused: (403, "NotAuthorizedException"),
    errors.ApprovalRequired: (403, "NotAuthorizedException"),
    errors.NamespaceNotFound: (404, "NoSuchNamespaceException"),
    errors.TableNotFound: (404, "NoSuchTableException"),
    errors.VersionNotFound: (404, "NoSuchTableException"),
    errors.ManifestNotFound: (404, "NoSuchTableException"),
    errors.BranchNotFound: (404, "NoSuchTableException"),
    errors.TagNotFound: (404, "NoSuchTableException"),
    errors.ColumnNotFound: (404, "NotFoundException"),
    errors.IndexNotFound: (404, "NotFoundException"),
    errors.TransactionNotFound: (404, "NotFoundException"),
    errors.JobNotFound: (404, "NotFoundException"),
    errors.WarehouseNotFound: (404, "NoSuchWarehouseException"),
    errors.ViewNotFound: (404, "NoSuchViewException"),
    errors.FunctionNotFound: (404, "NoSuchFunctionException"),
    errors.LabelNotFound: (404, "NotFoundException"),
    errors.WebhookNotFound: (404, "NotFoundException"),
    errors.StorageProfileNotFound: (404, "NotFoundException"),
    errors.EngineProfileNotFound: (404, "NotFoundException"),
    errors.StorageTestNotFound: (404, "NotFoundException"),
    errors.PrincipalNotFound: (404, "NotFoundException"),
    errors.KeyNotFound: (404, "NotFoundException"),
    errors.TrashItemNotFound: (404, "NotFoundException"),
    errors.ApprovalNotFound: (404, "NotFoundException"),
    errors.PlanNotFound: (404, "NoSuchPlanIdException"),
    errors.PlanTaskNotFound: (404, "NoSuchPlanTaskException"),
    RouteNotFound: (404, "NotFoundException"),
    MethodNotAllowed: (405, "MethodNotAllowedException"),
    errors.Unsupported: (406, "UnsupportedOperationException"),
    errors.NamespaceAlreadyExists: (409, "AlreadyExistsException"),
    errors.TableAlreadyExists: (409, "AlreadyExistsException"),
    errors.ViewAlreadyExists: (409, "AlreadyExistsException"),
    errors.CannotRename: (409, "AlreadyExistsException"),
    errors.FunctionAlreadyExists: (409, "AlreadyExistsException"),
    errors.VersionAlreadyExists: (409, "AlreadyExistsException"),
    errors.TagAlreadyExists: (409, "AlreadyExistsException"),
    errors.BranchAlreadyExists: (409, "AlreadyExistsException"),
    errors.IndexAlreadyExists: (409, "AlreadyExistsException"),
    errors.PropertyAlreadySet: (409, "AlreadyExistsException"),
    errors.LocationTaken: (409, "AlreadyExistsException"),
    errors.LabelAlreadyExists: (409, "AlreadyExistsException"),
    errors.LabelInUse: COMMIT_FAILED,
    errors.StorageProfileAlreadyExists: (409, "AlreadyExistsException"),
    errors.StorageProfileInUse: COMMIT_FAILED,
    errors.EngineProfileAlreadyExists: (409, "AlreadyExistsException"),
    errors.EngineProfileInUse: COMMIT_FAILED,
    errors.PrincipalAlreadyExists: (409, "AlreadyExistsException"),
    errors.LastAdministrator: COMMIT_FAILED,
    errors.NotRecoverable: COMMIT_FAILED,
    errors.ApprovalOutdated: COMMIT_FAILED,
    errors.NamespaceNotEmpty: (409, "NamespaceNotEmptyException"),
    errors.RequirementFailed: COMMIT_FAILED,
    errors.CommitConflict: COMMIT_FAILED,
    errors.InvalidTableState: COMMIT_FAILED,
    errors.TableHasNoData: COMMIT_FAILED,
    BodyTooSlow: (408, "BadRequestException"),
    BodyTooLarge: (413, "BadRequestException"),
    UnsupportedEncoding: (415, "BadRequestException"),
    errors.TokenExpired: (_TIMEOUT, "AuthenticationTimeoutException"),
    errors.ContradictoryInput: (422, "UnprocessableEntityException"),
    errors.TooManyAttempts: (429, "TooManyRequestsException"),
    TooManyRequests: (429, "TooManyRequestsException"),
    errors.OutcomeUnknown: COMMIT_STATE_UNKNOWN,
    errors.ServiceUnavailable: (503, "SlowDownException"),
    errors.Busy: (503, "SlowDownException"),
    # Base classes that are never raised; their subclasses are above.
    errors.NotFound: (404, "NotFoundException"),
    errors.Conflict: COMMIT_FAILED,
}

_EXTRA_HEADERS: dict[type[errors.CatalogError], dict[str, str]] = {
    errors.Unauthenticated: {"WWW-Authenticate": "Bearer"},
    errors.TokenExpired: {"WWW-Authenticate": 'Bearer error="invalid_token"'},
    UnsupportedEncoding: {"Accept-Encoding": "gzip"},
}
# Refusals that may not recur with another credential or at another time.
_PASSING = (errors.ServiceUnavailable, errors.CommitConflict)
_PASSING_STATUSES = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, _TIMEOUT, 429}


def answer(
    error: errors.CatalogError, text: str, types: Mapping[type[errors.CatalogError], str]
) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and extra headers of a refusal. ``types`` replaces types of the table."""
    status, kind = STATUS_AND_TYPE[type(error)]
    kind = types.get(type(error), kind)
    headers = dict(_EXTRA_HEADERS.get(type(error), {}))
    if isinstance(error, MethodNotAllowed):
        headers["Allow"] = error.allowed
    if isinstance(error, (errors.TooManyAttempts, TooManyRequests)):
        headers["Retry-After"] = str(error.seconds)
    elif isinstance(error, errors.ServiceUnavailable):
        headers["Retry-After"] = str(error.retry_seconds)
    return status, body(status, kind, text), headers


def body(status: int, kind: str, text: str) -> bytes:
    return orjson.dumps({"error": {"message": text, "type": kind, "code": status}})


def is_final(error: errors.CatalogError) -> bool:
    """True if a repeated request must get the same refusal (Idempotency-Key)."""
    status, _ = STATUS_AND_TYPE[type(error)]
    return (
        400 <= status < 500 and status not in _PASSING_STATUSES and not isinstance(error, _PASSING)
    )
