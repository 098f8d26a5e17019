"""Chromium, a live server with its worker and its static files, and users who sign in."""

import asyncio
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import lance
import pytest
from lance_namespace import CreateNamespaceRequest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from pyiceberg.types import BooleanType

from examples.flights import parts
from tests.browser import chromium
from tests.browser.hands import set_dark
from tests.clients.pyice import connect
from tests.live import LiveServer, live_template

__all__ = ["live_template"]

PASSWORD = "narwhals have one tusk"
PEOPLE = ("ada", "grace")
"""Two administrators: one requests, the other approves."""
ROLES = {"reader": "read", "steward": "manage grant maintain", "newcomer": ""}
"""Others with their privileges on the namespace `nyc`."""
TABLES = {"airlines": 1, "airports": 1, "planes": 1, "flights": 3}
"""Tables with the number of loaded portions. Each portion is a version and a fragment."""
ICEBERG = ("nyc", "fleet")
"""An Iceberg table with two schemas, and two snapshots of which the first has a tag."""
CHILDREN = 60
"""Number of namespaces in `nyc`: more than a page of the tree."""
WITHIN = 30_000
"""Milliseconds for a page during other tests."""
_MOST_BYTES = 200_000
_SIZE = {"width": 1280, "height": 800}

_COLLECT = """
from django.core.management import call_command
call_command("collectstatic", interactive=False, verbosity=0)
"""
_PEOPLE = """
from django.contrib.auth.models import User
for name in {names!r}:
    User.objects.create_superuser(name, password={password!r})
"""

_ROLES = """
from django.contrib.auth.models import User
from catalog.access import SYSTEM, On
from catalog.models import Principal, PrincipalKind
from catalog.privileges import parse
from catalog.services.access import grants
for name, privileges in {roles!r}.items():
    user = User.objects.create_user(name, password={password!r}, is_staff=True)
    row, _ = Principal.objects.get_or_create(name=f"user:{{name}}", defaults={{"kind": PrincipalKind.USER}})
    Principal.objects.filter(pk=row.pk).update(user=user)
    if privileges:
        grants.set_grant(actor=SYSTEM, on=On.namespace(("nyc",)), principal=row.name, privileges=parse(privileges.split()))
"""

SignIn = Callable[..., Page]


class _PlaywrightLoop:
    """Playwright's event loop, which is the running loop of this thread only during the tests here.

    Otherwise Django refuses database access in all later tests of the process.
    """

    loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> None:
        if self.loop is not None:
            asyncio._set_running_loop(self.loop)

    def leave(self) -> None:
        self.loop = asyncio._get_running_loop() or self.loop
        asyncio._set_running_loop(None)


_playwright = _PlaywrightLoop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if not item.path.is_relative_to(Path(__file__).parent):
        return (yield)
    _playwright.enter()
    try:
        return (yield)
    finally:
        _playwright.leave()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    chromium.require()
    expect.set_options(timeout=WITHIN)
    with chromium.launched() as launched:
        yield launched
        _playwright.enter()  # the process may end with another test
    _playwright.loop = None


@pytest.fixture(scope="session")
def server(browser: Browser, live_template: None) -> Iterator[LiveServer]:
    """A server for all browser tests, with the tables of `nyc`."""
    with_trash = LiveServer(
        workers=1,
        MONODON_TRASH_SECONDS="604800",
        MONODON_PURGE_GRACE_SECONDS="0",
        MONODON_WEBHOOK_HOSTS="127.0.0.1",
    )
    try:
        with_trash.manage(_COLLECT + _PEOPLE.format(names=PEOPLE, password=PASSWORD))
        with_trash.start()
        with_trash.start_worker()
        _load(with_trash)
        yield with_trash
    finally:
        with_trash.close()


@pytest.fixture(scope="session")
def roles(server: LiveServer) -> None:
    """Users with the privileges of ``ROLES``."""
    server.manage(_ROLES.format(roles=ROLES, password=PASSWORD))


class People:
    """The signed-in users, each with a browser profile and a page that all tests share.

    A new profile would load and compile all static files again, which takes a second of a processor, and a new
    page starts a process, which takes half a second.
    """

    def __init__(self, browser: Browser, url: str) -> None:
        self._browser = browser
        self._url = url
        self._profiles: dict[str, BrowserContext] = {}

    def profile(self) -> BrowserContext:
        """A new browser profile, in which nobody is signed in."""
        context = self._browser.new_context(
            base_url=self._url, viewport=_SIZE, color_scheme="light", reduced_motion="reduce"
        )
        context.set_default_timeout(WITHIN)
        context.set_default_navigation_timeout(2 * WITHIN)
        return context

    def sign_in(self, name: str) -> Page:
        """The page of a user, who signs in the first time."""
        if name in self._profiles:
            page = self._profiles[name].pages[0]
            page.set_viewport_size(_SIZE)
            return page
        context = self.profile()
        page = context.new_page()
        page.goto("/admin/")
        page.get_by_label("Username").fill(name)
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        self._profiles[name] = context
        return page

    def pages(self) -> list[Page]:
        return [page for context in self._profiles.values() for page in context.pages]

    def reset(self) -> None:
        """Close all pages but one of each user, and forget what they have stored."""
        for context in self._profiles.values():
            page, *others = context.pages
            for other in others:
                other.close()
            if page.url.startswith(self._url):
                page.evaluate("localStorage.clear(); sessionStorage.clear()")

    def close(self) -> None:
        for context in self._profiles.values():
            context.close()
        self._profiles.clear()


@pytest.fixture(scope="session")
def _people(browser: Browser, server: LiveServer) -> Iterator[People]:
    people = People(browser, server.url)
    yield people
    _playwright.enter()  # the process may end with another test
    people.close()


@pytest.fixture
def sign_in(_people: People, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SignIn]:
    """Function that opens a page of a user, who is signed in, in the user's browser profile."""
    failures = request.session.testsfailed
    yield lambda name="ada": _people.sign_in(name)
    if request.session.testsfailed > failures:
        for number, page in enumerate(
            _people.pages()
        ):  # as they were at the failure, for diagnosis
            page.screenshot(path=tmp_path / f"last-{number}.png")
        _people.close()
    else:
        _people.reset()


@pytest.fixture
def visitor(_people: People) -> Iterator[Page]:
    """A page in a browser profile of its own, in which nobody is signed in."""
    context = _people.profile()
    yield context.new_page()
    context.close()


@pytest.fixture
def screen() -> Callable[..., None]:
    """Function that takes a screenshot of a page if MONODON_SCREENS names a directory for them."""
    configured = os.environ.get("MONODON_SCREENS")
    if not configured:
        return lambda page, name: None
    directory = Path(configured)
    directory.mkdir(parents=True, exist_ok=True)

    def taken(page: Page, name: str) -> None:
        page.evaluate("document.fonts.ready")
        for scheme in ("", "-dark"):
            set_dark(page, on=bool(scheme))
            file = directory / f"admin-{name}{scheme}.png"
            page.screenshot(path=file, animations="disabled", caret="hide")
            assert file.stat().st_size < _MOST_BYTES, f"{file} is large for a page"
        set_dark(page, on=False)

    return taken


def _load(server: LiveServer) -> None:
    catalog = server.client()
    catalog.create_namespace(CreateNamespaceRequest(id=["nyc"]))
    for number in range(CHILDREN):
        catalog.create_namespace(CreateNamespaceRequest(id=["nyc", f"n{number:02}"]))
    for table, portions in TABLES.items():
        for number, (_, rows) in zip(range(portions), parts(table), strict=False):
            lance.write_dataset(
                rows,
                namespace_client=catalog,
                table_id=["nyc", table],
                mode="append" if number else "create",
            )
    (_, planes), *_ = parts("planes")
    fleet = connect(server.url, token=server.key).create_table(ICEBERG, planes.schema)
    fleet.append(planes)
    with fleet.update_schema() as schema:
        schema.add_column("retired", BooleanType(), "True if the aircraft is retired")
    fleet.append(planes.slice(0, 100))
    first = fleet.history()[0].snapshot_id
    fleet.manage_snapshots().create_tag(first, "as-loaded").commit()
