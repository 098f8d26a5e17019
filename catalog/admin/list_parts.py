"""Parts of a list that are computed once.

Unfold computes the headers again for each row, which takes a third of the time of a page, and renders a template
for the checkbox of each row.
"""

from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.admin import checkbox as unfold_checkbox
from unfold.templatetags import unfold_list

_ATTRIBUTE = "_monodon_headers"
_compute = unfold_list.result_headers
_CHECKBOX = unfold_checkbox.render(ACTION_CHECKBOX_NAME, "{}")


def checkbox(key: object) -> SafeString:
    """The checkbox that selects the row with this primary key for an action."""
    return format_html(_CHECKBOX, key)


def _headers(cl: ChangeList) -> list[dict[str, Any]]:
    headers: list[dict[str, Any]] | None = getattr(cl, _ATTRIBUTE, None)
    if headers is None:
        headers = list(_compute(cl))
        setattr(cl, _ATTRIBUTE, headers)
    return headers


def compute_once() -> None:
    unfold_list.result_headers = _headers
