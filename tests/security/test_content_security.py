"""The Content-Security-Policy of pages: only scripts of this server, and inline ones with the nonce."""

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.cases import shared_cases
from tests.factories import make_namespace, make_table

pytestmark = pytest.mark.django_db
ADMIN = [
    "/admin/login/",
    "/admin/",
    "/admin/catalog/namespace/",
    "/admin/catalog/table/",
    "/admin/catalog/job/",
    "/admin/catalog/apikey/add/",
    "/admin/auth/user/add/",
    "/admin/search/?s=x&extended=1",
    "/admin/nowhere/",
]
DOCS = ["/docs", "/docs/iceberg", "/docs/lancedb", "/docs/management"]
INLINE = re.compile(r"<script(?![^>]*\bsrc=)([^>]*)>")
HANDLER = re.compile(r"<[^>]+\son[a-z]+\s*=|(?:href|src)=[\"']?javascript:", re.IGNORECASE)


@pytest.fixture(autouse=True)
def _plain_static_files(settings, tmp_path) -> None:
    """Disable hashed names of static files, which exist only after collectstatic."""
    settings.STATIC_ROOT = tmp_path
    settings.STORAGES = {
        **settings.STORAGES,
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    }


@pytest.fixture
def client(warehouse) -> Client:
    make_namespace("ws")
    make_table("ws", "t")
    client = Client(raise_request_exception=False)
    client.force_login(User.objects.create_superuser("ada", password="x"))
    return client


def policy(answer) -> dict[str, list[str]]:
    parts = [
        directive.split() for directive in answer.headers["content-security-policy"].split(";")
    ]
    return {directive[0]: directive[1:] for directive in parts}


@shared_cases("path", ADMIN + DOCS)
def test_pages_forbid_foreign_scripts(client, path):
    browser = Client() if "login" in path else client
    answer = browser.get(path)
    assert answer.status_code == (404 if "nowhere" in path else 200)
    directives = policy(answer)
    (nonce,) = [source for source in directives["script-src"] if source.startswith("'nonce-")]
    eval_of_alpine = ["'unsafe-eval'"] if path.startswith("/admin") else []
    assert directives == {
        "default-src": ["'none'"],
        "script-src": ["'self'", nonce, *eval_of_alpine],
        "style-src": ["'self'", "'unsafe-inline'"],
        "img-src": ["'self'", "data:"],
        "media-src": ["data:"],
        "font-src": ["'self'", "data:"],
        "connect-src": ["'self'"],
        "form-action": ["'self'"],
        "base-uri": ["'none'"],
        "frame-ancestors": ["'none'"],
    }
    text = answer.content.decode()
    for attributes in INLINE.findall(text):
        assert f'nonce="{nonce[7:-1]}"' in attributes
    assert not HANDLER.findall(text)
    assert not re.findall(r"(?:src|href)=\"https?://(?!testserver)[^\"]+\.(?:js|css)", text)


def test_every_answer_has_its_own_nonce(client):
    nonces = {policy(client.get("/admin/"))["script-src"][1] for _ in range(5)}
    assert len(nonces) == 5
    assert all(len(nonce) >= 30 for nonce in nonces)


def test_logout_may_redirect_to_the_issuer(client, settings):
    settings.MONODON_OIDC_ISSUERS = ["https://login.example.com/realm", "http://localhost:9/x"]
    settings.MONODON_OIDC_SIGN_OUT = True
    directives = policy(Client().get("/admin/login/"))
    assert directives["form-action"] == ["'self'", "https:", "http://localhost:9"]


def test_api_answers_have_no_policy(lance):
    assert "content-security-policy" not in lance.call("GET", "/v1/config").headers


def test_the_documents_load_their_script_from_this_server(client):
    answer = client.get("/docs")
    (url,) = re.findall(r'<script src="(/docs[^"]*)"', answer.content.decode())
    script = client.get(url.replace("&amp;", "&"))
    assert script.status_code == 200
    assert script["content-type"].startswith("application/javascript")
    assert b"/schema/lance" in script.content


@pytest.mark.parametrize("path", [*DOCS, "/admin/", "/admin/catalog/table/"])
def test_pages_link_to_the_documentation(client, path):
    (link,) = set(re.findall(r'<a [^>]*href="(/help[^"]*)"', client.get(path).content.decode()))
    assert link == "/help/"
