"""The presets of storage profiles as values of the form."""

from typing import Any

from catalog.admin.storage.profile_forms import CreateForm
from catalog.services.storage.profile_presets import PRESETS, Preset

# Every preset sets these fields, so that choosing another preset leaves nothing behind.
_DEFAULTS: dict[str, Any] = {
    "kind": "s3",
    "region": "",
    "endpoint": "",
    "sts_endpoint": "",
    "path_style": False,
    "conditional_writes": True,
    "identity": "environment",
    "role": "",
    "client_access": "none",
    "lifetime_seconds": 3600,
}


def values(preset: Preset | None) -> dict[str, Any]:
    """Values of the form for a preset, or for an empty form."""
    if preset is None:
        return _DEFAULTS
    return _DEFAULTS | {"kind": preset.kind, **preset.fields}


def hints(preset: Preset) -> list[str]:
    """What to enter in the fields that the preset cannot fill, a line for each field."""
    labels = {name: field.label or name for name, field in CreateForm.base_fields.items()}
    return [f"{labels.get(name, name)}: {text}" for name, text in preset.hints.items()]


def data() -> dict[str, dict[str, Any]]:
    """All presets as JSON for the script of the form."""
    return {
        name: {"values": values(preset), "hints": hints(preset)} for name, preset in PRESETS.items()
    }
