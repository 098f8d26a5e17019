"""OpenID Connect: bearer tokens (JWT, RFC 7519 and 9068) of configured issuers, and their keys.

A token is good if a key of its issuer signed it with an allowed algorithm, and it is for us and not
over. Its subject stands for a principal; who has none is refused, or gets one to which nothing is
granted, as MONODON_OIDC_AUTO_CREATE says. Its groups claim says which groups of that issuer's the
principal is in; groups that belong to no issuer are managed by hand.

An issuer's keys are fetched once and kept. A token with an unknown key has them fetched anew, once
in half a minute at most. While the issuer is away, what is known is good for an hour; after that,
and where nothing is known, tokens are refused, without each request trying for itself.
"""

import base64
import binascii
import json
import logging
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import requests
from django.conf import settings
from django.db import IntegrityError, transaction
from joserfc import jws, jwt
from joserfc.errors import ExpiredTokenError, JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey

from catalog import access
from catalog.errors import CatalogError, ServiceUnavailable, TokenExpired, Unauthenticated
from catalog.models import Principal, PrincipalKind, PrincipalLevel
from catalog.services.access import known_keys, principals
from catalog.services.engine import audit_records

log = logging.getLogger(__name__)
# At level debug it writes verifiers and tokens.
logging.getLogger("authlib").setLevel(logging.WARNING)

LEEWAY_SECONDS = 60
"""How far the issuer's clock may be from ours."""
_FRESH_SECONDS = 900.0
_STALE_SECONDS = 3600.0
_UNKNOWN_KEY_SECONDS = 30.0
_AWAY_SECONDS = 10.0
_CONNECT_SECONDS, _READ_SECONDS, _WHOLE_SECONDS = 3.0, 5.0, 10.0
_MAX_BYTES = 512 * 1024
_MAX_TOKEN = 16 * 1024
_MAX_GROUPS = 1000
_LONGEST_CLAIM = 500
_KEY_TYPES: dict[str, type[RSAKey] | type[ECKey] | type[OKPKey]] = {
    "RSA": RSAKey,
    "EC": ECKey,
    "OKP": OKPKey,
}
_TYPE_OF_ALGORITHM = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
_Key = RSAKey | ECKey | OKPKey
Claims = Mapping[str, Any]


def is_token(text: str) -> bool:
    """Whether it has the form of a JWT, and some issuer's would be taken."""
    return bool(settings.MONODON_OIDC_ISSUERS) and text.startswith("eyJ") and text.count(".") == 2


def authenticate(token: str) -> tuple[access.Principal, float]:
    """The principal of a bearer token, and for how many seconds it is good.

    Raises Unauthenticated, TokenExpired, and ServiceUnavailable when the issuer's keys are unknown.
    """
    issuer, claims = verify(token, settings.MONODON_OIDC_AUDIENCES)
    row = principal_of(issuer, claims)
    client = claims.get("azp") or claims.get("client_id")
    found = access.of_row(row)
    name = client if isinstance(client, str) and client.isprintable() else ""
    end = float(claims["exp"])
    remaining = end - time.time() + LEEWAY_SECONDS
    found = replace(found, key=name[:100], ends_at=_moment(end), is_vouched_for=True)
    return found, remaining


def _moment(seconds: float) -> datetime | None:
    """None: beyond all times, and so never."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def verify(
    token: str, audiences: Collection[str], *, nonce: str | None = None
) -> tuple[str, Claims]:
    """The issuer of a token and what it says, if all of it holds.

    With ``nonce`` it must be the ID token of that log-in. Raises as ``authenticate``.
    """
    issuer = _issuer_of(token)
    if not audiences:
        raise Unauthenticated("No audience is configured for bearer tokens")
    registry = jwt.JWTClaimsRegistry(
        leeway=LEEWAY_SECONDS,
        iss={"essential": True, "value": issuer},
        sub={"essential": True},
        aud={"essential": True, "values": list(audiences)},
        exp={"essential": True},
    )
    try:
        found = jwt.decode(
            token,
            lambda signed: _signing_key(issuer, signed.headers()),
            registry=_registry(),
        )
        registry.validate(found.claims)
    except ExpiredTokenError:
        raise TokenExpired from None
    except (JoseError, ValueError, TypeError, OverflowError) as error:
        # Never its text: some of these errors repeat parts of the token.
        raise Unauthenticated(f"The token is not valid ({type(error).__name__})") from None
    if nonce is not None and found.claims.get("nonce") != nonce:
        raise Unauthenticated("The ID token is of another log-in")
    subject = found.claims["sub"]
    if len(subject) > _LONGEST_CLAIM or not subject.isprintable():
        raise Unauthenticated("The token's subject is not printable, or too long")
    return issuer, found.claims


def _registry() -> jws.JWSRegistry:
    """Which algorithms are taken; headers may be as long as certificates make them."""
    found = jws.JWSRegistry(algorithms=settings.MONODON_OIDC_ALGORITHMS, strict_check_header=False)
    found.max_header_length = _MAX_TOKEN
    return found


def _issuer_of(token: str) -> str:
    """What an unverified token says of its issuer. Raises Unauthenticated for another one."""
    try:
        if len(token) > _MAX_TOKEN:
            raise ValueError
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        issuer = claims["iss"]
    except (IndexError, KeyError, TypeError, ValueError, RecursionError, binascii.Error):
        raise Unauthenticated("The token is malformed") from None
    if issuer not in settings.MONODON_OIDC_ISSUERS:
        raise Unauthenticated("The token's issuer is not known here")
    return str(issuer)


# --- principals ----------------------------------------------------------------------------------


def principal_of(issuer: str, claims: Claims) -> Principal:
    """The principal for whom verified claims stand, with its groups as the issuer tells them.

    Raises Unauthenticated for an unknown or an inactive one.
    """
    subject = claims["sub"]
    row = _find(issuer, subject)
    if row is None:
        if not settings.MONODON_OIDC_AUTO_CREATE:
            raise Unauthenticated("The token's subject is not known here")
        row = _create(issuer, subject, claims)
    if not row.is_active or (row.user is not None and not row.user.is_active):
        raise Unauthenticated("The token's subject was deactivated here")
    wanted = groups_of(claims)
    if wanted is not None:
        _join(row, issuer, wanted)
    return row


def groups_of(claims: Claims) -> set[str] | None:
    """What the groups claim says; None: there is none, so nothing is said of groups."""
    found = claims.get(settings.MONODON_OIDC_GROUPS_CLAIM)
    if isinstance(found, str):
        found = [found]
    if not isinstance(found, list):
        return None
    words = (word for word in found[:_MAX_GROUPS] if isinstance(word, str) and "\x00" not in word)
    return set(words)


def _find(issuer: str, subject: str) -> Principal | None:
    rows = Principal.objects.select_related("user").exclude(kind=PrincipalKind.GROUP)
    return rows.filter(issuer=issuer, subject=subject).first()


def _create(issuer: str, subject: str, claims: Claims) -> Principal:
    given = claims.get(settings.MONODON_OIDC_NAME_CLAIM)
    name = f"user:{given if isinstance(given, str) and given else subject}"
    try:
        principals.check_name(name, PrincipalKind.USER)
    except CatalogError as error:
        raise Unauthenticated(
            f"The token's subject can get no principal: {error.message}"
        ) from None
    if principals.owns_anything(name):
        # Of somebody who is gone: whoever may choose a name at the issuer must not get it.
        raise Unauthenticated(
            f"The token's subject is not known here, and who was called '{name}' still owns"
            " something: an administrator has to make the principal"
        )
    try:
        with transaction.atomic():
            row = Principal.objects.create(
                name=name,
                kind=PrincipalKind.USER,
                level=PrincipalLevel.GRANTED,
                issuer=issuer,
                subject=subject,
                created_by=access.SYSTEM.name,
            )
            audit_records.record(
                access.SYSTEM, "principal.create", name, after=principals.facts(row)
            )
        return row
    except IntegrityError:
        # Another request was first; or the name is somebody else's, who keeps it: whoever may
        # choose a name at the issuer must not become an administrator of the same name here.
        found = _find(issuer, subject)
        if found is None:
            raise Unauthenticated(
                f"The token's subject is not known here, and the name '{name}' is another's: an"
                " administrator has to enter issuer and subject there"
            ) from None
        return found


def _join(row: Principal, issuer: str, wanted: set[str]) -> None:
    """Make the memberships in the issuer's groups those that it tells."""
    of_issuer = Principal.objects.filter(kind=PrincipalKind.GROUP, issuer=issuer)
    there = {group.pk: group.name for group in of_issuer.filter(subject__in=wanted)}
    held = dict(row.groups.filter(issuer=issuer).values_list("pk", "name"))
    if there.keys() == held.keys():
        return
    with transaction.atomic():
        row.groups.remove(*(held.keys() - there.keys()))
        row.groups.add(*(there.keys() - held.keys()))
        for name in sorted(held[pk] for pk in held.keys() - there.keys()):
            audit_records.record(
                access.SYSTEM, "principal.leave", name, before={"member": row.name}
            )
        for name in sorted(there[pk] for pk in there.keys() - held.keys()):
            audit_records.record(access.SYSTEM, "principal.join", name, after={"member": row.name})
    known_keys.forget_keys()


# --- an issuer's keys ----------------------------------------------------------------------------


@dataclass
class _Issuer:
    """What is known of an issuer, and when it was asked. Times are of the monotonic clock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    document: dict[str, Any] = field(default_factory=dict)
    keys: list[_Key] = field(default_factory=list)
    fetched_at: float = float("-inf")
    tried_at: float = float("-inf")
    is_away: bool = False


_issuers: dict[str, _Issuer] = {}
"""By address; there are no more of them than the settings name."""


def forget() -> None:
    """Make this process ask every issuer anew."""
    _issuers.clear()


def document_of(issuer: str) -> Mapping[str, Any]:
    """The issuer's own description (OpenID Connect Discovery). Raises ServiceUnavailable."""
    return _refreshed(issuer).document


def _signing_key(issuer: str, header: Mapping[str, Any]) -> _Key:
    """The issuer's key that a token names. Raises Unauthenticated, ServiceUnavailable."""
    known = _refreshed(issuer)
    key = _choose(known.keys, header)
    if key is None and time.monotonic() - known.tried_at >= _UNKNOWN_KEY_SECONDS:
        key = _choose(_refreshed(issuer, known.fetched_at).keys, header)
    if key is None:
        raise Unauthenticated("The token's key is not one of its issuer's")
    return key


def _choose(keys: list[_Key], header: Mapping[str, Any]) -> _Key | None:
    algorithm, kid = str(header.get("alg")), header.get("kid")
    fitting = [
        key
        for key in keys
        if key.key_type == _TYPE_OF_ALGORITHM.get(algorithm[:2])
        and key.get("alg") in (None, algorithm)
        and (kid is None or key.kid == kid)
    ]
    # Without a kid only one key can be meant.
    return fitting[0] if len(fitting) == 1 else None


def _refreshed(url: str, older_than: float | None = None) -> _Issuer:
    """What is known of an issuer, asked anew if that is old. Raises ServiceUnavailable.

    ``older_than``: ask anew unless somebody has since that moment.
    """
    known = _issuers.setdefault(url, _Issuer())
    if not _is_due(known, older_than):
        return _usable(known)
    if older_than is None and known.lock.locked() and not _is_stale(known):
        return known  # another request is fetching them
    with known.lock:
        if _is_due(known, older_than):
            known.tried_at = time.monotonic()
            try:
                known.document, known.keys = _fetch(url)
            except (requests.RequestException, ValueError, TypeError, KeyError) as error:
                known.is_away = True
                log.warning("The keys of %s cannot be had: %s", url, type(error).__name__)
            else:
                known.is_away, known.fetched_at = False, time.monotonic()
    return _usable(known)


def _is_due(known: _Issuer, older_than: float | None) -> bool:
    now = time.monotonic()
    if known.is_away:
        return now - known.tried_at >= _AWAY_SECONDS
    if older_than is not None and known.fetched_at <= older_than:
        return True
    return now - known.fetched_at >= _FRESH_SECONDS


def _is_stale(known: _Issuer) -> bool:
    return time.monotonic() - known.fetched_at >= _STALE_SECONDS


def _usable(known: _Issuer) -> _Issuer:
    if _is_stale(known):
        raise ServiceUnavailable("The keys of the token's issuer cannot be had at the moment")
    return known


def _fetch(issuer: str) -> tuple[dict[str, Any], list[_Key]]:
    document = fetch_json(issuer.rstrip("/") + "/.well-known/openid-configuration")
    if document.get("issuer") != issuer:
        raise ValueError("the document is of another issuer")
    found = fetch_json(document["jwks_uri"])
    return document, [key for key in map(_import, found["keys"]) if key is not None]


def _import(found: Any) -> _Key | None:
    """A public key for signatures; None for other keys, and for those that are not understood."""
    if not isinstance(found, dict) or found.get("use", "sig") != "sig":
        return None
    kind = _KEY_TYPES.get(found.get("kty", ""))
    try:
        return None if kind is None else kind.import_key(found)
    except (JoseError, ValueError, TypeError, KeyError):
        return None


def fetch_json(url: str) -> dict[str, Any]:
    """The JSON object at an address: over https or on this machine, without redirects, bounded in
    size and time. Raises requests.RequestException or ValueError."""
    require_safe(url)
    deadline = time.monotonic() + _WHOLE_SECONDS
    with requests.get(
        url,
        timeout=(_CONNECT_SECONDS, _READ_SECONDS),
        allow_redirects=False,
        stream=True,
        headers={"Accept": "application/json"},
    ) as response:
        if response.status_code != requests.codes.ok:
            raise ValueError(f"status {response.status_code}")
        content = b""
        for chunk in response.iter_content(16 * 1024):
            content += chunk
            if len(content) > _MAX_BYTES or time.monotonic() > deadline:
                raise ValueError("too large, or too slow")
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    return found


def require_safe(url: Any) -> str:
    """The address, if it is https or of this machine. Raises ValueError."""
    parts = urlsplit(url if isinstance(url, str) else "")
    is_here = parts.hostname in {"localhost", "127.0.0.1", "::1"}
    if parts.scheme != "https" and not (parts.scheme == "http" and is_here):
        raise ValueError("not https")
    return str(url)
