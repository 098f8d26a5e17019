"""The pages of a reader, a steward and a newcomer: every link opens, nothing overflows, and axe has no findings."""

from collections.abc import Iterator
from urllib.parse import urldefrag, urljoin, urlsplit

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import ROLES, SignIn
from tests.browser.hands import violations
from tests.shares import daily

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(1800)]

_PHONE = {"width": 390, "height": 800}
_DESKTOP = {"width": 1440, "height": 900}


def links(page: Page) -> list[str]:
    """The pages of the admin to which a page links, without those that change the session."""
    hrefs = page.locator("a[href]").evaluate_all("links => links.map(link => link.href)")
    paths = [urlsplit(urldefrag(urljoin(page.url, href)).url) for href in hrefs]
    return [
        f"{path.path}?{path.query}" if path.query else path.path
        for path in paths
        if path.path.startswith("/admin/") and "/logout/" not in path.path
    ]


def visit(page: Page, path: str, *, contrast: bool) -> Iterator[str]:
    """Open a page, and yield a line for each problem of its content and its width."""
    page.set_viewport_size(_DESKTOP)
    answer = page.goto(path)
    if answer is None or answer.status != 200:
        yield f"status {answer and answer.status}"
        return
    yield from violations(page, contrast=contrast)
    for size in (_DESKTOP, _PHONE):
        page.set_viewport_size(size)
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > size["width"]:
            yield f"{width} pixels wide on a screen of {size['width']}"


def tables_of(page: Page) -> list[str]:
    """The pages of a table of each format, without those that the user does not see."""
    addresses = []
    for name in ("nyc.flights", "nyc.fleet"):
        page.goto(f"/admin/catalog/table/?q={name}")
        table = page.locator("#result_list a").get_by_text(name, exact=True)
        if table.count():
            addresses.append(str(table.first.get_attribute("href")).partition("?")[0])
    return addresses


# A steward has the pages of a reader, with more buttons; `make engines` visits those of a reader too.
@pytest.mark.parametrize(
    "role",
    daily(ROLES, "steward", "newcomer"),
)
def test_every_page_of_a_role_opens_and_fits(role: str, roles: None, sign_in: SignIn) -> None:
    """The overview, the pages to which it links, and those of two tables with their sections.

    A steward sees all that a reader does, in the same colors.
    """
    page = sign_in(role)
    tables = tables_of(page)
    paths, problems = ["/admin/", *tables], []
    for path in paths:
        problems += [f"{path}: {line}" for line in visit(page, path, contrast=role != "reader")]
        for link in (link.partition("&")[0] for link in links(page)):
            is_page = path == "/admin/" and "/change/" not in link and "?" not in link
            is_section = link.startswith(tuple(f"{table}?tab=" for table in tables))
            if (is_page or is_section) and link not in paths:
                paths.append(link)
    assert len(paths) > (8 if role == "newcomer" else 25), paths
    assert not problems, "\n".join(problems)
