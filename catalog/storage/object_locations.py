"""Locations in object stores: ``s3://bucket/key``, ``gs://bucket/key``, ``abfss://container@host/key``.

Clients, engines and stores read such texts in different ways: some decode percent signs, some drop empty
segments, and policies expand wildcards. Therefore a location has one spelling here, in which all of them
agree, and every other spelling is refused.
"""

import re
from urllib.parse import unquote

from catalog.errors import InvalidLocation, LocationFault
from catalog.storage.configuration import StoreKind

SCHEMES = {"s3": StoreKind.S3, "gs": StoreKind.GCS, "abfss": StoreKind.ADLS}
"""The schemes of canonical locations."""

_ALIASES = {
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "abfs": "abfss",
    "wasb": "abfss",
    "wasbs": "abfss",
}
_AUTHORITY = {
    # No addresses of hosts: a bucket's name may become part of a host's name.
    "s3": re.compile(r"(?!\d+\.\d+\.\d+\.\d+$)[a-z0-9](?:[a-z0-9-]|\.(?!\.)){1,61}[a-z0-9]"),
    "gs": re.compile(r"(?!\d+\.\d+\.\d+\.\d+$)[a-z0-9](?:[a-z0-9_-]|\.(?!\.)){1,220}[a-z0-9]"),
    # Azure's accounts in every cloud; other hosts would get the account's signature.
    "abfss": re.compile(
        r"[a-z0-9$](?:[a-z0-9-]){1,61}[a-z0-9]@[a-z0-9]{3,24}"
        r"\.dfs\.(?:core\.windows\.net|core\.chinacloudapi\.cn|core\.usgovcloudapi\.net|fabric\.microsoft\.com)"
    ),
}
# Neither wildcards and variables of policies (* ? $ { }), nor what a URI encodes or splits (% # \ ").
_DIRECTORY = re.compile(r"[A-Za-z0-9_.=+@,()!'~&: /-]+")
MAX_KEY_BYTES = 1024
_SEPARATORS = re.compile(r"[/\\]")


def scheme_of(text: str) -> str | None:
    """The scheme of a text that names an object store, in lower case; None for any other text."""
    scheme, separator, _ = text.partition(":")
    scheme = scheme.strip().lower()
    return scheme if separator and (scheme in SCHEMES or scheme in _ALIASES) else None


def is_object(location: str) -> bool:
    """True if a canonical location is in an object store."""
    return not location.startswith("/") and "://" in location


def bucket_of(path: str) -> str:
    """The bucket of a canonical path with its scheme, without a slash at the end: ``s3://bucket``."""
    scheme, _, rest = path.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def key_of(path: str) -> str:
    """The key of a canonical path in its bucket; empty for the bucket itself."""
    return path.partition("://")[2].partition("/")[2]


def canonical_directory(text: str) -> str:
    """The canonical form of a directory, such as a table's location or a root; one slash may end it.

    Raises InvalidLocation for every text that readers may understand differently.
    """
    path = _canonical(text.removesuffix("/"))
    key = key_of(path)
    if key and not _DIRECTORY.fullmatch(key):
        raise InvalidLocation(text, "holds a character that policies or readers interpret")
    return path


def canonical_file(text: str) -> str:
    """The canonical form of a file's path. Its name may hold any printable character.

    Iceberg encodes partition values in keys, so percent signs are allowed; no reader of such a key
    decodes them. Raises InvalidLocation.
    """
    path = _canonical(text)
    if not key_of(path):
        raise InvalidLocation(text, "names a bucket, not a file")
    return path


def canonical_scheme(scheme: str) -> str:
    """The scheme of canonical locations for one that other libraries use."""
    return _ALIASES.get(scheme, scheme)


def _canonical(text: str) -> str:
    scheme, separator, rest = text.partition("://")
    if scheme in _ALIASES:
        raise InvalidLocation(
            text,
            f"uses {scheme}://; write {_ALIASES[scheme]}://",
            fault=LocationFault.SCHEME,
        )
    if not separator or scheme not in SCHEMES:
        raise InvalidLocation(
            text, "has no scheme that this server serves", fault=LocationFault.SCHEME
        )
    authority, _, key = rest.partition("/")
    if not _AUTHORITY[scheme].fullmatch(authority):
        raise InvalidLocation(
            text,
            "does not name a bucket or container in its canonical form",
            fault=LocationFault.OUTSIDE_PROFILES,
        )
    if rest != authority and not key:
        raise InvalidLocation(text, "ends with a slash")
    if fault := _key_fault(key):
        raise InvalidLocation(text, fault[0], fault=fault[1])
    return text


def _key_fault(key: str) -> tuple[str, LocationFault] | None:
    if len(key.encode("utf-8", "surrogatepass")) > MAX_KEY_BYTES:
        return f"is longer than {MAX_KEY_BYTES} bytes", LocationFault.OTHER
    if not key.isprintable():
        return "holds a control character", LocationFault.OTHER
    # Partition values are encoded in keys, and may hold slashes. Nobody decodes them, but what would
    # lead elsewhere if somebody did is no partition value.
    if any(".." in _SEPARATORS.split(spelling) for spelling in _spellings(key)):
        return "holds '..'", LocationFault.TRAVERSAL
    segments = key.split("/") if key else []
    if "" in segments or "." in segments:
        return "holds an empty segment or '.'", LocationFault.OTHER
    if any(segment != segment.strip() for segment in segments):
        return "has a segment with spaces around it", LocationFault.OTHER
    if "\\" in key:
        return "holds a backslash", LocationFault.OTHER
    return None


def _spellings(key: str) -> set[str]:
    """A key as readers see it that do not decode it, or decode it once or twice."""
    return {key, unquote(key), unquote(unquote(key))}
