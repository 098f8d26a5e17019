"""OpenID Connect: bearer tokens (JWT, RFC 7519 and 9068) of configured issuers, and their keys.

A token is valid if a key of its issuer signed it with an allowed algorithm, its audience is this
catalog, and it has not expired. Its subject identifies a principal. A subject without a principal is
refused, or gets a new principal without grants, depending on MONODON_OIDC_AUTO_CREATE. The groups
claim determines the principal's membership in the groups of that issuer; groups without an issuer are
managed manually. Only a token that was issued later than the last one changes memberships.

An issuer's keys are fetched once and cached. A token with an unknown key causes another fetch, at
most once in half a minute. While the issuer is unavailable, cached keys remain valid for an hour;
after that, and without cached keys, tokens are refused, without a fetch for every request.
"""

import base64
import binascii
import json
import logging
import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import requests
from django.conf import settings
from django.db import IntegrityError, transaction
from joserfc import jws, jwt
from joserfc.errors import ExpiredTokenError, JoseError
from joserfc.jwk import JWKRegistry, Key

from catalog import access
from catalog.errors import CatalogError, ServiceUnavailable, TokenExpired, Unauthenticated
from catalog.models import Principal, PrincipalKind, PrincipalLevel
from catalog.services.access import issued_groups, principals, timed_calls
from catalog.services.engine import audit_records

log = logging.getLogger(__name__)
# At level debug it logs verifiers and tokens.
logging.getLogger("authlib").setLevel(logging.WARNING)

LEEWAY_SECONDS = 60
"""The tolerated difference between the issuer's clock and that of this server."""
_FRESH_SECONDS = 900.0
_STALE_SECONDS = 3600.0
_UNKNOWN_KEY_SECONDS = 30.0
_AWAY_SECONDS = 10.0
_CONNECT_SECONDS, _READ_SECONDS = 3.0, 5.0
_PUBLIC = ("kty", "n", "e", "crv", "x", "y", "kid", "alg", "use", "key_ops")
"""The members of a public key. Deriving the primes from a private exponent can take hours."""
_FETCH_FAILURES = (
    requests.RequestException,
    ValueError,
    TypeError,
    KeyError,
    RecursionError,
    TimeoutError,
)
_MAX_BYTES = 512 * 1024
_MAX_TOKEN = 16 * 1024
_LONGEST_CLAIM = 500
_TYPE_OF_ALGORITHM = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
Claims = Mapping[str, Any]


def is_token(text: str) -> bool:
    """True if the text has the form of a JWT, and issuers are configured."""
    return bool(settings.MONODON_OIDC_ISSUERS) and text.startswith("eyJ") and text.count(".") == 2


def authenticate(token: str) -> tuple[access.Principal, float]:
    """The principal of a bearer token, and the seconds until it expires.

    Raises Unauthenticated, TokenExpired, and ServiceUnavailable when the issuer's keys are unknown.
    """
    issuer, claims = verify(token, settings.MONODON_OIDC_AUDIENCES)
    row = principal_of(issuer, claims)
    client = claims.get("azp") or claims.get("client_id")
    name = client if isinstance(client, str) and client.isprintable() else ""
    end = float(claims["exp"])
    remaining = end - time.time() + LEEWAY_SECONDS
    principal = replace(
        access.of_row(row), key=name[:100], ends_at=issued_groups.moment(end), is_vouched_for=True
    )
    return principal, remaining


def verify(
    token: str, audiences: Collection[str], *, nonce: str | None = None
) -> tuple[str, Claims]:
    """The issuer and the claims of a valid token.

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
        decoded = jwt.decode(
            token,
            lambda signed: _signing_key(issuer, signed.headers()),
            registry=_registry(),
        )
        registry.validate(decoded.claims)
    except ExpiredTokenError:
        raise TokenExpired from None
    except (JoseError, ValueError, TypeError, OverflowError) as error:
        # Without the error's text: some of these errors contain parts of the token.
        raise Unauthenticated(f"The token is not valid ({type(error).__name__})") from None
    if nonce is not None and decoded.claims.get("nonce") != nonce:
        raise Unauthenticated("The ID token is of another log-in")
    subject = decoded.claims["sub"]
    if len(subject) > _LONGEST_CLAIM or not subject.isprintable():
        raise Unauthenticated("The token's subject is not printable, or too long")
    return issuer, decoded.claims


def _registry() -> jws.JWSRegistry:
    """The allowed algorithms. Headers with certificates may be as long as a token."""
    registry = jws.JWSRegistry(
        algorithms=settings.MONODON_OIDC_ALGORITHMS, strict_check_header=False
    )
    registry.max_header_length = _MAX_TOKEN
    return registry


def _issuer_of(token: str) -> str:
    """The issuer that an unverified token names. Raises Unauthenticated if it is not configured."""
    try:
        if len(token) > _MAX_TOKEN:
            raise ValueError
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        issuer = claims["iss"]
    except (IndexError, KeyError, TypeError, ValueError, RecursionError, binascii.Error):
        raise Unauthenticated("The token is malformed") from None
    if issuer not in settings.MONODON_OIDC_ISSUERS:
        raise Unauthenticated("The token's issuer is not known here")
    return str(issuer)


# --- principals ----------------------------------------------------------------------------------


def principal_of(issuer: str, claims: Claims) -> Principal:
    """The principal of verified claims, with its memberships updated from the groups claim.

    Raises Unauthenticated for an unknown or inactive subject.
    """
    subject = claims["sub"]
    row = _find(issuer, subject)
    if row is None:
        if not settings.MONODON_OIDC_AUTO_CREATE:
            raise Unauthenticated("The token's subject is not known here")
        row = _create(issuer, subject, claims)
    if not row.is_active or (row.user is not None and not row.user.is_active):
        raise Unauthenticated("The token's subject was deactivated here")
    issued_groups.apply(row, claims)
    return row


def _find(issuer: str, subject: str) -> Principal | None:
    rows = Principal.objects.select_related("user").exclude(kind=PrincipalKind.GROUP)
    return rows.filter(issuer=issuer, subject=subject).first()


def _create(issuer: str, subject: str, claims: Claims) -> Principal:
    claim = claims.get(settings.MONODON_OIDC_NAME_CLAIM)
    name = f"user:{claim if isinstance(claim, str) and claim else subject}"
    try:
        principals.check_name(name, PrincipalKind.USER)
    except CatalogError as error:
        raise Unauthenticated(
            f"The token's subject can get no principal: {error.message}"
        ) from None
    if principals.owns_anything(name):
        # The objects of a former user: a person who can choose a name at the issuer must not get them.
        raise Unauthenticated(
            f"The token's subject is not known here, and a former principal '{name}' still owns"
            " objects: an administrator has to create the principal"
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
                access.SYSTEM, "principal.create", name, after=principals.audit_values(row)
            )
        return row
    except IntegrityError:
        # A concurrent request was first, or the name belongs to another principal, which keeps it: a
        # person who can choose a name at the issuer must not become an administrator of that name.
        created = _find(issuer, subject)
        if created is None:
            raise Unauthenticated(
                f"The token's subject is not known here, and another principal has the name '{name}': an"
                " administrator has to enter issuer and subject there"
            ) from None
        return created


# --- an issuer's keys ----------------------------------------------------------------------------


@dataclass
class _Issuer:
    """The cached document and keys of an issuer, with monotonic times of the fetches."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    document: dict[str, Any] = field(default_factory=dict)
    keys: list[Key] = field(default_factory=list)
    fetched_at: float = float("-inf")
    tried_at: float = float("-inf")
    is_away: bool = False
    fetch: Future[tuple[dict[str, Any], list[Key]]] | None = None
    """The last fetch. It may go on for long after its time, since the issuer decides how slowly it answers."""


_issuers: dict[str, _Issuer] = {}
"""By URL; limited to the issuers in the settings."""


def forget() -> None:
    """Clear the cache, so that this process fetches the keys of every issuer again."""
    _issuers.clear()


def document_of(issuer: str) -> Mapping[str, Any]:
    """The issuer's own description (OpenID Connect Discovery). Raises ServiceUnavailable."""
    return _refreshed(issuer).document


def _signing_key(issuer: str, header: Mapping[str, Any]) -> Key:
    """The issuer's key that a token names. Raises Unauthenticated, ServiceUnavailable."""
    cached = _refreshed(issuer)
    key = _choose(cached.keys, header)
    if key is None and time.monotonic() - cached.tried_at >= _UNKNOWN_KEY_SECONDS:
        key = _choose(_refreshed(issuer, cached.fetched_at).keys, header)
    if key is None:
        raise Unauthenticated("The token's key is not one of its issuer's")
    return key


def _choose(keys: list[Key], header: Mapping[str, Any]) -> Key | None:
    algorithm, kid = str(header.get("alg")), header.get("kid")
    fitting = [
        key
        for key in keys
        if key.key_type == _TYPE_OF_ALGORITHM.get(algorithm[:2])
        and key.get("alg") in (None, algorithm)
        and (kid is None or key.kid == kid)
    ]
    # Without a kid the key is determined only if exactly one fits.
    return fitting[0] if len(fitting) == 1 else None


def _refreshed(url: str, older_than: float | None = None) -> _Issuer:
    """The cached state of an issuer, fetched again when it is old. Raises ServiceUnavailable.

    ``older_than``: fetch unless another request has fetched since that time.
    """
    issuer = _issuers.setdefault(url, _Issuer())
    if not _is_due(issuer, older_than):
        return _usable(issuer)
    if older_than is None and issuer.lock.locked() and not _is_stale(issuer):
        return issuer  # another request is fetching
    with issuer.lock:
        if _is_due(issuer, older_than):
            issuer.tried_at = time.monotonic()
            try:
                issuer.document, issuer.keys = _fetch_in_time(url, issuer)
            except _FETCH_FAILURES as error:
                issuer.is_away = True
                log.warning("Cannot fetch the keys of %s: %s", url, type(error).__name__)
            else:
                issuer.is_away, issuer.fetched_at = False, time.monotonic()
    return _usable(issuer)


def _is_due(issuer: _Issuer, older_than: float | None) -> bool:
    now = time.monotonic()
    if issuer.is_away:
        return now - issuer.tried_at >= _AWAY_SECONDS
    if older_than is not None and issuer.fetched_at <= older_than:
        return True
    return now - issuer.fetched_at >= _FRESH_SECONDS


def _is_stale(issuer: _Issuer) -> bool:
    return time.monotonic() - issuer.fetched_at >= _STALE_SECONDS


def _usable(issuer: _Issuer) -> _Issuer:
    if _is_stale(issuer):
        raise ServiceUnavailable("The keys of the token's issuer are not available at the moment")
    return issuer


def _fetch_in_time(url: str, issuer: _Issuer) -> tuple[dict[str, Any], list[Key]]:
    """The document and keys of an issuer. An issuer that has not ended its last answer gets no further request.

    Raises TimeoutError, and the exceptions of ``_fetch``.
    """
    if issuer.fetch is not None and not issuer.fetch.done():
        raise TimeoutError
    issuer.fetch = timed_calls.start(partial(_fetch, url))
    return issuer.fetch.result(timed_calls.WHOLE_SECONDS)


def _fetch(issuer: str) -> tuple[dict[str, Any], list[Key]]:
    document = fetch_json(issuer.rstrip("/") + "/.well-known/openid-configuration")
    if document.get("issuer") != issuer:
        raise ValueError("the document is of another issuer")
    address = document["jwks_uri"]
    if urlsplit(issuer).scheme == "https" and urlsplit(address).scheme != "https":
        raise ValueError("the keys are not fetched over https, as the document is")
    key_set = fetch_json(address)
    return document, [key for key in map(_import, key_set["keys"]) if key is not None]


def _import(entry: Any) -> Key | None:
    """A public key for signatures; None for other keys, and for keys of unsupported types."""
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig" or entry.get("kty") == "oct":
        return None
    try:
        return JWKRegistry.import_key({name: entry[name] for name in _PUBLIC if name in entry})
    except (JoseError, ValueError, TypeError, KeyError):
        return None


def fetch_json(url: str) -> dict[str, Any]:
    """The JSON object at a URL, without redirects, and with bounds on size and on each wait.

    The URL must be https or on this machine. Raises requests.RequestException, ValueError or RecursionError.
    """
    require_safe(url)
    deadline = time.monotonic() + timed_calls.WHOLE_SECONDS
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
    document = json.loads(content)
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    return document


def require_safe(url: Any) -> str:
    """Return the URL if it is https or on this machine. Raises ValueError."""
    parts = urlsplit(url if isinstance(url, str) else "")
    is_here = parts.hostname in {"localhost", "127.0.0.1", "::1"}
    if parts.scheme != "https" and not (parts.scheme == "http" and is_here):
        raise ValueError("not https")
    return str(url)
