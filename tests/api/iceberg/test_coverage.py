"""Every operation has a test, and every error of the catalog has a status and a type."""

import re
from pathlib import Path

from api.errors import BodyTooLarge, MethodNotAllowed, RouteNotFound
from api.iceberg import errors, urls, wording
from api.iceberg.operation import IcebergOperation
from catalog.errors import CatalogError, InvalidInput, ServiceUnavailable, TableNotFound

_MARK = re.compile(r'mark\.operation\("(\w+)"\)')


def operations() -> dict[str, type[IcebergOperation]]:
    """The operations of the routes, by the specification's operationId."""
    return {
        operation.__name__[0].lower() + operation.__name__[1:]: operation
        for operations in urls.ROUTES.values()
        for operation in operations.values()
    }


def marked() -> set[str]:
    """The operations whose tests are marked, in files that have tests."""
    operation_ids = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        text = path.read_text()
        if "\ndef test_" in text:
            operation_ids.update(_MARK.findall(text))
    return operation_ids


def test_every_operation_has_a_test():
    assert set(operations()) - marked() == set()


def test_every_mark_names_an_existing_operation():
    assert marked() - set(operations()) == set()


def test_routes_have_the_methods_of_their_operations():
    for template, served in urls.ROUTES.items():
        for method, operation in served.items():
            assert operation.verb == method, template


def test_writing_operations_are_marked():
    for name, operation in operations().items():
        writes = operation.verb in {"POST", "DELETE"} and name not in {
            *("getToken", "reportMetrics", "signRequest", "planTableScan", "fetchScanTasks"),
            "cancelPlanning",
        }
        assert operation.changes == writes, name


def _subclasses(base: type) -> set[type]:
    direct = set(base.__subclasses__())
    return direct.union(*(_subclasses(subclass) for subclass in direct))


def test_every_refusal_has_a_status_and_a_type():
    refusals = {
        c
        for c in _subclasses(CatalogError)
        if c.__module__.startswith(("catalog.errors.", "api.errors"))
    }
    assert refusals - set(errors.STATUS_AND_TYPE) == set()
    assert {BodyTooLarge, MethodNotAllowed, RouteNotFound} <= refusals


def test_types_agree_with_statuses():
    """The specification's examples have these types and statuses."""
    by_type = {
        "BadRequestException": {400, 408, 413, 415},
        "NotAuthorizedException": {401, 403},
        "MethodNotAllowedException": {405},
        "UnsupportedOperationException": {406},
        "AlreadyExistsException": {409},
        "NamespaceNotEmptyException": {409},
        "CommitFailedException": {409},
        "AuthenticationTimeoutException": {419},
        "UnprocessableEntityException": {422},
        "TooManyRequestsException": {429},
        "CommitStateUnknownException": {500},
        "SlowDownException": {503},
    }
    for refusal, (status, kind) in errors.STATUS_AND_TYPE.items():
        expected = by_type.get(kind, {404} if kind.startswith(("NoSuch", "NotFound")) else set())
        assert status in expected, refusal


def message_of(error: CatalogError, warehouse: tuple[str, ...] = ()) -> str:
    return wording.complete(error, wording.message(error, warehouse))


def test_a_message_begins_with_the_cause():
    error = TableNotFound(("a", "t"), detail="A view of this name exists.")
    assert message_of(error) == "Table does not exist: a.t. A view of this name exists."
    error = InvalidInput("no")
    error.operation = 3
    assert message_of(error) == "no (operation 3)"


def test_only_definite_refusals_are_final():
    final = {kind for kind in errors.STATUS_AND_TYPE if errors.is_final(kind.__new__(kind))}
    passing = {kind.__name__ for kind in set(errors.STATUS_AND_TYPE) - final}
    assert passing == {
        *("Unauthenticated", "TokenExpired", "PermissionDenied"),
        *("TooManyAttempts", "TooManyRequests"),
        *("ServiceUnavailable", "Busy", "OutcomeUnknown", "CommitConflict"),
        *("Protected", "ApprovalRequired", "CredentialsRefused"),
    }
    assert ServiceUnavailable not in final
