"""The forms in which people create and edit functions."""

from datetime import datetime
from typing import Any

import orjson
from django import forms
from django.utils.dateparse import parse_datetime
from unfold.widgets import (
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg import functions as format_

_MAX_DEPTH = 200


_EXAMPLE = """[
  {
    "parameters": [{"name": "x", "type": "int"}],
    "return-type": "int",
    "versions": [
      {
        "representations": [{"type": "sql", "dialect": "spark", "sql": "x + 1"}]
      }
    ]
  }
]"""


class _FunctionForm(forms.Form):
    doc = forms.CharField(required=False, label="Description", widget=UnfoldAdminTextInputWidget())
    definitions = forms.CharField(
        initial=_EXAMPLE,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 24, "spellcheck": "false"}),
        help_text="JSON array with one object for each signature. To change a function, add a version. "
        "definition-id, version-id, timestamp-ms and current-version-id are optional.",
    )
    secure = forms.BooleanField(
        required=False,
        label="Secure: engines hide the definition",
        widget=UnfoldBooleanSwitchWidget(),
    )
    properties = forms.CharField(
        required=False,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3}),
        help_text="One key=value pair per line. Optional.",
    )

    def clean_definitions(self) -> list[dict[str, Any]]:
        try:
            content = orjson.loads(self.cleaned_data["definitions"])
        except orjson.JSONDecodeError as error:
            raise forms.ValidationError(
                f"Not valid JSON: {error.msg} in line {error.lineno}, column {error.colno}."
            ) from None
        _check_storable(content)
        try:
            # The same check as in the service, so that an error is shown at the field.
            made = format_.complete(content, 0)
            format_.check({**_SHELL, "definitions": made})
        except InvalidMetadata as error:
            raise forms.ValidationError(str(error)) from None
        definitions: list[dict[str, Any]] = content
        return definitions

    def clean_properties(self) -> dict[str, str]:
        properties = {}
        for line in self.cleaned_data["properties"].splitlines():
            if not line.strip():
                continue
            key, sign, text = line.partition("=")
            if not sign or not key.strip():
                raise forms.ValidationError(f"'{line}' does not have the form key=value.")
            properties[key.strip()] = text.strip()
        return properties


_SHELL = {
    "function-uuid": "00000000-0000-0000-0000-000000000000",
    "format-version": format_.FORMAT_VERSION,
    "definition-log": [],
}


def _check_storable(value: object) -> None:
    """Raise ValidationError for NUL, which PostgreSQL does not store, and for too deep nesting."""
    level: list[Any] = [value]
    for _ in range(_MAX_DEPTH):
        parts = [item for item in level if isinstance(item, (dict, list))]
        texts = [item for item in level if isinstance(item, str)]
        texts += [key for item in parts if isinstance(item, dict) for key in item]
        if any("\x00" in text for text in texts):
            raise forms.ValidationError("A string contains a NUL character. Remove it.")
        level = [
            inner for item in parts for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise forms.ValidationError(f"The JSON is nested deeper than {_MAX_DEPTH} levels.")


class AddForm(_FunctionForm):
    namespace = forms.CharField(
        widget=UnfoldAdminTextInputWidget(), help_text="Namespace path with dots, such as prod.ml."
    )
    name = forms.CharField(widget=UnfoldAdminTextInputWidget())
    field_order = ("namespace", "name")


class ChangeForm(_FunctionForm):
    seen_at = forms.CharField(widget=forms.HiddenInput())

    def clean_seen_at(self) -> datetime:
        try:
            moment = parse_datetime(self.cleaned_data["seen_at"])
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            raise forms.ValidationError("The form is invalid. Reload the page.")
        return moment
