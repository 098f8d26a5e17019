"""OAuth2: access tokens (RFC 6749 section 4.4, RFC 8693) for clients that must have one.

Authlib finds the grant, asks it for a token and tells errors in the form of RFC 6749 section 5.2.
Here is what it cannot know: that a client's secret is an API key, and what a scope means.
"""

import base64
import binascii
import logging
from typing import Any
from urllib.parse import parse_qsl, unquote_plus

import orjson
from authlib.oauth2.rfc6749 import (
    AuthorizationServer,
    InvalidGrantError,
    InvalidRequestError,
    InvalidScopeError,
    OAuth2Error,
    OAuth2Request,
    UnsupportedGrantTypeError,
)
from authlib.oauth2.rfc6749.grants import BaseGrant, ClientCredentialsGrant, TokenEndpointMixin
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload
from django.http import HttpResponse
from django.utils import timezone

from api.errors import BodyTooLarge, BodyTooSlow, TooManyRequests, UnsupportedEncoding
from api.iceberg import errors
from api.iceberg import messages as m
from api.iceberg.operation import JSON, IcebergOperation
from catalog.access import Principal, tokens
from catalog.errors import (
    CatalogError,
    InvalidInput,
    ServiceUnavailable,
    TokenExpired,
    TooManyAttempts,
    Unauthenticated,
)
from catalog.models import ApiKey
from catalog.privileges import Privilege, closure, essence, parse
from catalog.services.access import api_keys
from catalog.services.access.throttle import throttle

# It logs tokens at level debug.
logging.getLogger("authlib").setLevel(logging.WARNING)

_TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 -- a name
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 -- a name
_DEFAULT_SCOPE = "catalog"
_EVERYTHING = {_DEFAULT_SCOPE, "PRINCIPAL_ROLE:ALL"}
"""The scopes that PyIceberg, Java and DuckDB request by default."""
_NOT_STORED = {"Cache-Control": "no-store", "Pragma": "no-cache"}

# RFC 6749 section 5.2; the first matching class applies.
_ERRORS: tuple[tuple[type[CatalogError], int, str], ...] = (
    (Unauthenticated, 401, "invalid_client"),
    (TooManyAttempts, 429, "temporarily_unavailable"),
    (TooManyRequests, 429, "temporarily_unavailable"),
    (ServiceUnavailable, 503, "temporarily_unavailable"),
    (BodyTooSlow, 408, "invalid_request"),
    (BodyTooLarge, 413, "invalid_request"),
    (UnsupportedEncoding, 415, "invalid_request"),
    (CatalogError, 400, "invalid_request"),
)


class GetToken(IcebergOperation):
    """Exchange an API key, or a token, for an access token of an hour.

    The client's secret is the API key. The client's id is the name of the key, its beginning, or
    empty. ``scope`` may list privileges, separated by blanks, to which the token is then limited. A
    token that is about to expire can be exchanged for a new one.
    """

    verb = "POST"
    request_model = "OAuthTokenRequest"
    response_model = m.OAuthTokenResponse

    def authenticate(self) -> Principal:
        """No principal yet: the credentials are in the form."""
        return Principal("-")

    def perform(self, actor: Principal, path: dict[str, str]) -> HttpResponse:
        answer: HttpResponse = _server.create_token_response(self)
        return answer

    @property
    def address(self) -> str:
        return str(self.request.META.get("REMOTE_ADDR", ""))

    def refuse(self, error: CatalogError) -> HttpResponse:
        status, name = next((s, n) for kind, s, n in _ERRORS if isinstance(error, kind))
        headers = dict(_NOT_STORED)
        if isinstance(error, (TooManyAttempts, TooManyRequests)):
            headers["Retry-After"] = str(error.seconds)
        elif status == 401:
            headers["WWW-Authenticate"] = 'Basic realm="monodon"'
        elif status == 503:
            headers |= errors.RETRY
        return _refusal(status, name, error.message, headers)

    def fail(self, message: str, detail: str) -> HttpResponse:
        return _refusal(500, "server_error", f"{message}: {detail}", _NOT_STORED)


class _Request(OAuth2Request):  # type: ignore[misc]
    """A request in the form of Authlib."""

    def __init__(self, operation: GetToken) -> None:
        # A proxy may terminate TLS, and Authlib refuses requests without TLS.
        super().__init__("POST", "https://localhost/")
        self.operation = operation
        self.payload = BasicOAuth2Payload(_form(operation.content()))


class _Client:
    """An authenticated API key as a client of Authlib. Every client may use every grant type."""

    def __init__(self, key: ApiKey, limit: Privilege) -> None:
        self.key = key
        self.limit = limit
        """The privileges of its token: at most those of the presented credentials."""

    def check_grant_type(self, _grant_type: str) -> bool:
        return True

    def check_endpoint_auth_method(self, _method: str, _endpoint: str) -> bool:
        return True


class _ClientCredentials(ClientCredentialsGrant):  # type: ignore[misc]
    TOKEN_ENDPOINT_AUTH_METHODS = ("api_key",)


class _TokenExchange(BaseGrant, TokenEndpointMixin):  # type: ignore[misc]
    """A token for a token of the same client (RFC 8693), or for the key itself."""

    GRANT_TYPE = _TOKEN_EXCHANGE

    def validate_token_request(self) -> None:
        form, operation = self.request.payload.data, self.request.operation
        client = _presented_key(operation, form)
        subject = form.get("subject_token")
        if not subject:
            raise InvalidRequestError("subject_token is missing")
        if form.get("subject_token_type", _ACCESS_TOKEN) != _ACCESS_TOKEN:
            raise InvalidRequestError(f"subject_token_type must be {_ACCESS_TOKEN}")
        throttle.check(subject, operation.address)
        try:
            key = api_keys.find_subject(token=subject, client=client)
        except Unauthenticated as error:
            if not isinstance(error, TokenExpired):
                throttle.record_failure(subject, operation.address)
            raise InvalidGrantError(_plain(f"subject_token: {error.message}")) from None
        token = tokens.read_token(subject, allow_expired=True)
        limit = Privilege.ALL if token is None else token.privileges
        self.request.client = _Client(key, key.ceiling & limit)
        self.validate_requested_scope()

    def create_token_response(self) -> tuple[int, dict[str, Any], list[tuple[str, str]]]:
        token = self.generate_token(scope=self.request.payload.scope, include_refresh_token=False)
        return 200, token, self.TOKEN_RESPONSE_HEADER


class _Server(AuthorizationServer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.register_client_auth_method("api_key", _authenticate)
        self.register_token_generator("default", _issue)
        self.register_grant(_ClientCredentials)
        self.register_grant(_TokenExchange)

    def query_client(self, client_id: str) -> None:
        """No client is identified by its id alone."""

    def create_oauth2_request(self, request: GetToken) -> _Request:
        return _Request(request)

    def send_signal(self, name: str, *args: Any, **kwargs: Any) -> None:
        pass

    def save_token(self, token: dict[str, Any], request: _Request) -> None:
        """Tokens are signed, so nothing is stored."""
        request.operation.request.actor_name = request.client.key.name  # type: ignore[attr-defined]

    def validate_requested_scope(self, scope: str | None) -> None:
        _privileges(scope)

    def handle_error_response(self, request: _Request, error: OAuth2Error) -> HttpResponse:
        if isinstance(error, UnsupportedGrantTypeError):
            error.description = _plain(
                f"grant_type is {error.grant_type!r}; use client_credentials or {_TOKEN_EXCHANGE}"
            )
        answer: HttpResponse = super().handle_error_response(request, error)
        return answer

    def handle_response(
        self, status: int, body: dict[str, Any], _headers: list[tuple[str, str]]
    ) -> HttpResponse:
        return HttpResponse(
            orjson.dumps(body), status=status, content_type=JSON, headers=_NOT_STORED
        )


def _authenticate(_query_client: Any, request: _Request) -> _Client:
    """The client of a request for its own token. Raises Unauthenticated, TooManyAttempts."""
    key = _presented_key(request.operation, request.payload.data)
    if key is None:
        raise Unauthenticated("client_secret is missing: send the API key")
    return _Client(key, key.ceiling)


def _presented_key(operation: GetToken, form: dict[str, str]) -> ApiKey | None:
    """The key in HTTP Basic authentication or in the form; None if there is none."""
    scheme, _, value = operation.request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    if scheme.lower() != "basic":
        secret = form.get("client_secret")
        if not secret:
            return None
        return _find_client(operation, [(form.get("client_id", ""), secret)])
    try:
        text = base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        raise Unauthenticated("The Authorization header is not valid") from None
    client_id, _, secret = text.partition(":")
    readings = [(client_id, secret)]
    if "%" in text or "+" in text:
        # The RFC requires form encoding of both, which hardly any client does.
        readings.append((unquote_plus(client_id), unquote_plus(secret)))
    return _find_client(operation, readings)


def _find_client(operation: GetToken, readings: list[tuple[str, str]]) -> ApiKey:
    """The key of the first reading that is valid. If none is, this counts as one attempt."""
    client_id, secret = readings[0]
    throttle.check(secret, operation.address, client_id)
    for reading in readings:
        try:
            key = api_keys.find_client(client_id=reading[0], client_secret=reading[1])
        except Unauthenticated as error:
            refused = error
        else:
            throttle.record_success(secret)
            return key
    if not isinstance(refused, TokenExpired):
        throttle.record_failure(secret, operation.address, client_id)
    raise refused


def _privileges(scope: str | None) -> Privilege:
    """The privileges that a scope requests. Raises InvalidScopeError for an unknown word."""
    if len(scope or "") > _LONGEST_SCOPE:
        raise InvalidScopeError(f"A scope has at most {_LONGEST_SCOPE} characters")
    words = (scope or _DEFAULT_SCOPE).split()
    if not _EVERYTHING.isdisjoint(words):
        words = [word for word in words if word not in _EVERYTHING] + ["all"]
    try:
        return closure(parse(words))
    except InvalidInput as error:
        raise InvalidScopeError(_plain(error.message)) from None


def _issue(client: _Client, scope: str | None = None, **_: Any) -> dict[str, Any]:
    """Issue a token. Raises InvalidScopeError for scopes beyond those of the client."""
    requested = _privileges(scope)
    if requested == Privilege.ALL:
        granted = client.limit
        granted_scope = (
            scope or _DEFAULT_SCOPE if granted == Privilege.ALL else " ".join(essence(granted))
        )
    else:
        granted, granted_scope = requested, scope or _DEFAULT_SCOPE
        if beyond := requested & ~client.limit:
            raise InvalidScopeError(f"Beyond what was presented: {' '.join(essence(beyond))}")
    return {
        "access_token": tokens.issue_token(client.key.pk, granted),
        "token_type": "bearer",
        "expires_in": _lifetime(client.key),
        "issued_token_type": _ACCESS_TOKEN,
        "scope": granted_scope,
    }


def _lifetime(key: ApiKey) -> int:
    """The lifetime of a token of this key in seconds: it expires with its key at the latest."""
    if key.expires_at is None:
        return tokens.LIFETIME_SECONDS
    remaining = int((key.expires_at - timezone.now()).total_seconds())
    return max(0, min(tokens.LIFETIME_SECONDS, remaining))


_LONGEST_SCOPE = 2_000
_ONCE = {"grant_type", "client_id", "client_secret", "scope", "subject_token", "subject_token_type"}


def _form(content: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(content.decode(), keep_blank_values=True, max_num_fields=100)
    except ValueError:
        raise InvalidInput("The request body is not form-encoded") from None
    names = [name for name, _ in pairs if name in _ONCE]
    if len(names) != len(set(names)):
        raise InvalidInput("A parameter is there more than once")
    return dict(pairs)


def _plain(text: str) -> str:
    """The text with only those characters that the RFC allows in an error's description."""
    return "".join(c if " " <= c <= "~" and c not in '"\\' else "?" for c in text[:500])


def _refusal(status: int, name: str, text: str, headers: dict[str, str]) -> HttpResponse:
    content = orjson.dumps({"error": name, "error_description": text})
    return HttpResponse(content, status=status, content_type=JSON, headers=headers)


_server = _Server()
