"""Actions on a page, and checks of its appearance."""

import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, expect

_AXE = Path(__file__).parent / "axe" / "axe.min.js"


def press(page: Page, name: str) -> None:
    """Press a button in the head of a page."""
    page.get_by_role("link", name=name, exact=True).first.click()


def choose(page: Page, menu: str, name: str) -> None:
    """Choose an entry of a menu in the head of a page."""
    # The theme's scripts, which are deferred, open the menu.
    page.wait_for_load_state()
    page.get_by_role("button", name=menu, exact=True).click()
    # The theme adds its menus to the body. The sidebar may have a link with the same name.
    page.locator("body > nav").get_by_role("link", name=name, exact=True).click()


def open_command_bar(page: Page) -> Locator:
    """Open the search with the keyboard, and return its field."""
    # The theme's scripts, which are deferred, listen for the key.
    page.wait_for_function(
        "document.querySelector('#search-input-command')?.closest('[x-data]')?._x_dataStack"
    )
    page.keyboard.press("Control+k")
    bar = page.locator("#search-input-command")
    expect(bar).to_be_focused()
    return bar


def submit(page: Page, name: str) -> None:
    """Press the button of a form."""
    page.get_by_role("button", name=name, exact=True).click()


def open_tab(page: Page, name: str) -> None:
    """Open a tab of a row's page, and wait until it is shown."""
    _open(page.locator("nav.m-tabs").first, name)


def open_section(page: Page, tab: str, name: str) -> None:
    """Open a section of a tab, and wait until it is shown."""
    open_tab(page, tab)
    _open(page.locator("nav.m-sections"), name)


def _open(tabs: Locator, name: str) -> None:
    tabs.get_by_role("link", name=name, exact=True).click()
    expect(tabs.locator("[aria-current=page]")).to_have_text(name)


def fill(page: Page, name: str, text: str) -> None:
    label = re.compile(rf"^{name}\*?$")
    # A field with suggestions is a combobox.
    field = page.get_by_role("textbox", name=label).or_(page.get_by_role("combobox", name=label))
    field.fill(text)


def says(page: Page, text: str) -> None:
    expect(page.get_by_text(text).first).to_be_visible()


def violations(page: Page, *, contrast: bool = True) -> list[str]:
    """Violations of WCAG 2.1 A and AA that axe-core reports; in the dark theme only those of
    contrast.

    The rule of contrast takes most of the time. Without ``contrast`` it is left out.
    """
    page.evaluate(_AXE.read_text())
    page.add_style_tag(content="* { transition: none !important; }")
    result = _axe(page, ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], contrast=contrast)
    if not contrast:
        return result
    set_dark(page, on=True)
    result += [f"in the dark, {line}" for line in _axe(page, ["color-contrast"])]
    set_dark(page, on=False)
    return result


def set_dark(page: Page, *, on: bool) -> None:
    """Switch the theme as its control does. The system's setting is ignored afterwards."""
    page.evaluate("on => document.documentElement.classList.toggle('dark', on)", on)


def _axe(page: Page, only: list[str], *, contrast: bool = True) -> list[str]:
    options = {"runOnly": only, "rules": {"color-contrast": {"enabled": contrast}}}
    result: dict[str, Any] = page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{violation['id']} ({violation['impact']}): {node['html'][:200]}"
        for violation in result["violations"]
        for node in violation["nodes"]
    ]
