"""Reading requests to S3 that a client wants to have signed: which objects do they touch, and how?

Only the requests that Iceberg's clients need are understood. Everything else is refused: other
sub-resources (``?acl``, ``?policy``, ``?versionId``), other headers of S3, and every spelling of a path
that a store may read differently.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn
from urllib.parse import SplitResult, unquote, urlsplit
from xml.etree import ElementTree as ET

from catalog.errors import InvalidInput, InvalidLocation
from catalog.storage import object_clients, object_locations
from catalog.storage.configuration import StoreConfiguration

UNSIGNED = "UNSIGNED-PAYLOAD"
_STREAMING = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
_REGION = re.compile(r"[A-Za-z0-9_-]{1,100}")
_DECLARATION = re.compile(r"<\?xml version=(['\"])1\.0\1(?: encoding=(['\"])(?i:utf-8)\2)?\s*\?>")
_HASH = re.compile(r"[0-9a-f]{64}")
_MAX_URI = 8192
_MAX_HEADERS = 100
_MAX_DELETED = 1000
"""Keys of one DeleteObjects, as in S3."""
_NAMESPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"


class Action(Enum):
    """What a request does with its objects."""

    READ = "read"
    LIST = "list"
    WRITE = "write"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class S3Request:
    """A request that is understood."""

    action: Action
    method: str
    url: str
    paths: tuple[str, ...]
    """Canonical paths of the objects that it writes, deletes or reads."""
    sources: tuple[str, ...]
    """Canonical paths of the objects that it copies from."""
    prefix: str
    """Of a list: the canonical path that every listed key begins with; it may end within a name."""
    headers: Mapping[str, str]
    """In lower case."""
    payload: str
    """What the signature says of the body: its SHA-256, or that it is not signed."""

    @property
    def names_objects_in_body(self) -> bool:
        """True for DeleteObjects: only the body names its objects."""
        return self.action is Action.DELETE and self.method == "POST"

    @property
    def is_write(self) -> bool:
        return self.action in {Action.WRITE, Action.DELETE}


_OBJECT_QUERIES: dict[str, tuple[tuple[Action, frozenset[str], frozenset[str]], ...]] = {
    # Method: action, parameters that must be there, parameters that may be there.
    "GET": (
        (Action.READ, frozenset(), frozenset()),
        (Action.WRITE, frozenset({"uploadId"}), frozenset({"max-parts", "part-number-marker"})),
    ),
    "HEAD": ((Action.READ, frozenset(), frozenset()),),
    "PUT": (
        (Action.WRITE, frozenset(), frozenset()),
        (Action.WRITE, frozenset({"partNumber", "uploadId"}), frozenset()),
    ),
    "POST": (
        (Action.WRITE, frozenset({"uploads"}), frozenset()),
        (Action.WRITE, frozenset({"uploadId"}), frozenset()),
    ),
    "DELETE": (
        (Action.DELETE, frozenset(), frozenset()),
        (Action.WRITE, frozenset({"uploadId"}), frozenset()),
    ),
}
_LIST_REQUIRED = frozenset({"list-type", "prefix"})
_LIST_OPTIONAL = frozenset(
    {"delimiter", "max-keys", "continuation-token", "start-after", "encoding-type", "fetch-owner"}
)
# The SDKs of AWS name the operation in this parameter; stores ignore it.
_IGNORED = frozenset({"x-id"})

_S3_HEADERS = re.compile(
    r"x-amz-(?:date|content-sha256|decoded-content-length|trailer|te|user-agent"
    r"|checksum-[a-z0-9-]+|sdk-checksum-algorithm|copy-source(?:-range)?|meta-[a-z0-9-]+"
    r"|server-side-encryption(?:-aws-kms-key-id|-bucket-key-enabled)?|storage-class)"
)
"""Headers of S3 that may be signed. Owners, grants, redirects, legal holds and tags may not."""
_REPLACED = frozenset({"authorization", "x-amz-date", "x-amz-security-token", "host"})
"""Headers that the signature replaces."""
_OVERRIDES = frozenset({"x-http-method-override", "x-http-method", "x-method-override"})
"""Headers by which some servers read another method than the one that is signed."""


def read(
    *,
    method: str,
    uri: str,
    headers: Mapping[str, list[str]],
    body: str | None,
    region: str,
    configuration: StoreConfiguration,
) -> S3Request:
    """Understand a request to the store of a profile.

    Raises InvalidInput for everything that is not known to stay at the objects that it names.
    """
    plain = _headers(headers)
    if configuration.region and region != configuration.region:
        _refuse(f"the region is {region!r}, and not that of the store")
    if not _REGION.fullmatch(region):  # it becomes a part of the signature's text
        _refuse(f"{region!r} is no region")
    parts = _split(uri)
    bucket, key = _locate(parts, configuration)
    query = _query(parts.query)
    payload = plain.pop("x-amz-content-sha256", UNSIGNED)
    if payload not in {UNSIGNED, _STREAMING} and not _HASH.fullmatch(payload):
        _refuse("header x-amz-content-sha256 has an unknown value")
    copied = plain.get("x-amz-copy-source")
    prefix = ""
    sources: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    if key:
        action = _object_action(method, query)
        paths = (_path(bucket, key),)
        if copied is not None:
            if method != "PUT":
                _refuse("header x-amz-copy-source belongs to PUT")
            sources = (_copy_source(copied),)
    elif method == "GET":
        action, prefix = Action.LIST, _listed(bucket, query)
    elif method == "POST" and query == {"delete": ""}:
        action = Action.DELETE
        paths, payload = _deleted(bucket, body)
    else:
        _refuse(f"{method} of a bucket is not signed")
    if body is not None and action is not Action.DELETE:
        _refuse("only the body of DeleteObjects is understood")
    if copied is not None and not sources:
        _refuse("header x-amz-copy-source belongs to an object")
    return S3Request(action, method, uri, paths, sources, prefix, plain, payload)


def _refuse(cause: str) -> NoReturn:
    raise InvalidInput(f"The request cannot be signed: {cause}")


def _headers(headers: Mapping[str, list[str]]) -> dict[str, str]:
    """The headers in lower case, without those that the signature sets. One value each."""
    if len(headers) > _MAX_HEADERS:
        _refuse("it has too many headers")
    plain: dict[str, str] = {}
    for name, values in headers.items():
        lower = name.lower()
        if not re.fullmatch(r"[a-z0-9-]+", lower) or lower in plain:
            _refuse(f"header {name!r} is malformed, or repeated")
        if lower in _REPLACED:
            continue
        if lower in _OVERRIDES:
            _refuse(f"header {lower} is not allowed")
        if lower.startswith("x-amz-"):
            if not _S3_HEADERS.fullmatch(lower):
                _refuse(f"header {lower} is not allowed")
            if len(values) != 1:
                _refuse(f"header {lower} must have one value")
        value = ",".join(values)
        if not value.isprintable() or not value.isascii():
            _refuse(f"header {lower} holds a character that is not allowed")
        plain[lower] = value
    return plain


def _split(uri: str) -> SplitResult:
    if len(uri) > _MAX_URI or not uri.isascii() or not uri.isprintable() or " " in uri:
        _refuse("its URI is too long, or holds a character that is not allowed")
    if "\\" in uri or "#" in uri:
        _refuse("its URI holds a backslash or a fragment")
    try:
        parts = urlsplit(uri)
        _ = parts.port
    except ValueError:
        _refuse("its URI is malformed")
    if parts.username is not None or parts.password is not None or "@" in parts.netloc:
        _refuse("its URI names a user")
    return parts


def _locate(parts: SplitResult, configuration: StoreConfiguration) -> tuple[str, str]:
    """The bucket and the encoded key that a URI names, if it leads to the store of the profile."""
    buckets = {object_locations.bucket_of(root).partition("://")[2] for root in configuration.roots}
    scheme, host = parts.scheme, parts.netloc.lower()
    if host != parts.netloc:
        _refuse("its host is not in lower case")
    for allowed_scheme, endpoint in _endpoints(configuration):
        if scheme != allowed_scheme:
            continue
        if host == endpoint:
            bucket, _, key = parts.path.removeprefix("/").partition("/")
            if bucket in buckets and parts.path.startswith(f"/{bucket}"):
                return bucket, key
        for bucket in buckets:
            # A store that does not know buckets in host names reads the first segment of the key as
            # the bucket.
            _, is_in_host = object_clients.s3_address(configuration, f"s3://{bucket}")
            if is_in_host and host == f"{bucket}.{endpoint}":
                return bucket, parts.path.removeprefix("/")
    _refuse("its URI does not lead to the store of the table")


def _endpoints(configuration: StoreConfiguration) -> list[tuple[str, str]]:
    """The schemes and hosts of a store."""
    if configuration.endpoint:
        parts = urlsplit(configuration.endpoint)
        return [(parts.scheme, parts.netloc.lower())]
    suffix = "amazonaws.com.cn" if configuration.region.startswith("cn-") else "amazonaws.com"
    hosts = [f"s3.{configuration.region}.{suffix}"]
    if configuration.region == "us-east-1":
        hosts.append(f"s3.{suffix}")
    return [("https", host) for host in hosts]


def _query(text: str) -> dict[str, str]:
    query: dict[str, str] = {}
    for parameter in text.split("&") if text else ():
        name, _, value = parameter.partition("=")
        # Some stores read a plus sign as a space, and a semicolon as the beginning of another parameter.
        if not re.fullmatch(r"[A-Za-z-]+", name) or name in query or set(value) & {"+", ";"}:
            _refuse("its query is malformed, or repeats a parameter")
        try:
            query[name] = unquote(value, errors="strict")
        except UnicodeDecodeError:
            _refuse("its query is not UTF-8")
    return {name: value for name, value in query.items() if name not in _IGNORED}


def _object_action(method: str, query: Mapping[str, str]) -> Action:
    names = set(query)
    for action, required, optional in _OBJECT_QUERIES.get(method, ()):
        if required <= names <= required | optional:
            return action
    _refuse(f"{method} with the parameters {', '.join(sorted(names)) or 'given'} is not signed")


def _path(bucket: str, encoded: str) -> str:
    """The canonical path of an object. Its encoding must be the one that every store reads alike."""
    try:
        key = unquote(encoded, errors="strict")
    except UnicodeDecodeError:
        _refuse("its key is not UTF-8")
    if "+" in encoded:
        _refuse("its key holds a plus sign that is not encoded")  # some stores read it as a space
    if any(character in encoded for character in "?;"):
        _refuse("its key holds a character that is not encoded")
    try:
        return object_locations.canonical_file(f"s3://{bucket}/{key}")
    except InvalidLocation as error:
        _refuse(f"its key {error.cause}")


def _copy_source(text: str) -> str:
    bucket, _, encoded = text.removeprefix("/").partition("/")
    if not encoded or "?" in unquote(text):  # some stores decode it before they look for a version
        _refuse("header x-amz-copy-source does not name an object")
    try:
        object_locations.canonical_directory(f"s3://{bucket}")
    except InvalidLocation:
        _refuse("header x-amz-copy-source does not name a bucket")
    return _path(bucket, encoded)


def _listed(bucket: str, query: Mapping[str, str]) -> str:
    names = set(query)
    if not _LIST_REQUIRED <= names <= _LIST_REQUIRED | _LIST_OPTIONAL or query["list-type"] != "2":
        _refuse("only ListObjectsV2 with a prefix is signed")
    prefix = query["prefix"]
    if not prefix:
        _refuse("the prefix is empty")
    try:
        object_locations.canonical_file(f"s3://{bucket}/{prefix}-")
    except InvalidLocation as error:
        _refuse(f"the prefix {error.cause}")
    return f"s3://{bucket}/{prefix}"


def _deleted(bucket: str, body: str | None) -> tuple[tuple[str, ...], str]:
    """The objects that DeleteObjects names, and the hash of the body that says so."""
    if not body:
        _refuse("DeleteObjects is signed with its body")
    # The signature covers its bytes in UTF-8, so a store must not read them as anything else.
    content = _DECLARATION.sub("", body, count=1) if body.startswith("<?xml") else body
    if "<!" in content or "<?" in content:
        _refuse("the body of DeleteObjects holds a declaration")
    try:
        encoded = body.encode()
        root = ET.fromstring(content)  # noqa: S314 -- without declarations there are no entities
    except (ET.ParseError, UnicodeEncodeError):
        _refuse("the body of DeleteObjects is not XML in UTF-8")
    paths = []
    if root.tag.removeprefix(_NAMESPACE) != "Delete":
        _refuse("the body of DeleteObjects is malformed")
    for element in root:
        tag = element.tag.removeprefix(_NAMESPACE)
        if tag == "Quiet" and not len(element):
            continue
        names = [child.tag.removeprefix(_NAMESPACE) for child in element]
        if tag != "Object" or names != ["Key"] or len(element[0]):
            _refuse("the body of DeleteObjects holds more than keys")
        try:
            paths.append(object_locations.canonical_file(f"s3://{bucket}/{element[0].text or ''}"))
        except InvalidLocation as error:
            _refuse(f"a key of DeleteObjects {error.cause}")
    if not 0 < len(paths) <= _MAX_DELETED:
        _refuse(f"DeleteObjects names no key, or more than {_MAX_DELETED}")
    return tuple(paths), hashlib.sha256(encoded).hexdigest()
