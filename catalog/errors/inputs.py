"""Malformed or contradictory input, and requests that this server does not support."""

from enum import Enum

from catalog.errors.base import CatalogError, Identifier

_MAX_PATH = 500  # characters of a path in a message


class InvalidInput(CatalogError):
    pass


class InvalidIdentifier(InvalidInput):
    pass


class LocationFault(Enum):
    """The kind of fault of a location, as far as clients distinguish them."""

    SCHEME = "scheme"
    """The scheme is of a storage that this server does not serve."""
    OUTSIDE = "outside"
    """The location is not below a directory that may hold tables."""
    OUTSIDE_PROFILES = "outside-profiles"
    """The location is in an object store, and not where the caller may have tables."""
    TRAVERSAL = "traversal"
    """The location holds ``..``."""
    OTHER = "other"


class InvalidLocation(InvalidInput):
    def __init__(
        self,
        location: str,
        cause: str,
        *,
        fault: LocationFault = LocationFault.OTHER,
        detail: str | None = None,
    ) -> None:
        self.location, self.cause, self.fault = location, cause, fault
        super().__init__(
            "Location {location!r} {cause}", detail=detail, location=location, cause=cause
        )


class ForeignFile(InvalidInput):
    """A file that the table does not own, so that it may not be read or changed for it.

    The message is the same for another table's file, a system file and a missing file.
    """

    def __init__(self, path: str, table: Identifier, verb: str = "read") -> None:
        self.path, self.table = path, table
        super().__init__(
            "File '{path}' does not belong to table '{table}', and may not be {verb} for it",
            path=path if len(path) <= _MAX_PATH else f"{path[:_MAX_PATH]}…",
            table=table,
            verb=verb,
        )


class InvalidManifestPath(InvalidInput):
    def __init__(self, path: str, cause: str) -> None:
        super().__init__(f"Manifest path {path!r} {cause}")
        self.path = path


class InvalidTransactionState(InvalidInput):
    def __init__(self, transaction: object, status: str, new_status: str) -> None:
        super().__init__(f"Transaction '{transaction}' is {status} and cannot become {new_status}")


class InvalidJobState(InvalidInput):
    def __init__(self, job: int, status: str, new_status: str) -> None:
        super().__init__(f"Job {job} is {status} and cannot be {new_status}")
        self.job, self.status = job, status


class InvalidApprovalState(InvalidInput):
    def __init__(self, approval: int, status: str, new_status: str) -> None:
        super().__init__(f"Approval request {approval} is {status} and cannot be {new_status}")
        self.approval, self.status = approval, status


class InvalidMetadata(InvalidInput):
    """Malformed Iceberg metadata, or a malformed update. The message names the JSON path."""


class SchemaMismatch(InvalidInput):
    pass


class DataTooLarge(InvalidInput):
    def __init__(self, limit: int, setting: str = "MONODON_MAX_DATA_BYTES") -> None:
        super().__init__(
            f"The request carries more than {limit} bytes of data",
            detail=f"{setting} sets the limit; send the data in several requests.",
        )


class ContradictoryInput(InvalidInput):
    pass


class Unsupported(CatalogError):
    pass
