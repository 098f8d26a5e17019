"""Pages of everyday work: webhooks, bulk actions on tables, keys, contents of tables."""

import re
import time
from collections.abc import Callable, Iterator

import pytest
from lance.namespace import RestNamespace
from lance_namespace import CreateNamespaceRequest, ListNamespacesRequest
from lance_namespace.errors import PermissionDeniedError, UnauthenticatedError
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import ICEBERG, SignIn
from tests.browser.hands import fill, open_section, open_tab, press, says, submit, violations
from tests.live import LiveServer
from tests.receiver import Receiver

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(900)]

# Tasks that beat runs every few seconds. Events are delivered in order, and open transactions in other
# databases of this PostgreSQL server may delay them.
_DELIVER = """
import time
from catalog.models import WebhookDelivery
from tasks.maintenance import deliver_webhooks
until = time.monotonic() + 240
while not WebhookDelivery.objects.filter(target__startswith={target!r}, status={status!r}).exists():
    assert time.monotonic() < until, list(WebhookDelivery.objects.values())
    deliver_webhooks()
    time.sleep(0.1)
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    yield server
    server.close()


def row(page: Page, name: str) -> Locator:
    """The row of a list or panel that contains this text."""
    return page.get_by_role("row").filter(has_text=name)


def test_a_webhook_delivers_fails_and_replays_dead_letters(
    server: LiveServer, sign_in: SignIn, receiver: Receiver, screen: Callable[..., None]
) -> None:
    page = sign_in()
    page.goto("/admin/catalog/webhook/add/")
    fill(page, "Name", "pager")
    fill(page, "URL", receiver.url)
    fill(page, "Events", "namespace.create")
    submit(page, "Create")
    expect(page.get_by_label("Signing secret")).to_have_text(re.compile(r"^whsec_\S{20,}$"))
    page.get_by_role("link", name="View webhook").click()
    expect(page.get_by_label("Signing secret")).to_have_count(0)
    says(page, "No deliveries.")

    client = server.client()
    client.create_namespace(CreateNamespaceRequest(id=["paged"]))
    server.manage(_DELIVER.format(target="paged", status="delivered"))
    assert receiver.types == ["namespace.create"]
    page.reload()
    expect(row(page, "monodon.namespace.create")).to_contain_text("Delivered")

    # A receiver that answers 410 gets no further requests: the event is a dead letter.
    receiver.answers = [410]
    client.create_namespace(CreateNamespaceRequest(id=["paged", "again"]))
    server.manage(_DELIVER.format(target="paged.again", status="dead"))
    page.goto("/admin/")
    page.get_by_role("link", name="Undelivered events: 1").click()
    page.get_by_role("link", name="pager", exact=True).click()
    says(page, "inactive")
    open_tab(page, "Dead letters")
    expect(row(page, "paged.again")).to_contain_text("410")
    assert violations(page) == []
    screen(page, "webhook")

    press(page, "Edit")
    page.get_by_text("Active: events for an inactive").click()
    submit(page, "Save")
    says(page, "was updated")
    press(page, "Replay dead letters")
    submit(page, "Replay")
    says(page, "1 dead letter of webhook 'pager' was queued for replay")
    server.manage(_DELIVER.format(target="paged.again", status="delivered"))
    assert [event["subject"] for event in receiver.events][-1] == receiver.events[1]["subject"]
    open_tab(page, "Dead letters")
    says(page, "No dead letters.")


def test_many_tables_are_labelled_and_protected_at_once(
    server: LiveServer, sign_in: SignIn
) -> None:
    client = server.client()
    client.create_namespace(CreateNamespaceRequest(id=["shop"]))
    for name in ("one", "two", "three"):
        assert server.post(f"/v1/table/shop${name}/declare")[0] == 200
    page = sign_in()
    page.goto("/admin/catalog/labeldefinition/add/")
    fill(page, "Key", "team")
    submit(page, "Create")
    says(page, "was created")

    def act(action: str, *names: str) -> None:
        page.goto("/admin/catalog/table/?in=shop")
        expect(page.locator("#result_list tr.data-row")).to_have_count(3)
        for name in names:
            page.get_by_role("checkbox", name=f"Select shop.{name}", exact=True).check()
        says(page, f"{len(names)} of 3 selected")
        page.get_by_label("Select action to run").select_option(action)
        submit(page, "Run")

    act("Set label", "one", "two")
    expect(page.get_by_role("heading", level=2, name="Set label on 2 tables")).to_be_visible()
    page.get_by_label("Label").select_option("team")
    fill(page, "Values", "ops")
    assert violations(page) == []
    submit(page, "Save")
    says(page, "2 tables were labeled")
    act("Protect", "one", "three")
    submit(page, "Protect")
    says(page, "2 tables were protected")
    act("Drop", "one", "two", "three")
    submit(page, "Drop")
    says(page, "1 table was dropped")
    says(page, "shop.three: ")
    page.goto("/admin/catalog/table/?in=shop")
    expect(page.locator("#result_list tr.data-row")).to_have_count(2)
    page.get_by_role("link", name="shop.one", exact=True).click()
    says(page, "team=ops")


def test_the_key_of_a_service_account_is_shown_once(server: LiveServer, sign_in: SignIn) -> None:
    page = sign_in()
    page.goto("/admin/catalog/principal/add/")
    fill(page, "Name", "loader")
    page.get_by_label("Level").select_option("read everything")
    submit(page, "Create")
    expect(page.get_by_role("heading", level=1, name="loader")).to_be_visible()

    page.goto("/admin/catalog/apikey/add/")
    fill(page, "Name", "loader at night")
    fill(page, "Principal", "loader")
    submit(page, "Create")
    key_cell = page.locator("#api-key")
    expect(key_cell).to_have_text(re.compile(r"^mnd_\S{30,}$"))
    key = key_cell.inner_text()
    assert violations(page) == []
    client = RestNamespace(uri=server.url, **{"header.x-api-key": key})
    assert "nyc" in client.list_namespaces(ListNamespacesRequest(id=[])).namespaces
    with pytest.raises(PermissionDeniedError):
        client.create_namespace(CreateNamespaceRequest(id=["forbidden"]))

    page.get_by_role("link", name="All API keys").click()
    page.get_by_role("link", name="loader at night", exact=True).click()
    assert key not in page.content()
    says(page, f"{key[:6]}")
    press(page, "Revoke")
    submit(page, "Revoke")
    says(page, "API key 'loader at night' was revoked")
    # Every server process refuses it within five seconds.
    until = time.monotonic() + 60
    while is_accepted(client):
        assert time.monotonic() < until


def is_accepted(client: RestNamespace) -> bool:
    """True if the server accepts the client's key."""
    try:
        client.list_namespaces(ListNamespacesRequest(id=[]))
    except UnauthenticatedError:
        return False
    return True


def test_an_iceberg_table_is_read_tab_by_tab(
    server: LiveServer, sign_in: SignIn, screen: Callable[..., None]
) -> None:
    page = sign_in()
    page.goto("/admin/catalog/table/")
    page.get_by_role("link", name=".".join(ICEBERG), exact=True).click()
    says(page, "pyiceberg.catalog")
    sections = {
        ("Schema", "Schema"): "True if the aircraft is retired",
        ("Schema", "Partitions and sorting"): "not partitioned",
        ("Schema", "Properties"): "propert",
        ("History", "Branches and tags"): "as-loaded",
        ("History", "Metadata log"): ".metadata.json",
        ("History", "Versions"): "Metadata file",
        ("History", "Transactions"): "UpdateTable",
        ("Health", "Maintenance"): "Effective policy",
        ("Health", "Jobs"): "No jobs.",
        ("Health", "Statistics"): "statistics",
        ("Health", "Metrics reports"): "report",
        ("Access", "Access"): "Effective privileges",
        ("Access", "Audit events"): "table.commit",
    }
    for (tab, name), text in sections.items():
        open_section(page, tab, name)
        expect(page.locator("#content")).to_contain_text(re.compile(re.escape(text), re.IGNORECASE))
    open_section(page, "Data", "Files")
    page.locator("table.m-table a").first.click()
    expect(page.get_by_role("heading", name=re.compile(r"^Files of .*avro\b"))).to_be_visible()
    expect(page.locator("table.m-table").first).to_contain_text("data, parquet")
    assert violations(page) == []
    open_section(page, "History", "Snapshots")
    lines = page.locator("table.m-timeline tbody tr:not(.m-below)")
    expect(lines).to_have_count(2)
    expect(lines.first).to_contain_text("current")
    expect(lines.last).to_contain_text("as-loaded")
    assert violations(page) == []
    screen(page, "iceberg-snapshots")


def test_rows_of_a_lance_table_are_shown(
    server: LiveServer, sign_in: SignIn, screen: Callable[..., None]
) -> None:
    page = sign_in()
    page.goto("/admin/catalog/table/")
    page.get_by_role("link", name="nyc.airports", exact=True).click()
    open_tab(page, "Data")
    rows = page.locator("table.m-table tbody tr")
    expect(rows).to_have_count(20)
    page.get_by_label("SQL filter").fill("faa = 'JFK'")
    page.get_by_text("Columns", exact=True).click()
    for column in ("faa", "name"):
        page.get_by_role("checkbox", name=column, exact=True).check()
    submit(page, "Show")
    expect(rows).to_have_count(1)
    expect(rows.first).to_have_text(re.compile("^JFK.*John F Kennedy Intl$"))
    assert violations(page) == []
    screen(page, "lance-data")
    open_section(page, "Data", "Column profile")
    page.get_by_label("Column").select_option("alt")
    submit(page, "Show profile")
    expect(row(page, "Distinct values")).to_have_text(re.compile(r"[0-9]{2,}$"))
    expect(page.get_by_role("img", name="Distribution of alt")).to_be_visible()
    assert violations(page) == []
    screen(page, "column-profile")
    open_section(page, "Data", "Data")
    page.get_by_label("SQL filter").fill("nonsense = 1")
    submit(page, "Show")
    expect(page.get_by_role("alert")).to_contain_text("nonsense")
    says(page, "No rows to show.")
