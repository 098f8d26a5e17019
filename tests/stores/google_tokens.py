"""Google's token services: tokens of a service account, and their exchange for narrower ones.

It keeps the boundary of every token that it has issued, and evaluates it with the rules that Google
documents for conditions: `startsWith` on the name of the resource and on the prefix of a list.
"""

import json
import re
import secrets
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from joserfc import jwt
from joserfc.jwk import RSAKey

_ROLES = {
    "inRole:roles/storage.objectViewer": {"get", "list"},
    "inRole:roles/storage.objectUser": {"get", "list", "create", "delete"},
}
_STRING = r'"((?:[^"\\]|\\.)*)"'
_CONDITION = re.compile(
    rf"resource\.name\.startsWith\({_STRING}\) \|\|"
    rf" api\.getAttribute\('storage\.googleapis\.com/objectListPrefix', ''\)\.startsWith\({_STRING}\)"
)


class GoogleTokens:
    """Entering starts it on loopback; `url` with `/token` and `/exchange`."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.boundaries: dict[str, list[dict[str, Any]]] = {}
        """The rules of each narrow token."""
        self.server_tokens: list[str] = []
        self.requests: list[dict[str, str]] = []
        self.answer: tuple[int, Mapping[str, Any]] | None = None
        """What the exchange answers instead of a token."""
        self.expires_in: int | None = 3599

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.tokens = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def service_account(self) -> str:
        private = self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return json.dumps(
            {
                "type": "service_account",
                "client_email": "lake@tests.example.com",
                "private_key_id": "1",
                "private_key": private.decode(),
                "token_uri": f"{self.url}/token",
            }
        )

    def permits(self, token: str, action: str, bucket: str, key: str) -> bool:
        """True if a narrow token permits "get", "create" or "delete" of an object, or "list" of a prefix."""
        for rule in self.boundaries[token]:
            if rule["availableResource"] != f"//storage.googleapis.com/projects/_/buckets/{bucket}":
                continue
            if action not in set().union(*(_ROLES[role] for role in rule["availablePermissions"])):
                continue
            match = _CONDITION.fullmatch(rule["availabilityCondition"]["expression"])
            assert match, rule
            name, prefix = (json.loads(f'"{text}"') for text in match.groups())
            resource = f"projects/_/buckets/{bucket}"
            if action != "list":
                resource += f"/objects/{key}"
            if resource.startswith(name) or (action == "list" and key.startswith(prefix)):
                return True
        return False

    def reply(self, path: str, form: dict[str, str]) -> tuple[int, Mapping[str, Any]]:
        self.requests.append(form)
        if path == "/token":
            public = RSAKey.import_key(
                self._key.public_key().public_bytes(
                    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
                )
            )
            claims = jwt.decode(form["assertion"], public, algorithms=["RS256"]).claims
            assert claims["iss"] == "lake@tests.example.com"
            self.server_tokens.append(f"server-{secrets.token_hex(8)}")
            return 200, {"access_token": self.server_tokens[-1], "expires_in": 3600}
        if self.answer is not None:
            return self.answer
        if form["subject_token"] not in self.server_tokens:
            return 400, {"error": "invalid_grant", "error_description": form["subject_token"]}
        token = f"narrow-{secrets.token_hex(8)}"
        options = json.loads(unquote(form["options"]))  # Google expects it to be quoted twice
        self.boundaries[token] = options["accessBoundary"]["accessBoundaryRules"]
        expiry = {} if self.expires_in is None else {"expires_in": self.expires_in}
        return 200, {"access_token": token, "token_type": "Bearer", **expiry}


class _Handler(BaseHTTPRequestHandler):
    server: Any

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        form = {name: values[0] for name, values in parse_qs(body).items()}
        status, answer = self.server.tokens.reply(self.path, form)
        content = json.dumps(answer).encode()
        self.send_response_only(status)
        if "location" in answer:
            self.send_header("location", answer["location"])
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None: ...
