"""The rules of storage profiles. Every refusal names the field, its value, the rule and the remedy.

Values of secret fields are never part of a message.
"""

import json
import re
from collections.abc import Iterable
from enum import StrEnum
from itertools import combinations
from typing import Any, TypeVar
from urllib.parse import urlsplit

from catalog.errors import InvalidInput, InvalidLocation
from catalog.models import StorageProfile
from catalog.services.storage import endpoint_validation
from catalog.storage import object_locations
from catalog.storage.configuration import ClientAccess, Key, ServerIdentity, StoreKind

MIN_LIFETIME, MAX_LIFETIME = 10, 43_200
"""Seconds for which credentials of clients may be valid."""
AWS_MIN_LIFETIME = 900
"""The shortest lifetime that AWS STS accepts. Other token services decide for themselves."""
GCS_LIFETIME = 3600
"""Google's access tokens are valid for an hour, and no other lifetime can be requested."""
_MAX_ROOTS = 100
_MAX_ROOT = 500
_MAX_TEXT = 2048
_MAX_SECRET = 20_000

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,98}[A-Za-z0-9])?")
_REGION = re.compile(r"[A-Za-z0-9_-]{0,100}")
_AWS_ROLE = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/[A-Za-z0-9_+=,.@/-]{1,512}")
_ANY_ROLE = re.compile(r"arn:[A-Za-z0-9_+=,.@/:*-]{1,2000}")
_EXTERNAL_ID = re.compile(r"[A-Za-z0-9_+=,.@:/-]{2,1224}")
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_GOOGLE_TOKEN_URIS = (
    "https://oauth2.googleapis.com/token",
    "https://accounts.google.com/o/oauth2/token",
)
_Member = TypeVar("_Member", bound=StrEnum)
_SCHEMES = {kind: scheme for scheme, kind in object_locations.SCHEMES.items()}


def check_name(name: str) -> None:
    """Check the name of a new profile. Raises InvalidInput."""
    if not _NAME.fullmatch(name):
        raise _invalid(
            "name",
            name,
            "has other characters than letters, digits, '.', '_' and '-', or more than 100",
            "use a name such as lake-eu",
        )


def check(profile: StorageProfile, key: Key | None) -> None:
    """Check all fields of a profile together, with the key that it has or gets.

    Changes nothing, except that endpoints lose a slash at their end. Raises InvalidInput.
    """
    check_name(profile.name)
    kind = _kind(profile)
    check_roots(profile.roots, kind)
    if not _REGION.fullmatch(profile.region):
        raise _invalid("region", profile.region, "is not a region", "use one such as eu-central-1")
    profile.endpoint = endpoint_validation.checked("endpoint", profile.endpoint)
    profile.sts_endpoint = endpoint_validation.checked("sts_endpoint", profile.sts_endpoint)
    if kind is StoreKind.GCS:
        _check_token_service_of_google(profile.sts_endpoint)
    if kind is StoreKind.S3:
        if not profile.endpoint and not profile.region:
            raise _invalid(
                "region", "", "is empty", "set the region of the bucket, or an endpoint for a store"
                " outside AWS"
            )  # fmt: skip
    else:
        _refuse_fields_of_s3(profile, kind)
    _check_text("kms_key", profile.kms_key)
    _check_identity(profile, kind, key)
    _check_client_access(profile, kind, key)


def check_roots(roots: Iterable[str], kind: StoreKind) -> None:
    """Check that roots are canonical, of the kind, and do not overlap. Raises InvalidInput."""
    roots = list(roots)
    if not roots:
        raise _invalid("roots", [], "is empty", f"add one such as {_SCHEMES[kind]}://bucket/tables")
    if len(roots) > _MAX_ROOTS:
        raise InvalidInput(f"roots: {len(roots)} are more than {_MAX_ROOTS}; use fewer")
    for root in roots:
        _check_root(root, kind)
    for first, second in combinations(roots, 2):
        if overlaps(first, second):
            raise InvalidInput(
                f"roots: '{first}' and '{second}' overlap; remove the inner one: the outer one"
                " includes it"
            )


def overlaps(first: str, second: str) -> bool:
    """True if two canonical roots are the same, or one is below the other."""
    return first == second or first.startswith(second + "/") or second.startswith(first + "/")


def _check_root(root: str, kind: StoreKind) -> None:
    if not isinstance(root, str):
        raise _invalid("roots", root, "is not a text", "use locations")
    try:
        canonical = object_locations.canonical_directory(root)
    except InvalidLocation as error:
        raise InvalidInput(
            f"roots: {_shown(root)} {error.cause}; use a location such as"
            f" {_SCHEMES[kind]}://bucket/tables"
        ) from None
    if canonical != root:
        raise _invalid("roots", root, "ends with a slash", f"write {canonical}")
    scheme = object_locations.scheme_of(root) or ""
    if object_locations.SCHEMES[scheme] is not kind:
        raise _invalid(
            "roots",
            root,
            f"is not a location of kind {kind.value}",
            f"use {_SCHEMES[kind]}://, or change the kind",
        )
    if len(root) > _MAX_ROOT:
        raise _invalid("roots", root, f"is longer than {_MAX_ROOT} characters", "use a shorter one")


def _kind(profile: StorageProfile) -> StoreKind:
    kinds = [kind.value for kind in _SCHEMES]
    if profile.kind == StoreKind.FILE:
        raise _invalid(
            "kind",
            profile.kind,
            "needs no profile: the local warehouse is built in",
            f"use {', '.join(kinds)}",
        )
    if profile.kind not in kinds:
        raise _invalid("kind", profile.kind, "is no kind of object store", f"use {_choices(kinds)}")
    return StoreKind(profile.kind)


def _check_token_service_of_google(url: str) -> None:
    # The server sends it a token for all that its service account may do.
    parts = urlsplit(url)
    is_google = parts.scheme == "https" and (parts.hostname or "").endswith(".googleapis.com")
    if url and not is_google and not _is_loopback(url):
        raise _invalid(
            "sts_endpoint",
            url,
            "is not an address of Google, and would get the server's own token",
            "leave it empty, or use https and a host in googleapis.com",
        )


def _refuse_fields_of_s3(profile: StorageProfile, kind: StoreKind) -> None:
    fields = ["path_style", "kms_key", "role", "external_id"]
    for field in fields if kind is StoreKind.GCS else ["sts_endpoint", *fields]:
        if value := getattr(profile, field):
            kinds = "kinds s3 and gcs" if field == "sts_endpoint" else "kind s3"
            raise _invalid(field, value, f"is only for {kinds}, not {kind.value}", "leave it out")


# --- how the server authenticates ----------------------------------------------------------------


def _check_identity(profile: StorageProfile, kind: StoreKind, key: Key | None) -> None:
    identity = _member(ServerIdentity, "identity", profile.identity)
    if identity is ServerIdentity.KEY and key is None:
        raise _invalid("identity", "key", "needs a key", "set the key, or use environment")
    if identity is ServerIdentity.ENVIRONMENT and key is not None:
        raise _invalid(
            "identity", "environment", "uses no key", "leave the key out, or use identity key"
        )
    if identity is ServerIdentity.ROLE:
        if kind is not StoreKind.S3:
            raise _invalid("identity", "role", "is only for kind s3", "use key or environment")
        if not profile.role:
            raise _invalid("role", "", "is empty, and identity role needs it", "set the role's ARN")
    _check_role(profile)
    if key is not None:
        check_key(key, kind, profile.roots)


def _check_role(profile: StorageProfile) -> None:
    # Stores outside AWS have roles of other forms; their token service decides.
    is_aws = not (profile.endpoint or profile.sts_endpoint)
    if profile.role and not (_AWS_ROLE if is_aws else _ANY_ROLE).fullmatch(profile.role):
        raise _invalid(
            "role",
            profile.role,
            "is not the ARN of a role",
            "use one such as arn:aws:iam::123456789012:role/lake",
        )
    if not profile.external_id:
        return
    if not profile.role:
        raise _invalid(
            "external_id", profile.external_id, "is set without a role", "set the role as well"
        )
    if not _EXTERNAL_ID.fullmatch(profile.external_id):
        raise _invalid(
            "external_id",
            profile.external_id,
            "is not an external ID",
            "use 2 to 1224 letters, digits and _+=,.@:/-",
        )


def check_key(key: Key, kind: StoreKind, roots: Iterable[str]) -> None:
    """Check a key of the server. No message shows its secret. Raises InvalidInput."""
    if not key.secret:
        raise InvalidInput("secret: it is empty; set the secret part of the key")
    if len(key.secret) > _MAX_SECRET or len(key.token) > _MAX_SECRET:
        raise InvalidInput(f"secret: it has more than {_MAX_SECRET} characters; use a key's secret")
    if key.token and kind is not StoreKind.S3:
        raise InvalidInput(f"token: only keys of kind s3 have one, not {kind.value}; leave it out")
    if kind is StoreKind.GCS:
        _check_service_account(key)
        return
    for field, text in (("secret", key.secret), ("token", key.token)):
        if not (text.isascii() and text.isprintable()) or " " in text:
            raise InvalidInput(
                f"{field}: it has a space, a line break or a character outside ASCII; copy it again"
            )
    if kind is StoreKind.ADLS:
        _check_account(key, roots)
    elif not re.fullmatch(r"[!-~]{1,128}", key.id):
        raise _invalid(
            "key_id", key.id, "is no access key id", "use 1 to 128 characters without spaces"
        )


def _check_account(key: Key, roots: Iterable[str]) -> None:
    if not _ACCOUNT.fullmatch(key.id):
        raise _invalid(
            "key_id", key.id, "is no storage account", "use the account's name: 3 to 24 of a-z, 0-9"
        )
    for root in roots:
        account = object_locations.bucket_of(root).partition("@")[2].partition(".")[0]
        if account != key.id:
            raise _invalid(
                "roots",
                root,
                f"is in the storage account '{account}', and the key is of '{key.id}'",
                "use a profile for each account",
            )


def _check_service_account(key: Key) -> None:
    remedy = "paste the JSON of the service account's key"
    if key.id:
        raise _invalid("key_id", key.id, "is not used by kind gcs", f"leave it empty, and {remedy}")
    try:
        content = json.loads(key.secret)
    except ValueError:
        raise InvalidInput(f"secret: it is not JSON; {remedy}") from None
    if not isinstance(content, dict) or content.get("type") != "service_account":
        raise InvalidInput(f"secret: it is not the key of a service account; {remedy}")
    for field in ("client_email", "private_key"):
        if not (isinstance(content.get(field), str) and content[field]):
            raise InvalidInput(f"secret: it has no {field}; {remedy}")
    # The client of the store obeys these fields: it would send signed tokens to any address.
    if content.get("token_uri", _GOOGLE_TOKEN_URIS[0]) not in _GOOGLE_TOKEN_URIS:
        raise InvalidInput(
            f"secret: its token_uri is not {' or '.join(_GOOGLE_TOKEN_URIS)}; {remedy}"
        )
    address = content.get("gcs_base_url")
    if (address is not None or content.get("disable_oauth")) and not _is_loopback(address):
        raise InvalidInput(
            "secret: gcs_base_url and disable_oauth are for emulators on this machine only;"
            f" {remedy}"
        )


def _is_loopback(url: Any) -> bool:
    try:
        host = urlsplit(url).hostname if isinstance(url, str) else None
    except ValueError:
        return False
    return host in {"localhost", "127.0.0.1", "::1"}


# --- how clients get access ------------------------------------------------------------------------


def _check_client_access(profile: StorageProfile, kind: StoreKind, key: Key | None) -> None:
    client_access = _member(ClientAccess, "client_access", profile.client_access)
    if client_access is ClientAccess.SIGNING and kind is not StoreKind.S3:
        raise _invalid("client_access", "signing", "is only served for kind s3", "use none")
    remedy = "use none: clients then have credentials of their own"
    if client_access is ClientAccess.STATIC and kind is StoreKind.GCS:
        raise _invalid("client_access", "static", "is only served for kinds s3 and adls", remedy)
    if client_access is ClientAccess.STS and kind is StoreKind.S3 and not profile.role:
        raise _invalid(
            "role",
            "",
            "is empty, and client_access sts needs it",
            "set the ARN of the role that clients get",
        )
    if client_access is ClientAccess.STATIC and (
        profile.identity != ServerIdentity.KEY or key is None
    ):
        raise _invalid(
            "client_access",
            "static",
            "gives clients the key of the profile, which has none",
            "set identity key, or use another access",
        )
    _check_lifetime(profile, kind, client_access)


def _check_lifetime(profile: StorageProfile, kind: StoreKind, client_access: ClientAccess) -> None:
    shortest, longest = MIN_LIFETIME, MAX_LIFETIME
    if client_access is ClientAccess.STS and kind is StoreKind.GCS:
        shortest = longest = GCS_LIFETIME
    elif (
        client_access is ClientAccess.STS
        and kind is StoreKind.S3
        and not (profile.endpoint or profile.sts_endpoint)
    ):
        shortest = AWS_MIN_LIFETIME
    if not shortest <= profile.lifetime_seconds <= longest:
        rule = f"is not between {shortest} and {longest}"
        if shortest == longest:
            rule = f"is not {shortest}, the lifetime of Google's tokens"
        raise _invalid("lifetime_seconds", profile.lifetime_seconds, rule, "use 3600")


# --- messages --------------------------------------------------------------------------------------


def _member(enum: type[_Member], field: str, value: str) -> _Member:
    members = [member.value for member in enum]
    if value not in members:
        raise _invalid(field, value, "is not one of the choices", f"use {_choices(members)}")
    return enum(value)


def _check_text(field: str, text: str) -> None:
    if len(text) > _MAX_TEXT or not text.isprintable() or text != text.strip():
        raise _invalid(
            field,
            text,
            f"has control characters, spaces around it or more than {_MAX_TEXT} characters",
            "copy it again",
        )


def _invalid(field: str, value: object, rule: str, remedy: str) -> InvalidInput:
    return InvalidInput(f"{field}: {_shown(value)} {rule}; {remedy}")


def _shown(value: object) -> str:
    text = repr(str(value) if isinstance(value, str) else value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _choices(names: Iterable[str]) -> str:
    return ", ".join(names)
