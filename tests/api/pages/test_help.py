"""The documentation at /help: static files, without a key, a session or the database."""

import asyncio
import os
import re
from types import SimpleNamespace

import pytest
from django.test import Client

from api.front.exchange import Exchange

PAGE = b"<!doctype html><title>Access</title><p>Who may do what.</p>"
SCRIPT = b"document.body.dataset.ready = 1"


@pytest.fixture
def site(settings, tmp_path):
    """A built site, in the place of the project's own."""
    root = tmp_path / "site"
    (root / "assets").mkdir(parents=True)
    (root / "index.html").write_bytes(b"<title>Monodon</title>")
    (root / "access.html").write_bytes(PAGE)
    (root / "assets" / "bundle.0123abcd.min.js").write_bytes(SCRIPT)
    (root / "assets" / "icon.svg").write_bytes(b"<svg/>")
    (root / "search.json").write_bytes(b"{}")
    (tmp_path / "secret.txt").write_bytes(b"secret")
    settings.HELP_ROOT = root
    return root


# No test is marked with django_db, so a statement of any of them would fail.


def test_pages_and_assets_have_their_types(site):
    types = {
        "/help/": 'text/html; charset="utf-8"',
        "/help/access.html": 'text/html; charset="utf-8"',
        "/help/assets/bundle.0123abcd.min.js": 'text/javascript; charset="utf-8"',
        "/help/assets/icon.svg": "image/svg+xml",
        "/help/search.json": "application/json",
    }
    answers = {path: Client().get(path) for path in types}
    assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(
        types, 200
    )
    assert {path: answer["Content-Type"] for path, answer in answers.items()} == types
    page = answers["/help/access.html"]
    assert page.content == PAGE
    assert page["X-Content-Type-Options"] == "nosniff"
    assert page["Cache-Control"] == "max-age=60, public"
    assert "script-src 'self' 'nonce-" in page["Content-Security-Policy"]
    assert "unsafe-eval" not in page["Content-Security-Policy"]
    assert "Set-Cookie" not in page
    assert "Access-Control-Allow-Origin" not in page
    script = answers["/help/assets/bundle.0123abcd.min.js"]
    assert script["Cache-Control"] == "max-age=315360000, public, immutable"


def test_a_session_cookie_costs_no_statement(site):
    client = Client()
    client.cookies["sessionid"] = "0123456789abcdef0123456789abcdef"
    assert client.get("/help/access.html").content == PAGE


def test_an_unchanged_page_is_answered_with_304(site):
    first = Client().get("/help/access.html")
    second = Client().get("/help/access.html", headers={"if-none-match": first["ETag"]})
    assert (second.status_code, second.content, second["ETag"]) == (304, b"", first["ETag"])
    assert "Content-Security-Policy" in second
    other = Client().get("/help/access.html", headers={"if-none-match": '"other"'})
    assert (other.status_code, other.content) == (200, PAGE)


def test_the_etag_changes_with_the_content_alone(site):
    """Reproducible images give all files the same time, so a new page may have the time of an old one."""
    page = site / "access.html"
    before = Client().get("/help/access.html")["ETag"]
    time = page.stat().st_mtime_ns
    page.write_bytes(PAGE.replace(b"Who may", b"Who can"))
    os.utime(page, ns=(time, time))
    answer = Client().get("/help/access.html", headers={"if-none-match": before})
    assert (answer.status_code, b"Who can" in answer.content) == (200, True)


def test_head_has_the_headers_of_get(site):
    head = Client().head("/help/access.html")
    assert (head.status_code, head.content) == (200, b"")
    assert head["Content-Length"] == str(len(PAGE))


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", ["/help/", "/help/access.html", "/help/nowhere"])
def test_other_methods_are_refused(site, method, path):
    answer = Client(enforce_csrf_checks=True).generic(method, path, b"x")
    assert (answer.status_code, answer["Allow"]) == (405, "GET, HEAD")


def test_the_path_without_a_slash_leads_to_the_start(site):
    answer = Client().get("/help")
    assert (answer.status_code, answer["Location"]) == (302, "/help/")
    assert Client().get("/help/index.html")["Location"] == "./"


@pytest.mark.parametrize(
    "path",
    [
        "/help/nowhere.html",
        "/help/../secret.txt",
        "/help/%2e%2e/secret.txt",
        "/help/assets/../../secret.txt",
        "/help/..%2fsecret.txt",
        "/help/%2e%2e%5csecret.txt",
        "/help//access.html",
        "/help/access.html/",
        "/help/assets",
        "/help/assets/",
        "/help/access.html%00",
    ],
)
def test_paths_outside_of_the_site_do_not_exist(site, path):
    answer = Client().get(path)
    assert answer.status_code == 404
    assert b"The documentation has no such page" in answer.content
    assert b"secret" not in answer.content


def test_a_new_build_appears_without_a_restart(site):
    client = Client()
    assert client.get("/help/access.html").content == PAGE
    (site / "access.html").write_bytes(b"new")
    (site / "added.html").write_bytes(b"added")
    start = site / "index.html"
    os.utime(start, ns=(0, start.stat().st_mtime_ns + 1))
    assert client.get("/help/access.html").content == b"new"
    assert client.get("/help/added.html").content == b"added"
    (site / "added.html").unlink()
    assert client.get("/help/added.html").status_code == 404


def test_without_a_site_the_page_says_how_to_build_it(settings, tmp_path):
    settings.HELP_ROOT = tmp_path / "missing"
    start = Client().get("/help/")
    assert start.status_code == 200
    assert b"make docs" in start.content
    assert b"docs/index.md" in start.content
    assert start["Cache-Control"] == "no-store"
    assert not re.search(rb"<script|https?://", start.content)
    assert Client().get("/help/access.html").status_code == 404
    # It appears as soon as it is built.
    settings.HELP_ROOT.mkdir()
    (settings.HELP_ROOT / "index.html").write_bytes(b"built")
    assert Client().get("/help/").content == b"built"


def test_similar_paths_are_not_pages_of_the_documentation(site):
    answer = Client(raise_request_exception=False).get("/helpers/access.html")
    assert b"Who may do what" not in answer.content
    assert answer.status_code == 404


@pytest.mark.parametrize(
    ("path", "threads"),
    [
        ("/help/", "documents"),
        ("/help/access.html", "documents"),
        ("/schema/lance", "documents"),
        ("/health/ready", "monitoring"),
        ("/helpers", "ordinary"),
        ("/v1/namespace/list", "ordinary"),
    ],
)
def test_pages_do_not_wait_for_requests_that_use_the_database(path, threads):
    """Threads of ordinary requests may all wait for the database; the pages have another one."""
    used = []

    class Recorder(Exchange):
        async def _in_thread(self, threads, job, **options):
            used.append(threads)

    front = SimpleNamespace(
        ordinary="ordinary",
        monitoring="monitoring",
        documents="documents",
        frequent_reads=None,
    )
    request = {"PATH_INFO": path, "REQUEST_METHOD": "GET"}
    asyncio.run(Recorder(front, None, None, request, None)._answer(b""))
    assert used == [threads]
