"""What Lance and Arrow say of a failure, as the refusals of the catalog.

Lance tells what went wrong by its text alone: the class of the exception is the same for a caller's
mistake and a broken disk. What is not known here is no refusal, and stays the failure it is.
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
    TagAlreadyExists,
    TagNotFound,
    VersionNotFound,
)
from catalog.formats.lance import naming as lance_naming
from catalog.identifiers import Identifier, label

log = logging.getLogger(__name__)

RETRYABLE = "Retryable commit conflict"

# Where in Lance's own source it was raised, its debugging form of a schema, and its prefixes.
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
    rf"{RETRYABLE}|Incompatible transaction|Commit conflict|Too many concurrent writers"
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

_STORAGE = re.compile(
    r"LanceError\(IO\)|Object at location|No such file|os error \d|Generic \w+ error"
)
"""A disk or a store that fails is nobody's mistake."""

_TORN = re.compile(
    r"failed to decode Protobuf|file size is too small|does not have sufficient data"
    r"|Invalid range \S+ for object|does not have a transaction file|out of range for slice"
    r"|Generic N/A error: Not found"
    # A number of a torn manifest, with which Lance asks the catalog.
    r"|Python error in describe_table_version: ValidationError"
)
"""A file of the table, not the disk: repeating the request does not help."""

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
# Of a file that was not moved to its final name yet, too: that has a dash and more behind it.
_NO_MANIFEST = re.compile(
    r"_versions/(\d+\.manifest)(?:-[^/,\s]*)? was not found"
    r"|Not found: [^\n]*?_versions/(\d+\.manifest)(?:-[^/,\s]*)?(?:,|$)"
)


def refusal(error: BaseException, table: Identifier) -> CatalogError | None:
    """The refusal behind what Lance or Arrow raised; None when it is not the caller's doing."""
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


def _named(table: Identifier, raw: str) -> CatalogError | None:
    """The refusal, if the text names what is missing or there already."""
    for pattern, kind in _NAMED:
        if found := pattern.search(raw):
            return kind(table, found[1])
    if found := _NO_VERSION.search(raw):
        return VersionNotFound(table, int(found[1]))
    if found := _NO_MANIFEST.search(raw):
        manifest = lance_naming.parse_manifest_name(found[1] or found[2])
        return None if manifest is None else VersionNotFound(table, manifest.version)
    return None


def readable(text: str) -> str:
    """What Lance says, without the places of its source and the forms of its debugger."""
    text = _SCHEMA.sub("", _SOURCE.sub("", text))
    while (shorter := _PREFIXES.sub("", text)) != text:
        text = shorter
    return text.strip()


@contextmanager
def refusing(table: Identifier) -> Iterator[None]:
    """Raise what Lance says of the caller's mistakes as refusals; other failures stay."""
    try:
        with no_panic():
            yield
    except Exception as error:
        refused = refusal(error, table)
        if refused is None or refused is error:
            raise
        raise refused from error


def plan(scanner: LanceScanner) -> None:
    """Let Lance plan a scan; no data is read. Raises what it says, and InvalidInput for a panic."""
    try:
        scanner.explain_plan()
    except RuntimeError as error:
        if "Task was aborted" not in str(error):
            raise
        raise InvalidInput(_UNKNOWN) from error


@contextmanager
def no_panic() -> Iterator[None]:
    """Raise a panic of Lance as an ordinary error; else it would end what catches errors."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise LancePanic(str(error)) from error


class LancePanic(RuntimeError):
    """Lance met what its makers held for impossible."""


def _text(error: BaseException) -> str:
    if isinstance(error, KeyError) and error.args:
        return str(error.args[0])
    if isinstance(error, TypeError):
        return "".join(map(str, error.args))  # pylance splits some of its messages
    return str(error)
