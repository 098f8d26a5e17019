"""The glossary in the admin, and the "?" beside headings."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client
from django.urls import reverse

from catalog.admin.site import glossary
from tests.access.admin_pages import make_catalog
from tests.catalog.admin.site.test_crawl import client_of

_ADDRESSES = (
    "/admin/",
    "/admin/glossary/",
    "/admin/my-access/",
    "/admin/my-access/keys/add/",
    "/admin/my-access/request/",
    "/admin/catalog/table/",
    "/admin/catalog/namespace/",
    "/admin/catalog/namespace/add/",
    "/admin/catalog/labeldefinition/add/",
    "/admin/catalog/materializedview/",
    "/admin/catalog/function/",
    "/admin/catalog/storageprofile/",
    "/admin/catalog/storageprofile/add/",
    "/admin/catalog/trashitem/",
    "/admin/catalog/approvalrequest/",
    "/admin/catalog/transaction/",
    "/admin/catalog/auditevent/",
    "/admin/catalog/tablehealth/",
    "/admin/catalog/job/",
    "/admin/catalog/webhook/",
    "/admin/catalog/webhook/add/",
    "/admin/catalog/principal/",
    "/admin/catalog/principal/add/",
    "/admin/catalog/apikey/",
    "/admin/catalog/apikey/add/",
    "/admin/auth/user/",
    "/admin/django_celery_beat/periodictask/",
    "/admin/catalog/table/999999/change/",
)
"""A page of each kind. Pages of rows are added by the test."""
_TABS = ("lineage", "schema", "maintenance", "access", "refs")


class _Headings(HTMLParser):
    """The headings of a page with the "?" in each, and the "?" of the header."""

    def __init__(self) -> None:
        super().__init__()
        self.headings: list[tuple[str, str | None, bool]] = []
        self.links: list[str] = []
        self._tag = ""
        self._text: list[str] = []
        self._link: str | None = None
        self._is_hidden = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        if tag in {"h1", "h2", "h3"}:
            self._tag, self._text, self._link = tag, [], None
            self._is_hidden = values.get("class") == "m-hidden"
        elif tag == "a" and values.get("class") == "m-help":
            self._link = values["href"]
            self.links.append(values["href"] or "")

    def handle_endtag(self, tag: str) -> None:
        if tag and tag == self._tag:
            self.headings.append(("".join(self._text).strip(), self._link, self._is_hidden))
            self._tag = ""

    def handle_data(self, data: str) -> None:
        if self._tag:
            self._text.append(data)


def keys() -> set[str]:
    return {entry.key for entry in glossary.entries()}


def test_every_row_of_the_file_is_an_entry_with_its_own_id():
    rows = [line for line in glossary.FILE.read_text().splitlines() if line.startswith("| ")]
    assert len(glossary.entries()) == len(rows) - 1  # the head of the table
    assert len(keys()) == len(glossary.entries())
    words = [entry.word.lower() for entry in glossary.entries()]
    assert words == sorted(words)


def test_forms_of_words_lead_to_entries():
    words = {entry.word for entry in glossary.entries()}
    assert set(glossary._FORMS.values()) <= words


@pytest.mark.parametrize(
    ("heading", "word"),
    [
        ("Tables", "table"),
        ("Materialized views", "materialized view"),
        ("Drop table 'policy.key'?", "drop"),
        ("Properties", "property"),
        ("API keys", "key"),
        ("Run compact without dry run?", "dry run"),
        ("What I own", "owner"),
        ("'table'", None),
    ],
)
def test_the_entry_of_a_heading(heading, word):
    entry = glossary.entry_for(heading)
    assert (entry and entry.word) == word


def test_a_meaning_is_html_without_links():
    html = {entry.word: entry for entry in glossary.entries()}["role"].meaning
    assert "<em>reader</em>" in html
    assert "](" not in "".join(entry.meaning for entry in glossary.entries())


@pytest.mark.usefixtures("db", "warehouse")
def test_every_heading_of_the_admin_has_an_entry_of_the_glossary():
    make_catalog()
    client = client_of("administrator")
    ids = set(re.findall(r'<dt id="([^"]+)"', page(client, "/admin/glossary/")))
    assert ids == keys()
    others = [reverse("admin:catalog_history"), reverse("admin:catalog_search")]
    searched = f"{others[1]}?q=nothinghasit"
    pages = {address: page(client, address) for address in (*_ADDRESSES, *others, searched)}
    pages |= {address: page(client, address) for address in _rows(pages)}
    missing: list[tuple[str, str]] = []
    headings = 0
    for address, content in pages.items():
        parser = _Headings()
        parser.feed(content.partition('id="main"')[2])  # without the sidebar
        assert {link.partition("#")[2] for link in parser.links} <= ids
        assert all(link.startswith("/admin/glossary/#") for link in parser.links)
        for text, link, is_hidden in parser.headings:
            if text.startswith("By "):
                continue  # the name of a filter, from the theme
            headings += 1
            # A hidden heading is repeated in the header of the page.
            if not (link or (is_hidden and parser.links)):
                missing.append((address, text))
    assert missing == [], sorted({text for _, text in missing})
    assert headings > 60


def page(client: Client, address: str) -> str:
    answer = client.get(address)
    if answer.status_code == 302:
        pytest.fail(f"{address} redirects to {answer['location']}")
    return answer.content.decode()


def _rows(pages: dict[str, str]) -> list[str]:
    """Pages of the first row of each list, with the tabs of a table, and its forms."""
    addresses: set[str] = set()
    for address, content in pages.items():
        if re.fullmatch(r"/admin/catalog/\w+/", address):
            addresses |= set(re.findall(rf'href="({address}[^"/?]+/change/)', content)[:1])
    (table,) = [address for address in addresses if "/table/" in address]
    forms = ("drop", "rename", "protect", "describe", "label", "policy", "grant")
    addresses |= {f"{table}?tab={tab}" for tab in _TABS}
    return sorted(addresses | {table.replace("change", form) for form in forms})


def test_the_file_is_part_of_the_product():
    root = Path(settings.BASE_DIR)
    assert "docs/glossary.md" in (root / "pyproject.toml").read_text()
    assert "COPY docs/glossary.md /app/docs/glossary.md" in (root / "Dockerfile").read_text()
