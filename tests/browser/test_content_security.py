"""Chromium enforces the Content-Security-Policy: no page violates it, and no foreign script runs."""

import subprocess
import sys

import pytest
from playwright.sync_api import ConsoleMessage, Page, expect

from server.options import PROJECT
from tests.browser.conftest import SignIn
from tests.live import LiveServer

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(900)]
PAGES = (
    "/admin/",
    "/admin/catalog/namespace/",
    "/admin/catalog/table/",
    "/admin/catalog/tablehealth/",
    "/admin/catalog/auditevent/",
    "/admin/catalog/job/",
    "/admin/catalog/apikey/add/",
    "/admin/catalog/storageprofile/add/?preset=minio",
    "/admin/auth/user/add/",
    "/admin/search/?s=flights&extended=1",
    "/admin/django_celery_beat/periodictask/",
)


@pytest.fixture
def complaints() -> list[str]:
    return []


def watch(page: Page, complaints: list[str]) -> None:
    def note(message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text:
            complaints.append(f"{page.url}: {message.text}")

    page.on("console", note)
    page.on("pageerror", lambda error: complaints.append(f"{page.url}: {error}"))


def test_the_pages_of_the_admin_comply_with_the_policy(
    server: LiveServer, sign_in: SignIn, complaints: list[str]
) -> None:
    page = sign_in()
    watch(page, complaints)
    for path in PAGES:
        answer = page.goto(path)
        assert answer is not None
        assert answer.status == 200
        assert "'nonce-" in answer.headers["content-security-policy"]
        page.wait_for_load_state("networkidle")
    page.goto("/admin/catalog/table/")
    page.get_by_role("link", name="flights").first.click()
    for tab in page.locator("nav.m-tabs a").all_inner_texts():
        page.locator("nav.m-tabs").get_by_role("link", name=tab.strip(), exact=True).click()
        page.wait_for_load_state("networkidle")
    # Alpine and the tree's own script work: a namespace opens.
    page.goto("/admin/catalog/namespace/")
    row = page.get_by_role("row").filter(has_text="nyc").first
    row.focus()
    page.keyboard.press("ArrowRight")
    expect(row).to_have_attribute("aria-expanded", "true")
    assert complaints == []


def test_the_log_in_page_complies_with_the_policy(visitor: Page, complaints: list[str]) -> None:
    watch(visitor, complaints)
    visitor.goto("/admin/login/")
    expect(visitor.get_by_label("Username")).to_be_visible()
    visitor.wait_for_load_state("networkidle")
    assert complaints == []


def test_the_documentation_complies_with_the_policy_and_loads_nothing_from_elsewhere(
    server: LiveServer, sign_in: SignIn, complaints: list[str]
) -> None:
    subprocess.run([sys.executable, ".ci/docs"], cwd=PROJECT, check=True)
    page = sign_in()
    watch(page, complaints)
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    page.goto("/help/architecture.html")
    expect(page.locator(".diagram svg text").get_by_text("PostgreSQL").first).to_be_visible()
    page.get_by_role("textbox", name="Search").fill("compaction")
    expect(page.locator(".md-search-result__item").first).to_be_visible()
    page.locator(".md-search-result__link").first.click()
    page.wait_for_load_state("networkidle")
    assert page.url.startswith(f"{server.url}/help/")
    # The colors change by a script that was inline.
    page.goto("/help/")
    page.get_by_title("Use the light colors").click()
    expect(page.locator("body")).to_have_attribute("data-md-color-scheme", "default")
    page.reload()
    expect(page.locator("body")).to_have_attribute("data-md-color-scheme", "default")
    assert complaints == []
    assert {url for url in urls if not url.startswith((f"{server.url}/help/", "data:"))} == set()


@pytest.mark.parametrize("path", ["/docs", "/docs/iceberg", "/docs/management"])
def test_the_documents_comply_with_the_policy(
    server: LiveServer, sign_in: SignIn, complaints: list[str], path: str
) -> None:
    page = sign_in()
    watch(page, complaints)
    answer = page.goto(path)
    assert answer is not None
    assert "'unsafe-eval'" not in answer.headers["content-security-policy"]
    expect(page.locator(".opblock-tag, .opblock").first).to_be_visible()
    assert complaints == []


def test_injected_scripts_do_not_run(
    server: LiveServer, sign_in: SignIn, complaints: list[str]
) -> None:
    page = sign_in()
    watch(page, complaints)
    page.goto("/admin/")
    page.evaluate(
        """() => {
            document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.smuggled = 1'>");
            const inline = document.createElement("script");
            inline.textContent = "window.smuggled = 2";
            document.body.append(inline);
            const foreign = document.createElement("script");
            foreign.src = "https://example.com/x.js";
            document.body.append(foreign);
        }"""
    )
    page.wait_for_timeout(1000)
    assert page.evaluate("window.smuggled") is None
    assert len([text for text in complaints if "Content Security Policy" in text]) >= 3
