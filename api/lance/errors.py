"""The Lance form of refusals: a table from class to status and code.

The codes are those of the specification (ErrorResponse.code). Clients decide by the code alone;
the status is for people, proxies and log readers.
"""

from http import HTTPStatus

from lance_namespace_urllib3_client.models import ErrorResponse

from api.errors import (
    BodyTooLarge,
    BodyTooSlow,
    MethodNotAllowed,
    RouteNotFound,
    TooManyRequests,
    UnsupportedEncoding,
)
from api.lance import wording
from catalog import errors

INTERNAL = (HTTPStatus.INTERNAL_SERVER_ERROR, 18)

STATUS_AND_CODE: dict[type[errors.CatalogError], tuple[HTTPStatus, int]] = {
    errors.Unsupported: (HTTPStatus.NOT_ACCEPTABLE, 0),
    RouteNotFound: (HTTPStatus.NOT_FOUND, 0),
    MethodNotAllowed: (HTTPStatus.METHOD_NOT_ALLOWED, 0),
    errors.NamespaceNotFound: (HTTPStatus.NOT_FOUND, 1),
    errors.NamespaceAlreadyExists: (HTTPStatus.CONFLICT, 2),
    errors.NamespaceNotEmpty: (HTTPStatus.CONFLICT, 3),
    errors.TableNotFound: (HTTPStatus.NOT_FOUND, 4),
    errors.TableAlreadyExists: (HTTPStatus.CONFLICT, 5),
    errors.IndexNotFound: (HTTPStatus.NOT_FOUND, 6),
    errors.IndexAlreadyExists: (HTTPStatus.CONFLICT, 7),
    errors.TagNotFound: (HTTPStatus.NOT_FOUND, 8),
    errors.TagAlreadyExists: (HTTPStatus.CONFLICT, 9),
    errors.TransactionNotFound: (HTTPStatus.NOT_FOUND, 10),
    errors.JobNotFound: (HTTPStatus.NOT_FOUND, 10),
    errors.VersionNotFound: (HTTPStatus.NOT_FOUND, 11),
    errors.ManifestNotFound: (HTTPStatus.NOT_FOUND, 11),
    errors.ColumnNotFound: (HTTPStatus.NOT_FOUND, 12),
    errors.InvalidInput: (HTTPStatus.BAD_REQUEST, 13),
    errors.InvalidIdentifier: (HTTPStatus.BAD_REQUEST, 13),
    errors.InvalidLocation: (HTTPStatus.BAD_REQUEST, 13),
    errors.ForeignFile: (HTTPStatus.BAD_REQUEST, 13),
    errors.InvalidManifestPath: (HTTPStatus.BAD_REQUEST, 13),
    errors.InvalidTransactionState: (HTTPStatus.BAD_REQUEST, 13),
    errors.InvalidJobState: (HTTPStatus.BAD_REQUEST, 13),
    errors.InvalidMetadata: (HTTPStatus.BAD_REQUEST, 13),
    BodyTooLarge: (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, 13),
    BodyTooSlow: (HTTPStatus.REQUEST_TIMEOUT, 13),
    UnsupportedEncoding: (HTTPStatus.UNSUPPORTED_MEDIA_TYPE, 13),
    errors.DataTooLarge: (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, 13),
    errors.VersionAlreadyExists: (HTTPStatus.CONFLICT, 14),
    errors.PropertyAlreadySet: (HTTPStatus.CONFLICT, 14),
    errors.LocationTaken: (HTTPStatus.CONFLICT, 14),
    errors.RequirementFailed: (HTTPStatus.CONFLICT, 14),
    errors.PermissionDenied: (HTTPStatus.FORBIDDEN, 15),
    errors.Unauthenticated: (HTTPStatus.UNAUTHORIZED, 16),
    errors.TokenExpired: (HTTPStatus.UNAUTHORIZED, 16),
    errors.ServiceUnavailable: (HTTPStatus.SERVICE_UNAVAILABLE, 17),
    errors.Busy: (HTTPStatus.SERVICE_UNAVAILABLE, 17),
    errors.InvalidTableState: (HTTPStatus.CONFLICT, 19),
    errors.TableHasNoData: (HTTPStatus.CONFLICT, 19),
    errors.CredentialsRefused: (HTTPStatus.CONFLICT, 19),
    errors.SchemaMismatch: (HTTPStatus.BAD_REQUEST, 20),
    errors.TooManyAttempts: (HTTPStatus.TOO_MANY_REQUESTS, 21),
    TooManyRequests: (HTTPStatus.TOO_MANY_REQUESTS, 21),
    errors.BranchNotFound: (HTTPStatus.NOT_FOUND, 22),
    errors.BranchAlreadyExists: (HTTPStatus.CONFLICT, 23),
    errors.ContradictoryInput: (HTTPStatus.BAD_REQUEST, 13),
    errors.WarehouseNotFound: (HTTPStatus.NOT_FOUND, 1),
    errors.ViewNotFound: (HTTPStatus.NOT_FOUND, 4),
    errors.FunctionNotFound: (HTTPStatus.NOT_FOUND, 4),
    errors.LabelNotFound: (HTTPStatus.NOT_FOUND, 4),
    errors.WebhookNotFound: (HTTPStatus.NOT_FOUND, 4),
    errors.PrincipalNotFound: (HTTPStatus.NOT_FOUND, 4),
    errors.KeyNotFound: (HTTPStatus.NOT_FOUND, 4),
    errors.TrashItemNotFound: (HTTPStatus.NOT_FOUND, 4),
    errors.ApprovalNotFound: (HTTPStatus.NOT_FOUND, 10),
    errors.InvalidApprovalState: (HTTPStatus.BAD_REQUEST, 13),
    errors.NotRecoverable: (HTTPStatus.CONFLICT, 14),
    errors.ApprovalOutdated: (HTTPStatus.CONFLICT, 14),
    # Not allowed in the current state for any principal, and not for the caller alone.
    errors.Protected: (HTTPStatus.CONFLICT, 19),
    errors.ApprovalRequired: (HTTPStatus.FORBIDDEN, 15),
    errors.PlanNotFound: (HTTPStatus.NOT_FOUND, 4),
    errors.PlanTaskNotFound: (HTTPStatus.NOT_FOUND, 4),
    errors.ViewAlreadyExists: (HTTPStatus.CONFLICT, 5),
    errors.CannotRename: (HTTPStatus.CONFLICT, 5),
    errors.FunctionAlreadyExists: (HTTPStatus.CONFLICT, 5),
    errors.LabelAlreadyExists: (HTTPStatus.CONFLICT, 14),
    errors.LabelInUse: (HTTPStatus.CONFLICT, 14),
    errors.StorageProfileNotFound: (HTTPStatus.NOT_FOUND, 4),
    errors.EngineProfileNotFound: (HTTPStatus.NOT_FOUND, 4),
    errors.StorageTestNotFound: (HTTPStatus.NOT_FOUND, 4),
    errors.StorageProfileAlreadyExists: (HTTPStatus.CONFLICT, 14),
    errors.StorageProfileInUse: (HTTPStatus.CONFLICT, 14),
    errors.EngineProfileAlreadyExists: (HTTPStatus.CONFLICT, 14),
    errors.EngineProfileInUse: (HTTPStatus.CONFLICT, 14),
    errors.PrincipalAlreadyExists: (HTTPStatus.CONFLICT, 14),
    errors.LastAdministrator: (HTTPStatus.CONFLICT, 14),
    errors.CommitConflict: (HTTPStatus.CONFLICT, 14),
    errors.OutcomeUnknown: (HTTPStatus.INTERNAL_SERVER_ERROR, 18),
    # Base classes that are never raised; their subclasses are above.
    errors.NotFound: (HTTPStatus.NOT_FOUND, 4),
    errors.Conflict: (HTTPStatus.CONFLICT, 14),
}

_EXTRA_HEADERS: dict[type[errors.CatalogError], dict[str, str]] = {
    errors.Unauthenticated: {"WWW-Authenticate": "Bearer"},
    errors.TokenExpired: {"WWW-Authenticate": 'Bearer error="invalid_token"'},
    UnsupportedEncoding: {"Accept-Encoding": "gzip"},
}


def answer(error: errors.CatalogError, instance: str) -> tuple[HTTPStatus, bytes, dict[str, str]]:
    """Status, body and extra headers of a refusal. ``instance`` is the request's path."""
    status, code = STATUS_AND_CODE[type(error)]
    message = wording.message(error)
    if error.operation is not None:
        message = f"Operation {error.operation}: {message}"
    headers = dict(_EXTRA_HEADERS.get(type(error), {}))
    if isinstance(error, MethodNotAllowed):
        headers["Allow"] = error.allowed
    if isinstance(error, (errors.TooManyAttempts, TooManyRequests)):
        headers["Retry-After"] = str(error.seconds)
    elif isinstance(error, errors.ServiceUnavailable):
        headers["Retry-After"] = str(error.retry_seconds)
    return status, body(code, message, error.detail, instance), headers


def body(code: int, message: str, detail: str | None, instance: str) -> bytes:
    form = ErrorResponse(code=code, error=message, detail=detail, instance=instance)
    return form.model_dump_json(exclude_none=True).encode()
