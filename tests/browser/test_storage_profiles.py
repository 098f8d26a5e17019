"""A storage profile from a preset, and its test, in a real browser."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import SignIn
from tests.browser.hands import fill, press, says, submit, violations
from tests.live import LiveServer
from tests.stores.s3 import Moto

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(900)]

_DELETE = """
from catalog.models import StorageProfile
StorageProfile.objects.filter(name="lake").delete()
"""


@pytest.fixture
def _removed(server: LiveServer) -> Iterator[None]:
    yield
    server.manage(_DELETE)


@pytest.mark.usefixtures("_removed")
def test_a_profile_is_created_from_a_preset_and_tested(
    sign_in: SignIn, moto_s3: Moto, screen: Callable[..., None]
) -> None:
    page = sign_in()
    page.goto("/admin/catalog/storageprofile/")
    says(page, "No storage profiles")
    page.goto("/admin/catalog/storageprofile/add/")
    fill(page, "Name", "lake")
    page.get_by_label("Secret", exact=True).fill(moto_s3.secret_key)

    # A preset replaces what another one set, and keeps what was typed.
    page.get_by_role("link", name="Google Cloud Storage").click()
    expect(page.get_by_label("Kind")).to_have_value("gcs")
    page.get_by_role("link", name="MinIO and compatible").click()
    expect(page.get_by_label("Kind")).to_have_value("s3")
    expect(page.get_by_label("Path style")).to_be_checked()
    expect(page.get_by_label("Clients get")).to_have_value("sts")
    expect(page.get_by_role("textbox", name="Name")).to_have_value("lake")
    expect(page.get_by_label("Secret", exact=True)).to_have_value(moto_s3.secret_key)
    expect(page.locator("#preset-hints li")).not_to_have_count(0)
    assert violations(page) == []
    screen(page, "storage-profile-form")

    fill(page, "Endpoint", moto_s3.endpoint)
    fill(page, "Key id", moto_s3.access_key)
    fill(page, "Role", moto_s3.role)
    submit(page, "Create")
    expect(page.get_by_label("Roots")).to_have_attribute("aria-invalid", "true")
    fill(page, "Roots", f"s3://{moto_s3.new_bucket()}/tables")
    page.get_by_label("Secret", exact=True).fill(moto_s3.secret_key)
    submit(page, "Create")
    says(page, "Storage profile 'lake' was created")
    assert moto_s3.secret_key not in page.content()

    press(page, "Test")
    submit(page, "Test")
    # The page shows the checks as they end, and reloads when the test has ended.
    says(page, "Endpoint reachable")
    expect(page.locator("#m-live:not([data-poll]) .m-badge").first).to_have_text("passed")
    expect(page.get_by_role("row").filter(has_text="A client of A is refused A2")).to_contain_text(
        "passed"
    )
    assert violations(page) == []
    screen(page, "storage-profile")
