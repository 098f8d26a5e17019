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
                "id_token_signing_alg_values_supported": ["none", "HS256", "RS256"],
                **self.document,
            }
        if path == "/jwks":
            return 200, {"keys": [key.as_dict(private=False) for key in self.keys]}
        if path == "/token":
            return self._exchange(form, header)
        return 404, {}

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
