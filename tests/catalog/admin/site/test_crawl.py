"""Crawl the admin as a reader, a steward and an administrator: no link leads to an error."""

import re
from collections import Counter, deque
from html.parser import HTMLParser
from urllib.parse import parse_qsl, urldefrag, urljoin, urlsplit

import pytest
from django.contrib.auth.models import User
from django.test import Client

from catalog.access import SYSTEM, On
from catalog.privileges import parse
from catalog.services.access import grants
from tests.access.admin_pages import make_catalog
from tests.shares import daily

_LEAVES = ("/admin/logout/", "/docs/", "/schema/", "/static/")
"""Paths outside the crawl: they end the session, or are not pages of the admin."""
_ROWS = 2
"""Pages of one kind that are visited, of different rows or with different values of a filter."""
ROLES = {"reader": ("read",), "steward": ("manage", "grant"), "administrator": None, "newcomer": ()}
"""Privileges on the namespace ``ws``; None: a superuser."""


class _Links(HTMLParser):
    """URLs of a page: links, and fragments that its scripts load."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in {"data-rows", "data-more", "data-poll", "data-src", "hx-get"} or (
                tag == "a" and name == "href"
            ):
                self.urls.append(value or "")


def links(url: str, text: str) -> set[str]:
    parser = _Links()
    parser.feed(text)
    absolute = {urldefrag(urljoin(url, link)).url for link in parser.urls if link}
    return {link for link in absolute if link.startswith("/admin/")}


def shapes_of(url: str) -> list[tuple[str, ...]]:
    """What a URL requests: its page without the numbers of rows, with each of its parameters.

    Values of filters do not count, nor do combinations of filters, of which there are thousands.
    """
    parts = urlsplit(url)
    path = re.sub(r"/(?:\d+|[0-9a-f]{8}-[0-9a-f-]{27})/", "/ROW/", parts.path)
    parameters = parse_qsl(parts.query, keep_blank_values=True)
    section = [f"{key}={value}" for key, value in parameters if key in {"tab", "section"}]
    filters = [key for key, _ in parameters if key not in {"tab", "section"}]
    return [(path, *sorted(section), name) for name in filters or [""]]


def client_of(role: str) -> Client:
    privileges = ROLES[role]
    user = User.objects.create_user(role, is_staff=True, is_superuser=privileges is None)
    if privileges:
        grants.set_grant(
            actor=SYSTEM,
            on=On.namespace(("ws",)),
            principal=f"user:{role}",
            privileges=parse(privileges),
        )
    client = Client(raise_request_exception=False)
    client.force_login(user)
    return client


@pytest.mark.usefixtures("db", "warehouse")
@pytest.mark.parametrize("role", daily(ROLES, "steward", "newcomer"))
def test_no_link_of_a_page_leads_to_an_error(role):
    make_catalog()
    client = client_of(role)
    queue, urls, broken = deque([("/admin/", "")]), {"/admin/"}, []
    shapes: Counter[tuple[str, ...]] = Counter()
    while queue:
        url, source = queue.popleft()
        answer = client.get(url)
        content = b"".join(answer.streaming_content) if answer.streaming else answer.content
        targets = set()
        if answer.status_code in {301, 302}:
            targets = {urljoin(url, answer["location"])}
            if "/login/" in answer["location"]:
                broken.append((url, source, "log-in"))
        elif answer.status_code >= 400:
            broken.append((url, source, answer.status_code))
        elif answer["content-type"].startswith("text/html"):
            targets = links(url, content.decode())
        for link in sorted(targets):
            if link.startswith(_LEAVES) or link in urls:
                continue
            if any(shapes[shape] < _ROWS for shape in shapes_of(link)):
                shapes.update(shapes_of(link))
                urls.add(link)
                queue.append((link, url))
    print(role, len(urls), *broken, sep="\n")
    assert broken == []
    assert len(urls) > (5 if role == "newcomer" else 40)
