"""Log-in to the admin: the log-in page, single sign-on (OpenID Connect) and the lockout page.

The sign-on is Authlib's authorization code flow with PKCE, state and nonce.
``catalog.services.access.oidc`` verifies issuer, keys and tokens.
"""

import hashlib
import json
import logging
from functools import partial
from typing import Any
from urllib.parse import urlencode

import requests
from authlib.integrations.base_client import OAuthError
from authlib.integrations.django_client import DjangoIntegration, DjangoOAuth2App
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth import login
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST
from unfold.forms import AuthenticationForm

from catalog import encryption
from catalog.errors import CatalogError, TooManyAttempts, Unauthenticated
from catalog.models.audit import Interface
from catalog.services.access import oidc, sign_on, timed_calls, users
from catalog.services.access.throttle import throttle
from catalog.services.audit import refusals

log = logging.getLogger(__name__)

SESSION_SECONDS = 12 * 3600
"""Lifetime of a session after a single sign-on; then the issuer has to confirm the user again."""
_TIMEOUT = 10.0
_STATE_SECONDS = 600
"""The time in which a sign-on must be completed at the issuer."""
_LONGEST_TARGET = 1000
_BY_ISSUER = "signed_on_by"
"""Session key of the issuer that authenticated the user."""


class LogInForm(AuthenticationForm):  # type: ignore[misc]
    """Form of the log-in page, with the button of the single sign-on.

    Wrong passwords count as wrong API keys do, for the address that sends them. So nobody can try one password
    for each of many users.
    """

    def clean(self) -> Any:
        guess = "\0".join(str(self.cleaned_data.get(name)) for name in ("username", "password"))
        address = "" if self.request is None else self.request.META.get("REMOTE_ADDR", "")
        try:
            throttle.check(guess, address)
        except TooManyAttempts as refusal:
            self.request.axes_locked_out = True  # AxesMiddleware answers with ``locked_out``
            self.request.wait_seconds = refusal.seconds
            raise ValidationError(refusal.message) from None
        try:
            cleaned = super().clean()
        except ValidationError:
            throttle.record_failure(guess, address)
            raise
        throttle.record_success(guess)
        return cleaned

    @property
    def sign_on(self) -> str:
        """Text of the sign-on button; empty if single sign-on is not configured."""
        return settings.MONODON_OIDC_BUTTON if is_configured() else ""

    @property
    def sign_on_url(self) -> str:
        target = self.request.GET.get("next", "") if self.request is not None else ""
        query = "?" + urlencode({"next": target}) if target else ""
        return reverse("sign-on") + query


# Not in the settings: the site would import this module, and with it all pages, before it exists.
admin.site.login_form = LogInForm


def is_configured() -> bool:
    return bool(settings.MONODON_OIDC_CLIENT_ID and settings.MONODON_OIDC_ISSUERS)


class _States(DjangoIntegration):  # type: ignore[misc]
    """The state of a sign-on, which Authlib would store in a session, in a cookie of the browser.

    So requests of anybody, who has not signed in yet, store nothing in the database. The cookie is encrypted, and a
    sign-on that another browser begins has another one.
    """

    def __init__(self, request: HttpRequest) -> None:
        super().__init__("admin")
        self._request = request
        self.begun: tuple[str, str] | None = None
        """Name and value of the cookie of a sign-on that this request begins."""
        self.target = ""
        """The page to which the sign-on leads; empty for the first page."""

    def set_state_data(self, _session: object, state: str, data: dict[str, Any]) -> None:
        content = {"state": state, "data": data, "target": self.target}
        self.begun = _cookie_of(state), encryption.seal(json.dumps(content))

    def get_state_data(self, _session: object, state: str | None) -> dict[str, Any] | None:
        sealed = self._request.COOKIES.get(_cookie_of(state or ""), "")
        content = encryption.unseal(sealed, _STATE_SECONDS)
        if content is None or (stored := json.loads(content))["state"] != state:
            return None
        self.target = stored["target"]
        data: dict[str, Any] = stored["data"]
        return data

    def clear_state_data(self, _session: object, state: str) -> None:
        """Nothing is stored; ``finish`` deletes the cookie."""


def _cookie_of(state: str) -> str:
    """The name of the cookie of a sign-on, so that several may run in one browser."""
    return "monodon_sign_on_" + hashlib.sha256(state.encode()).hexdigest()[:16]


class _Client(DjangoOAuth2App):  # type: ignore[misc]
    """Authlib's client, with the issuer and ID tokens verified by ``oidc``."""

    def __init__(self, request: HttpRequest) -> None:
        self.states = _States(request)
        super().__init__(
            self.states,
            client_id=settings.MONODON_OIDC_CLIENT_ID,
            client_secret=settings.MONODON_OIDC_CLIENT_SECRET,
            client_kwargs={
                "scope": settings.MONODON_OIDC_SCOPES,
                "code_challenge_method": "S256",
                "default_timeout": _TIMEOUT,
                "token_endpoint_auth_method": (
                    "client_secret_basic" if settings.MONODON_OIDC_CLIENT_SECRET else "none"
                ),
            },
        )

    def load_server_metadata(self) -> dict[str, str]:
        document = oidc.document_of(settings.MONODON_OIDC_ISSUERS[0])
        return {
            name: oidc.require_safe(document.get(name))
            for name in ("authorization_endpoint", "token_endpoint")
        }

    def fetch_access_token(self, *args: Any, **options: Any) -> Any:
        return timed_calls.exchange(partial(super().fetch_access_token, *args, **options))

    def parse_id_token(self, token: dict[str, Any], nonce: str, **_: Any) -> dict[str, Any]:
        issuer, claims = oidc.verify(token["id_token"], [self.client_id], nonce=nonce)
        if issuer != settings.MONODON_OIDC_ISSUERS[0]:
            raise Unauthenticated("The ID token is from another issuer")
        if claims.get("azp", self.client_id) != self.client_id:
            raise Unauthenticated("The ID token is for another client")
        return dict(claims)


@require_GET
@never_cache
def begin(request: HttpRequest) -> HttpResponse:
    """Send the browser to the issuer."""
    if not is_configured():
        return HttpResponseRedirect(reverse("admin:login"))
    client, target = _Client(request), request.GET.get("next", "")[:_LONGEST_TARGET]
    if url_has_allowed_host_and_scheme(target, {request.get_host()}, request.is_secure()):
        client.states.target = target
    try:
        answer: HttpResponse = client.authorize_redirect(request, _redirect_uri(request))
    except (CatalogError, OAuthError, ValueError) as error:
        return _refused(request, error)
    if client.states.begun is not None:
        name, value = client.states.begun
        answer.set_cookie(
            name,
            value,
            max_age=_STATE_SECONDS,
            path=reverse("sign-on"),
            secure=settings.SESSION_COOKIE_SECURE,
            httponly=True,
            samesite="Lax",  # the redirect from the issuer comes from another site
        )
    return answer


@require_GET
@never_cache
def finish(request: HttpRequest) -> HttpResponse:
    """Handle the redirect from the issuer: identify the user, and log the user in."""
    if not is_configured():
        return HttpResponseRedirect(reverse("admin:login"))
    answer = _finished(request)
    answer.delete_cookie(_cookie_of(request.GET.get("state", "")), path=reverse("sign-on"))
    return answer


def _finished(request: HttpRequest) -> HttpResponse:
    client = _Client(request)
    try:
        if not request.GET.get("code") and not request.GET.get("error"):
            raise ValueError("no code")
        token = client.authorize_access_token(request, allow_redirects=False)
        claims = token.get("userinfo")
        if not claims:
            raise Unauthenticated("The issuer sent no ID token")
        user = sign_on.user_of(claims["iss"], claims)
    except (CatalogError, OAuthError, requests.RequestException, ValueError, KeyError) as error:
        return _refused(request, error)
    request.signed_on_by = users.SIGN_ON  # type: ignore[attr-defined]
    login(request, user, "django.contrib.auth.backends.ModelBackend")
    request.session.set_expiry(SESSION_SECONDS)
    request.session[_BY_ISSUER] = claims["iss"]
    return HttpResponseRedirect(client.states.target or reverse("admin:index"))


@require_POST
@never_cache
def leave(request: HttpRequest) -> HttpResponse:
    """End the session here, and redirect to the issuer, which ends its own session (OpenID Connect
    RP-Initiated Logout, section 2)."""
    end_session_url = _end_session_url(request)
    answer: HttpResponse = admin.site.logout(request)
    return answer if end_session_url is None else HttpResponseRedirect(end_session_url)


def _end_session_url(request: HttpRequest) -> str | None:
    """None if the issuer did not start the session, or cannot end its own.

    Without ``id_token_hint``, because the ID token is not stored: the issuer may ask the user.
    """
    issuer = request.session.get(_BY_ISSUER)
    if not (settings.MONODON_OIDC_SIGN_OUT and is_configured()):
        return None
    if issuer != settings.MONODON_OIDC_ISSUERS[0]:
        return None
    try:
        endpoint = oidc.require_safe(oidc.document_of(issuer).get("end_session_endpoint"))
    except (CatalogError, ValueError):
        return None
    back = {
        "client_id": settings.MONODON_OIDC_CLIENT_ID,
        "post_logout_redirect_uri": _absolute(request, reverse("admin:login")),
    }
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(back)}"


def _redirect_uri(request: HttpRequest) -> str:
    return _absolute(request, reverse("sign-on-finish"))


def _absolute(request: HttpRequest, path: str) -> str:
    if settings.MONODON_PUBLIC_URL:
        return f"{settings.MONODON_PUBLIC_URL}{path}"
    return request.build_absolute_uri(path)


def _refused(request: HttpRequest, error: Exception) -> HttpResponse:
    """Redirect to the log-in page with the reason. Texts of the issuer and the URL are not shown."""
    if isinstance(error, CatalogError):
        refusal = error
    else:
        refusal = Unauthenticated("The sign-on was not completed; try again")
        log.info("Sign-on failed: %s", type(error).__name__)
    refusals.note(
        refusal,
        actor=None,
        interface=Interface.ADMIN,
        action="session.begin",
        target="(sign-on)",
        address=request.META.get("REMOTE_ADDR", ""),
        request_id=getattr(request, "request_id", ""),
    )
    messages.error(request, refusal.message)
    return HttpResponseRedirect(reverse("admin:login"))


def locked_out(
    request: HttpRequest, _response: HttpResponse | None, _credentials: dict[str, Any] | None
) -> HttpResponse:
    """Response after too many failed log-ins, of a user (django-axes) or from an address."""
    seconds = getattr(request, "wait_seconds", int(settings.AXES_COOLOFF_TIME.total_seconds()))
    context = {
        **admin.site.each_context(request),
        "title": "Too many failed login attempts",
        "minutes": -(-seconds // 60),
    }
    answer = render(request, "admin/catalog/locked_out.html", context, status=429)
    answer.headers["Retry-After"] = str(seconds)
    return answer
