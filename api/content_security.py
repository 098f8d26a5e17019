"""The Content-Security-Policy of the pages: the admin, its log-in page and the API documents.

Django has this only from version 6 on. The names are Django's: templates add ``request.csp_nonce`` to
inline scripts.
"""

import secrets
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase

HEADER = "Content-Security-Policy"
_POLICY = {
    "default-src": ["'none'"],
    "script-src": ["'self'"],
    # The theme writes its colours into a style element, and widths into attributes.
    "style-src": ["'self'", "'unsafe-inline'"],
    "img-src": ["'self'", "data:"],
    # Recordings in rows of tables.
    "media-src": ["data:"],
    "font-src": ["'self'", "data:"],
    "connect-src": ["'self'"],
    "form-action": ["'self'"],
    "base-uri": ["'none'"],
    "frame-ancestors": ["'none'"],
}


class ContentSecurityPolicyMiddleware:
    """Lets a page run the scripts of this server, and inline ones that have its nonce, and no others."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        nonce = secrets.token_urlsafe(16)
        request.csp_nonce = nonce  # type: ignore[attr-defined]
        response = self.get_response(request)
        response.headers.setdefault(HEADER, _policy(request.path_info, nonce))
        return response


def _policy(path: str, nonce: str) -> str:
    parts = _POLICY | {"form-action": _form_action()}
    scripts = [*_POLICY["script-src"], f"'nonce-{nonce}'"]
    if path.startswith("/admin"):
        # Alpine, which the pages of the theme use, compiles the expressions in their attributes.
        scripts.append("'unsafe-eval'")
    parts["script-src"] = scripts
    return "; ".join(f"{name} {' '.join(sources)}" for name, sources in parts.items())


def _form_action() -> Sequence[str]:
    """The log-out is a form, and redirects to the issuer's page, whose host is not known here."""
    targets = list(_POLICY["form-action"])
    if settings.MONODON_OIDC_ISSUERS and settings.MONODON_OIDC_SIGN_OUT:
        plain = (urlsplit(issuer) for issuer in settings.MONODON_OIDC_ISSUERS)
        targets += ["https:", *(f"http://{url.netloc}" for url in plain if url.scheme == "http")]
    return targets
