"""The glossary of docs/glossary.md as a page, and the "?" beside headings, which leads to an entry."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from django import template
from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import slugify
from markdown_it import MarkdownIt

from catalog.admin import form_pages

register = template.Library()

FILE = settings.BASE_DIR / "docs" / "glossary.md"
_ROW = re.compile(r"^\| (?P<words>[^|]+) \| (?P<meaning>.+) \|$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
_QUOTED = re.compile(r"'[^']*'|‘[^’]*’|“[^”]*”")
# Words of headings whose entry has another form.
_FORMS = {
    "active": "job",
    "assignments": "label",
    "before": "measurement",
    "clean": "clean-up",
    "dropped object": "trash",
    "own": "owner",
    "password": "user",
    "rows": "measurement",
    "approve": "approval",
    "attention": "overview",
    "annotations": "annotation",
    "attempt": "delivery",
    "bound": "storage profile",
    "bytes": "measurement",
    "cancel": "job",
    "cost": "health",
    "decide": "approval",
    "files": "data file",
    "graph": "branch",
    "how": "search",
    "keep": "trash",
    "figures": "measurement",
    "measure": "measurement",
    "measured": "measurement",
    "operations": "operation",
    "privileges": "privilege",
    "protect": "protected",
    "protection": "protected",
    "python": "client",
    "refuse": "approval",
    "requests": "request for access",
    "result": "search",
    "results": "search",
    "sample": "table",
    "scheduled": "periodic task",
    "size": "measurement",
    "tasks": "periodic task",
    "task": "periodic task",
    "why": "effective privilege",
    "withdraw": "approval",
}
_MAX_WORDS = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the glossary."""

    word: str
    """The first of its words; the others mean the same."""
    others: tuple[str, ...]
    meaning: SafeString
    """HTML without links, which lead to other documents."""
    text: str
    """The meaning as plain text."""

    @property
    def key(self) -> str:
        """The id of the entry on its page."""
        return slugify(self.word)


@cache
def entries() -> Sequence[Entry]:
    """The entries in the order of the file."""
    rows = _ROW.finditer(FILE.read_text(encoding="utf-8"))
    result = []
    for row in rows:
        word, *others = (word.strip() for word in row["words"].split(","))
        if word == "word" or set(word) <= {"-"}:
            continue  # the head of the table
        meaning = _LINK.sub(r"\1", row["meaning"].strip())
        result.append(Entry(word, tuple(others), _html(meaning), re.sub(r"[*`]", "", meaning)))
    return result


def _html(text: str) -> SafeString:
    html: str = MarkdownIt("zero").enable(["emphasis", "backticks"]).renderInline(text)
    return SafeString(html)  # the renderer escapes


@cache
def _by_word() -> dict[str, Entry]:
    words = {entry.word: entry for entry in reversed(entries())}
    return words | {other.lower(): entry for entry in entries() for other in entry.others}


def entry_for(heading: str) -> Entry | None:
    """The entry of the longest word of the glossary in a heading; the first of several.

    Names in quotes do not count. A plural stands for its singular.
    """
    words = re.findall(r"[a-z]+", _QUOTED.sub(" ", heading).lower())
    for length in range(_MAX_WORDS, 0, -1):
        for start in range(len(words) - length + 1):
            for form in _forms(words[start : start + length]):
                if form in _by_word():
                    return _by_word()[form]
    return None


def _forms(words: Sequence[str]) -> Iterator[str]:
    """The words as they are, with the last one in the singular, and their form in the glossary."""
    text = " ".join(words)
    yield text
    if text.endswith("ies"):
        yield f"{text[:-3]}y"
    if text.endswith("es"):
        yield text[:-2]
    if text.endswith("s"):
        yield text[:-1]
    if text in _FORMS:
        yield _FORMS[text]


def url(entry: Entry | None = None) -> str:
    address = reverse("glossary")
    return f"{address}#{entry.key}" if entry else address


@register.simple_tag
def help_for(heading: object, otherwise: object = "") -> SafeString:
    """The "?" beside a heading: a link to the entry of the glossary, whose text is the tooltip.

    ``otherwise`` is used for a heading without a word of the glossary.
    """
    entry = entry_for(str(heading)) or entry_for(str(otherwise))
    if entry is None:
        return SafeString("")
    return format_html(
        '<a class="m-help" href="{}" title="{}: {}" aria-label="Help">?</a>',
        url(entry),
        entry.word,
        entry.text,
    )


def urls() -> list[URLPattern]:
    """The route of the page."""
    return [path("", admin.site.admin_view(_view), name="glossary")]


def _view(request: HttpRequest) -> HttpResponseBase:
    context = {"title": "Glossary", "entries": entries(), "opts": None}
    return form_pages.render(request, "admin/catalog/glossary.html", context)
