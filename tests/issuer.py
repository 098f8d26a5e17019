"""A small OpenID Connect issuer on loopback, with its own keys."""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey

CLIENT, SECRET = "monodon-admin", "canary-client-secret"
CLI = "monodon-cli"
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
AUDIENCE = "monodon"


class Issuer:
    """An issuer whose answers can be changed between requests. ``requests`` counts them by path."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.keys: list[Any] = [RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})]
        self.requests: dict[str, int] = {}
        self.status = 200
        self.document: dict[str, Any] = {}
        self.claims: dict[str, Any] = {}
        """Additional claims of the ID token of the next log-in."""
        self.nonce: str | None = None
        self.codes: dict[str, dict[str, str]] = {}
        self.issued_secrets: list[str] = []
        """Every secret in its answers."""
        self.devices: dict[str, dict[str, Any]] = {}
        """Answers to polls by device code; a device that has signed in has the claims of its token."""
        self.refresh_tokens: dict[str, dict[str, Any]] = {}
        """The claims of the next token, by refresh token. Each is valid once."""
        self.lifetime = 600
        """Seconds for which access tokens of devices are valid."""

    # -- tokens

    def token(
        self, subject: str = "ada-1", *, key: Any = None, header: Any = None, **claims: Any
    ) -> str:
        """A signed token; a claim that is None is left out."""
        key = key or self.keys[-1]
        now = int(time.time())
        payload = {
            "iss": self.url,
            "sub": subject,
            "aud": AUDIENCE,
            "iat": now,
            "exp": now + 600,
            **claims,
        }
        kind = {"RSA": "RS256", "EC": "ES256", "oct": "HS256"}[key.key_type]
        header = {"alg": kind, **({"kid": key.kid} if key.kid else {}), **(header or {})}
        payload = {name: value for name, value in payload.items() if value is not None}
        text = jwt.encode(header, payload, key, algorithms=[header["alg"]])
        self.issued_secrets.append(text)
        return text

    def rotate(self) -> None:
        self.keys = [RSAKey.generate_key(2048, {"kid": secrets.token_hex(4), "use": "sig"})]

    # -- answers

    def answer(self, path: str, form: dict[str, str], header: str) -> tuple[int, dict[str, Any]]:
        self.requests[path] = self.requests.get(path, 0) + 1
        if self.status != 200:
            return self.status, {"error": "server_error"}
        if path == "/.well-known/openid-configuration":
            return 200, {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "jwks_uri": f"{self.url}/jwks",
                "device_authorization_endpoint": f"{self.url}/device",
                "revocation_endpoint": f"{self.url}/revoke",
                "id_token_signing_alg_values_supported": ["none", "HS256", "RS256"],
                **self.document,
            }
        if path == "/jwks":
            return 200, {"keys": [key.as_dict(private=False) for key in self.keys]}
        if path == "/device":
            return self._start_device(form)
        if path == "/revoke":
            return (400 if self.refresh_tokens.pop(form["token"], None) is None else 200), {}
        if path == "/token" and form["grant_type"] == DEVICE_GRANT:
            return self._poll(form)
        if path == "/token" and form["grant_type"] == "refresh_token":
            return self._renew(form)
        if path == "/token":
            return self._exchange(form, header)
        return 404, {}

    # -- devices (RFC 8628)

    def sign_in(self, **claims: Any) -> None:
        """Let a person sign in with every pending code."""
        for state in self.devices.values():
            state.update(error=None, claims=claims)

    def refuse(self, error: str) -> None:
        for state in self.devices.values():
            state.update(error=error)

    def _start_device(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        if form["client_id"] != CLI:
            return 401, {"error": "invalid_client"}
        assert {"openid", "offline_access"} <= set(form["scope"].split())
        code = secrets.token_urlsafe(16)
        self.issued_secrets.append(code)
        self.devices[code] = {"error": "authorization_pending"}
        return 200, {
            "device_code": code,
            "user_code": "WDJB-MJHT",
            "verification_uri": f"{self.url}/activate",
            "verification_uri_complete": f"{self.url}/activate?user_code=WDJB-MJHT",
            "expires_in": 300,
            "interval": 5,
        }

    def _poll(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        state = self.devices[form["device_code"]]
        if state["error"] is not None:
            return 400, {"error": state["error"], "error_description": "of the person"}
        del self.devices[form["device_code"]]
        return self._granted(state["claims"])

    def _renew(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        assert form["client_id"] == CLI
        claims = self.refresh_tokens.pop(form["refresh_token"], None)
        if claims is None:
            return 400, {"error": "invalid_grant", "error_description": "Token is not active"}
        return self._granted(claims)

    def _granted(self, claims: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        refresh_token = secrets.token_urlsafe(16)
        self.issued_secrets.append(refresh_token)
        self.refresh_tokens[refresh_token] = claims
        return 200, {
            "access_token": self.token(**{"jti": secrets.token_hex(4), **claims}),
            "refresh_token": refresh_token,
            "token_type": "Bearer",
            "expires_in": self.lifetime,
        }

    def authorize(self, url: str) -> str:
        """The URL to which the browser of a person who consents is redirected."""
        parameters = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert parameters["response_type"] == "code"
        assert parameters["client_id"] == CLIENT
        assert parameters["code_challenge_method"] == "S256"
        assert "openid" in parameters["scope"].split()
        code = secrets.token_urlsafe(16)
        self.issued_secrets.append(code)
        self.codes[code] = parameters
        return (
            parameters["redirect_uri"]
            + "?"
            + urlencode({"code": code, "state": parameters["state"]})
        )

    def _exchange(self, form: dict[str, str], header: str) -> tuple[int, dict[str, Any]]:
        expected = "Basic " + base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        parameters = self.codes.pop(form.get("code", ""), None)
        if header != expected or parameters is None or form["grant_type"] != "authorization_code":
            return 400, {"error": "invalid_grant"}
        challenge = hashlib.sha256(form["code_verifier"].encode()).digest()
        if (
            base64.urlsafe_b64encode(challenge).rstrip(b"=").decode()
            != parameters["code_challenge"]
        ):
            return 400, {"error": "invalid_grant"}
        assert form["redirect_uri"] == parameters["redirect_uri"]
        self.issued_secrets.append(form["code_verifier"])
        claims = {"aud": CLIENT, "nonce": self.nonce or parameters["nonce"], **self.claims}
        access_token = secrets.token_urlsafe(16)
        self.issued_secrets.append(access_token)
        return 200, {
            "access_token": access_token,
            "token_type": "Bearer",
            "expires_in": 60,
            "id_token": self.token(**claims),
        }


@contextmanager
def running() -> Iterator[Issuer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            self._answer({name: values[0] for name, values in parse_qs(text).items()})

        def _answer(self, form: dict[str, str]) -> None:
            header = self.headers.get("Authorization", "")
            status, body = issuer.answer(urlsplit(self.path).path, form, header)
            content = json.dumps(body).encode()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", f"{issuer.url}/elsewhere")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    issuer = Issuer(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def other_keys() -> dict[str, Any]:
    return {"EC": ECKey.generate_key("P-256", {"kid": "ec"}), "oct": OctKey.generate_key(256)}
