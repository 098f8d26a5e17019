"""Conversion of Markdown descriptions to HTML."""

from functools import cache
from typing import Any

from django.utils.safestring import SafeString
from markdown_it import MarkdownIt

_SCHEMES = ("http:", "https:", "mailto:")


def render(markdown: str) -> SafeString:
    """Convert a description to HTML that is safe to display.

    CommonMark with tables. Raw HTML is shown as text, only http, https and mailto links are allowed,
    and images become links, so that they are not fetched.
    """
    html: str = _renderer().render(markdown)
    return SafeString(html)  # the renderer escapes


@cache
def _renderer() -> MarkdownIt:
    renderer = MarkdownIt("commonmark", {"html": False, "linkify": False}).enable(
        ["table", "strikethrough"]
    )
    renderer.disable("image")
    renderer.validateLink = _is_allowed  # type: ignore[method-assign]
    renderer.add_render_rule("link_open", _open_link)
    return renderer


def _is_allowed(url: str) -> bool:
    return url.strip().lower().startswith(_SCHEMES)


def _open_link(renderer: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
    tokens[index].attrSet("rel", "noopener noreferrer nofollow")
    tokens[index].attrSet("target", "_blank")
    html: str = renderer.renderToken(tokens, index, options, env)
    return html
