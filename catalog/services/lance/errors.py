"""Convert failures of Lance and Arrow to errors of the catalog.

Only the text of a Lance exception tells its cause: the class is the same for a mistake of the
caller and for a broken disk. A failure with an unknown text is not converted.
"""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from lance.dataset import LanceScanner

from catalog.errors import (
    BranchAlreadyExists,
    BranchNotFound,
    CatalogError,
    ColumnNotFound,
    CommitConflict,
    IndexAlreadyExists,
    IndexNotFound,
    InvalidInput,
    InvalidTableState,
    SchemaMismatch,
    ServiceUnavailable,
    TagAlreadyExists,
    TagNotFound,
    VersionNotFound,
)
from catalog.formats.lance import naming as lance_naming
from catalog.identifiers import Identifier, label
from catalog.services.lance.containment.calls import contained
from catalog.storage import object_errors
from catalog.storage.outages import availability

log = logging.getLogger(__name__)

RETRYABLE = ("Retryable commit conflict", "Too many concurrent writers")

# Positions in the source code of Lance, debug output of a schema, and prefixes of messages.
_SOURCE = re.compile(r"(?:,|, location:) [^\s,]+\.rs:\d+:\d+")
_SCHEMA = re.compile(
    r":?\s*Schema \{.*|(?<=logical expression AggregateFunction)\(.*"
    r"|(?<=logical expression WindowFunction)\(.*",
    re.DOTALL,
)
_PREFIXES = re.compile(
    r"^(?:(?:Invalid user input|External error|Wrapped error|Query Execution error|Schema error"
    r"|LanceError\(\w+\)|Invalid argument error|Error during planning): )+"
)

_CONFLICT = re.compile(
    rf"{'|'.join(RETRYABLE)}|Incompatible transaction|Commit conflict"
    r"|concurrent transaction|Attempted .* times.*commit|commit contention",
    re.IGNORECASE,
)
_SCHEMA_MISMATCH = re.compile(
    r"Append with different schema|is declared as non-nullable but contains null"
    r"|should have type|fields did not match|does not match the schema|schema mismatch",
    re.IGNORECASE,
)
_NO_COLUMN = re.compile(
    r"No field named|Column .{1,300}? (?:does not exist|is not in the dataset)|column \S+ is not in the"
    r"|key column \S+ does not exist|field path [\s\S]{1,600}? does not exist|not found in schema"
    r"|Field (?:\S+|'.*?') (?:does not exist|not found)|Column not found|Could not find column"
    r"|FieldNotFound|FTS field \S+ does not contain child",
    re.IGNORECASE,
)
_MISTAKE = re.compile(
    r"Invalid user input|sql parser error|Error during planning|LanceError\(Schema\)"
    r"|Cast error|Divide by zero|Ref is invalid|must be|not supported|Not supported|Unsupported"
    r"|does not match|Cannot (?:drop|cast)|already exists|Arithmetic overflow|Parser error"
    r"|Invalid argument|LanceError\(Arrow\)|ArrowInvalid|not a valid|Compute error|Overflow"
    r"|is not valid utf8"
    # of indexes
    r"|Cannot access field|multivector type supports only|KMeans cannot train|GeoArrow"
    r"|WK[BT] error|Invalid byte order|does not support|unsupported data type",
)

_DISK = re.compile(r"Object at location|No such file|os error \d|Generic \w+ error")
_STORAGE = re.compile(rf"LanceError\(IO\)|{_DISK.pattern}")
"""Failures of a disk or an object store, which are not mistakes of the caller, or others that Lance names so."""

_OBJECT_STORE = re.compile(
    r"Generic (?:S3|GCS|MicrosoftAzure) error"
    r"|The operation lacked (?:the necessary privileges|valid authentication credentials)"
)
"""Failures of an object store after Lance's own retries; its text may name hosts and keys."""

_TORN = re.compile(
    r"failed to decode Protobuf|file size is too small|does not have sufficient data"
    r"|Invalid range \S+ for object|does not have a transaction file|out of range for slice"
    r"|Generic N/A error: Not found|failed to fill whole buffer"
    # A number of a torn manifest, with which Lance asks the catalog.
    r"|Python error in describe_table_version: ValidationError"
)
"""Torn or missing files of the table; unlike a failing disk, a repeated request does not help."""

_INTERNAL = re.compile(r"[Ii]nternal error|Task was aborted|\.rs:\d+:\d+")
"""Failures within Lance, which name a position in its source code, or tasks that ended with a panic."""

_UNKNOWN = "An expression has what Lance does not know, such as a placeholder"

_Refusal = Callable[[Identifier, str], CatalogError]


def _not_listed(table: Identifier, _: str) -> CatalogError:
    return InvalidTableState(
        f"At the location of table '{label(table)}' lie versions that the catalog does not list",
        detail="Registering the table again enters them.",
    )


_NAMED: tuple[tuple[re.Pattern[str], _Refusal], ...] = (
    (re.compile(r"tag (\S+) does not exist"), TagNotFound),
    (re.compile(r"tag (\S+) already exists"), TagAlreadyExists),
    (re.compile(r"[Bb]ranch (\S+) (?:does not exist|not found)"), BranchNotFound),
    (re.compile(r"[Bb]ranch (\S+) already exists"), BranchAlreadyExists),
    (re.compile(r"index not found: name=([^,]+)"), IndexNotFound),
    (re.compile(r"Index \"([^\"]+)\" not found"), IndexNotFound),
    (re.compile(r"Index name '(.+?)' already exists"), IndexAlreadyExists),
    (re.compile(r"(Dataset already exists)"), _not_listed),
)
_NO_VERSION = re.compile(r"version \S*?:?(\d+) does not exist")
# Also matches a manifest without its final name, which has a dash and a suffix.
_NO_MANIFEST = re.compile(
    r"_versions/(\d+\.manifest)(?:-[^/,\s]*)? was not found"
    r"|Not found: [^\n]*?_versions/(\d+\.manifest)(?:-[^/,\s]*)?(?:,|$)"
)


def refusal(error: BaseException, table: Identifier) -> CatalogError | None:
    """Return the catalog error for a mistake of the caller or for torn files, else None."""
    if isinstance(error, CatalogError):
        return error
    raw = _text(error)
    if missing := _named(table, raw):
        return missing
    if _TORN.search(raw):
        log.error("Files of table '%s' are torn or missing: %s", label(table), raw)
        return InvalidTableState(
            f"Files of table '{label(table)}' are torn or missing",
            detail="The operation 'repair' shows which version is whole, and makes it the newest.",
        )
    if _OBJECT_STORE.search(raw):
        log.error("The object store of table '%s' failed: %s", label(table), readable(raw))
        return _store_failure(table, raw)
    if isinstance(error, LancePanic):
        # What its SQL parser knows, and Lance does not.
        return InvalidInput(_UNKNOWN) if "not yet implemented" in str(error) else None
    text = readable(raw)
    if _CONFLICT.search(raw):
        return CommitConflict(
            f"Table '{label(table)}' was changed by others meanwhile", detail=text
        )
    if _SCHEMA_MISMATCH.search(raw):
        return SchemaMismatch(f"The data does not fit table '{label(table)}': {text}")
    if _NO_COLUMN.search(raw):
        return ColumnNotFound(table, text)
    if _STORAGE.search(raw):
        return None
    if isinstance(
        error,
        (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, NotImplementedError, OverflowError),
    ):
        return InvalidInput(text)
    if isinstance(error, (OSError, ValueError, RuntimeError)) and _MISTAKE.search(raw):
        return InvalidInput(text)
    return None


def damage(error: BaseException, table: Identifier) -> InvalidTableState | None:
    """Return the catalog error for a failure within Lance that ``refusal`` does not explain, else None.

    Clients write the files of a table, and Lance does not check all of a manifest before it relies on it.
    """
    raw = _text(error)
    is_within = isinstance(error, LancePanic) or _INTERNAL.search(raw)
    if not is_within or _DISK.search(raw):
        return None
    log.error("Lance failed at table '%s'", label(table), exc_info=error)
    return InvalidTableState(
        f"Lance cannot process the files of table '{label(table)}', or this request for them",
        detail="The log of the server has the failure. If other requests for the table fail as well, "
        "the operation 'repair' shows which version is whole, and makes it the newest.",
    )


def _store_failure(table: Identifier, raw: str) -> ServiceUnavailable:
    """The refusal for a failure of the table's object store; it names the store's profile if it can."""
    profiles = availability.suspect_held()
    is_denial, cause = object_errors.denial_and_cause(raw)
    store = f"object store of table '{label(table)}'"
    if len(profiles) == 1:
        store = f"storage profile '{profiles[0]}'"
    state = "has no access" if is_denial else "is unavailable"
    return ServiceUnavailable(f"The {store} {state}: {cause}; try again later")


def _named(table: Identifier, raw: str) -> CatalogError | None:
    """Return the error if the text names an object that is missing or exists already."""
    for pattern, kind in _NAMED:
        if match := pattern.search(raw):
            return kind(table, match[1])
    if match := _NO_VERSION.search(raw):
        return VersionNotFound(table, int(match[1]))
    if match := _NO_MANIFEST.search(raw):
        manifest = lance_naming.parse_manifest_name(match[1] or match[2])
        return None if manifest is None else VersionNotFound(table, manifest.version)
    return None


def readable(text: str) -> str:
    """Return a message of Lance without source positions, debug output and prefixes."""
    text = _SCHEMA.sub("", _SOURCE.sub("", text))
    while (shorter := _PREFIXES.sub("", text)) != text:
        text = shorter
    return text.strip()


@contextmanager
def refusing(table: Identifier) -> Iterator[None]:
    """Contain a call of Lance (``containment.calls``), and raise its failures as ``translating``."""
    with contained(table), translating(table):
        yield


@contextmanager
def translating(table: Identifier) -> Iterator[None]:
    """Raise failures caused by the caller or by the files of the table as catalog errors; others pass unchanged."""
    try:
        with no_panic():
            yield
    except Exception as error:
        refused = refusal(error, table) or damage(error, table)
        if refused is None or refused is error:
            raise
        raise refused from error


def plan(scanner: LanceScanner) -> None:
    """Let Lance plan a scan without reading data.

    Raises the errors of Lance, and InvalidInput for a panic.
    """
    try:
        scanner.explain_plan()
    except RuntimeError as error:
        if "Task was aborted" not in str(error):
            raise
        raise InvalidInput(_UNKNOWN) from error


@contextmanager
def no_panic() -> Iterator[None]:
    """Raise a panic of Lance as LancePanic, because ``except Exception`` does not catch a panic."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise LancePanic(str(error)) from error


class LancePanic(RuntimeError):
    """A panic in the Rust code of Lance."""


def _text(error: BaseException) -> str:
    if isinstance(error, KeyError) and error.args:
        return str(error.args[0])
    if isinstance(error, TypeError):
        return "".join(map(str, error.args))  # pylance splits some of its messages
    return str(error)
