"""OAuth2 access tokens (RFC 6749 section 4.4, RFC 8693), for clients that must have one."""

import base64
import binascii
from urllib.parse import parse_qsl, unquote_plus

import orjson
from django.http import HttpResponse

from api.errors import BodyTooLarge
from api.iceberg import errors
from api.iceberg import messages as m
from api.iceberg.operation import JSON, IcebergOperation
from catalog.errors import CatalogError, InvalidInput, ServiceUnavailable, Unauthenticated
from catalog.models import ApiKey
from catalog.services import api_keys, tokens
from catalog.services.access import Principal

_CLIENT_CREDENTIALS = "client_credentials"
_TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 -- a name
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 -- a name
_DEFAULT_SCOPE = "catalog"
_NOT_STORED = {"Cache-Control": "no-store", "Pragma": "no-cache"}


class InvalidGrant(InvalidInput):
    pass


class UnsupportedGrantType(InvalidInput):
    pass


# RFC 6749 section 5.2; the first class that fits counts.
_ERRORS: tuple[tuple[type[CatalogError], int, str], ...] = (
    (InvalidGrant, 400, "invalid_grant"),
    (UnsupportedGrantType, 400, "unsupported_grant_type"),
    (Unauthenticated, 401, "invalid_client"),
    (ServiceUnavailable, 503, "temporarily_unavailable"),
    (BodyTooLarge, 413, "invalid_request"),
    (CatalogError, 400, "invalid_request"),
)


class GetToken(IcebergOperation):
    """Give an access token of an hour for an API key, or for a token that is about to expire.

    The client's secret is the API key; its id is the key's name, or how the key begins, or empty.
    """

    verb = "POST"
    request_model = "OAuthTokenRequest"
    response_model = m.OAuthTokenResponse

    def authenticate(self) -> Principal:
        """Nobody yet: who it is stands in the form."""
        return Principal("-")

    def perform(self, actor: Principal, path: dict[str, str]) -> HttpResponse:
        form = _form(self.content())
        key = self._key(form)
        self.request.actor_name = key.name  # type: ignore[attr-defined]
        answer = {
            "access_token": tokens.issue_token(key.pk),
            "token_type": "bearer",
            "expires_in": tokens.LIFETIME_SECONDS,
            "issued_token_type": _ACCESS_TOKEN,
            "scope": form.get("scope") or _DEFAULT_SCOPE,
        }
        return HttpResponse(orjson.dumps(answer), content_type=JSON, headers=_NOT_STORED)

    def _key(self, form: dict[str, str]) -> ApiKey:
        kind = form.get("grant_type")
        client = self._client(form)
        if kind == _CLIENT_CREDENTIALS:
            if client is None:
                raise Unauthenticated("client_secret is missing: send the API key")
            return client
        if kind != _TOKEN_EXCHANGE:
            raise UnsupportedGrantType(
                f"grant_type is {kind!r}; use {_CLIENT_CREDENTIALS} or {_TOKEN_EXCHANGE}"
            )
        subject = form.get("subject_token")
        if not subject:
            raise InvalidInput("subject_token is missing")
        try:
            return api_keys.find_subject(token=subject, client=client)
        except Unauthenticated as error:
            raise InvalidGrant(f"subject_token: {error.message}") from None

    def _client(self, form: dict[str, str]) -> ApiKey | None:
        """The client that proves itself, by HTTP Basic or in the form; None: it does not."""
        scheme, _, value = self.request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() == "basic":
            return _basic_client(value)
        secret = form.get("client_secret")
        if not secret:
            return None
        return api_keys.find_client(client_id=form.get("client_id", ""), client_secret=secret)

    def refuse(self, error: CatalogError) -> HttpResponse:
        status, name = next((s, n) for kind, s, n in _ERRORS if isinstance(error, kind))
        headers = dict(_NOT_STORED)
        if status == 401:
            headers["WWW-Authenticate"] = 'Basic realm="monodon"'
        elif status == 503:
            headers |= errors.RETRY
        return _refusal(status, name, error.message, headers)

    def fail(self, message: str, detail: str) -> HttpResponse:
        return _refusal(500, "server_error", f"{message}: {detail}", _NOT_STORED)


def _basic_client(value: str) -> ApiKey:
    try:
        text = base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        raise Unauthenticated("The Authorization header is not valid") from None
    client_id, _, secret = text.partition(":")
    try:
        return api_keys.find_client(client_id=client_id, client_secret=secret)
    except Unauthenticated:
        # The RFC wants both form-encoded here; hardly any client does that.
        if "%" not in text and "+" not in text:
            raise
    return api_keys.find_client(
        client_id=unquote_plus(client_id), client_secret=unquote_plus(secret)
    )


def _form(content: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(content.decode(), keep_blank_values=True, max_num_fields=100))
    except ValueError:
        raise InvalidInput("The request body is not form-encoded") from None


def _refusal(status: int, name: str, text: str, headers: dict[str, str]) -> HttpResponse:
    content = orjson.dumps({"error": name, "error_description": text})
    return HttpResponse(content, status=status, content_type=JSON, headers=headers)
