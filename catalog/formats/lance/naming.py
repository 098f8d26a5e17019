"""Names of Lance's manifest files, final and staged.

A table has main's manifests in ``_versions/`` and those of a branch in
``tree/<branch>/_versions/``. A writer stages ``<final name>-<uuid>`` beside the final name and
requests the version from the catalog, which then moves the file to the final name.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from catalog.errors import InvalidInput

MAX_VERSION = 2**63 - 1
MAX_NEW_VERSION = 2**62
"""The highest version that a client may create, so that later versions can always follow."""
MAX_STEP = 1_000_000
"""The most by which a new version may exceed the newest one of its branch. Clients request the next number."""
MAX_CONTINUED = MAX_NEW_VERSION - MAX_STEP
"""The highest version that later ones may follow for long: a higher one has to be repaired."""
# The metadata of a computed column's field, as LanceDB writes and reads it.
COMPUTED = "computed_column"
COMPUTED_KEY = f"{COMPUTED}.expression"
"""The key of a field's metadata that holds the SQL expression of a computed column."""
COMPUTED_KIND_KEY = f"{COMPUTED}.kind"
COMPUTED_INPUTS_KEY = f"{COMPUTED}.inputs"
"""A JSON list of the paths that the expression reads."""
_MAX_BRANCH_LENGTH = 255
_UINT64_MAX = 2**64 - 1
_ENCODED = frozenset('%\\{}^`[]"<>~#|*?')
"""The printable ASCII characters that Lance's object store encodes in the names of files."""
_MANIFEST = re.compile(r"(?P<number>[0-9]{1,20})\.manifest")
_OWN_DIRECTORIES = frozenset({"data", "_deletions", "_indices", "_transactions", "_refs"})


class NamingScheme(StrEnum):
    """The naming of manifest files (spec: ManifestNamingScheme)."""

    V1 = "V1"
    V2 = "V2"


@dataclass(frozen=True)
class ManifestName:
    """The parsed file name of a final manifest."""

    version: int
    scheme: NamingScheme


def branch_name(branch: str | None) -> str:
    """The ledger's name of a branch; main, which clients may also name, is the empty text."""
    return "" if branch is None or branch == "main" else branch


def manifest_name(version: int, scheme: NamingScheme) -> str:
    """``7.manifest`` in V1; in V2 the number counts down from 2^64-1, zero-padded to 20 digits."""
    if scheme is NamingScheme.V1:
        return f"{version}.manifest"
    return f"{_UINT64_MAX - version:020d}.manifest"


def parse_manifest_name(name: str) -> ManifestName | None:
    """The version and scheme of a final manifest's name; None for any other file."""
    match = _MANIFEST.fullmatch(name)
    if match is None:
        return None
    digits = match["number"]
    number = int(digits)
    # Only V2 names have 20 digits: no V1 version has so many.
    name_of = (
        ManifestName(_UINT64_MAX - number, NamingScheme.V2)
        if len(digits) == 20
        else ManifestName(number, NamingScheme.V1)
    )
    return name_of if 0 <= name_of.version <= MAX_VERSION else None


def naming_scheme(requested: str | None, staged_name: str) -> NamingScheme:
    """The requested scheme, otherwise that of the staged file's name, otherwise V2.

    Raises InvalidInput for an unknown scheme.
    """
    if requested:
        try:
            return NamingScheme(requested.upper())
        except ValueError:
            raise InvalidInput(f"Naming scheme {requested!r} is not known; use V1 or V2") from None
    staged = parse_manifest_name(staged_name.partition("-")[0])
    return staged.scheme if staged else NamingScheme.V2


def check_branch(name: str) -> str:
    """Return the name. Raises InvalidInput unless it is a relative path that stays in ``tree/``."""
    if len(name) > _MAX_BRANCH_LENGTH or not name.isprintable():
        raise InvalidInput(f"Branch name {name[:40]!r} is too long or holds a control character")
    if any(segment in {"", ".", "..", "_versions"} for segment in name.split("/")):
        raise InvalidInput(f"Branch name {name!r} is not a path of plain names")
    return name


def versions_directory(branch: str) -> str:
    """The directory of a branch's manifests, relative to the table; the empty branch is main."""
    return f"tree/{branch}/_versions" if branch else "_versions"


def final_manifest_path(branch: str, version: int, scheme: NamingScheme) -> str:
    """The path of a version's manifest, relative to the table."""
    return f"{versions_directory(branch)}/{manifest_name(version, scheme)}"


def is_plain_path(path: str) -> bool:
    """True if a path stays below its directory, and every reader opens the same file for it.

    Lance percent-encodes some characters: for ``a~b`` it opens ``a%7Eb``.
    """
    return (
        path.isascii()
        and path.isprintable()
        and _ENCODED.isdisjoint(path)
        and all(segment not in {"", ".", ".."} for segment in path.split("/"))
    )


def may_be_staged(path: str) -> bool:
    """True if a file, by its path relative to the table, can be a staged manifest.

    False for a file with a final name, which may be another version's manifest, and for files in the
    data directories of a table: moving them would break existing versions.
    """
    *directories, name = path.split("/")
    if parse_manifest_name(name) is not None:
        return False
    return directories[-1:] == ["_versions"] or not _OWN_DIRECTORIES.intersection(directories)
