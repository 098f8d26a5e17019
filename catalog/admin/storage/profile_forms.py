"""The form of a storage profile, which creates one or changes it."""

from collections.abc import Iterator, Sequence
from typing import Any

from django import forms
from django.http import QueryDict
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminPasswordWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from catalog.models import StorageProfile
from catalog.models.storage import CLIENT_ACCESS, IDENTITIES, KINDS
from catalog.services.storage.profile_operations import FIELDS, Changes
from catalog.storage.configuration import ClientAccess, Key, ServerIdentity, StoreKind

FIELDSETS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Profile", ("name", "kind", "roots")),
    ("Store", ("region", "endpoint", "path_style", "conditional_writes", "kms_key")),
    (
        "Access of the server",
        ("identity", "key_id", "secret", "token", "role", "external_id", "sts_endpoint"),
    ),
    ("Access of clients", ("client_access", "lifetime_seconds")),
)


def _text(name: str, label: str, help_text: str = "") -> forms.CharField:
    return forms.CharField(
        required=False,
        label=label,
        help_text=help_text or _help(name),
        widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )


def _secret(label: str, help_text: str) -> forms.CharField:
    return forms.CharField(
        required=False,
        label=label,
        help_text=help_text,
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"}),
    )


def _choice(
    name: str, label: str, choices: dict[str, str], help_text: str = ""
) -> forms.ChoiceField:
    pairs = [(value, text[0].upper() + text[1:]) for value, text in choices.items()]
    return forms.ChoiceField(
        label=label,
        choices=pairs,
        help_text=help_text or _help(name),
        widget=UnfoldAdminSelectWidget(choices=pairs),
    )


def _switch(label: str, help_text: str) -> forms.BooleanField:
    return forms.BooleanField(
        required=False, label=label, help_text=help_text, widget=UnfoldBooleanSwitchWidget()
    )


def _help(name: str) -> str:
    field: Any = StorageProfile._meta.get_field(name)
    return str(field.help_text)


class ProfileForm(forms.Form):
    """All fields of a profile. The services check the values; secrets are never shown again."""

    kind = _choice("kind", "Kind", KINDS, "The protocol of the store.")
    roots = forms.CharField(
        label="Roots",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3, "spellcheck": "false"}),
        help_text="Locations below which tables may be, one per line, such as s3://lake/tables. New tables are"
        " placed below the first. Roots of profiles must not overlap.",
    )
    region = _text("region", "Region")
    endpoint = _text("endpoint", "Endpoint", "URL of the store. Empty: the provider's own.")
    path_style = _switch(
        "Path style",
        "S3: the bucket is part of the URL's path rather than of its host name. Most stores outside AWS"
        " need it.",
    )
    conditional_writes = _switch(
        "Conditional writes",
        "The store honors If-None-Match, so that a write never replaces an object. The test checks it.",
    )
    kms_key = _text(
        "kms_key",
        "KMS key",
        "S3: key of the provider's key management that encrypts new objects. Empty: the bucket's default.",
    )
    identity = _choice("identity", "The server uses", IDENTITIES)
    key_id = _text("key_id", "Key id")
    secret = _secret(
        "Secret",
        "Secret access key, account key of Azure, or the JSON of a service account's key. Stored encrypted.",
    )
    token = _secret("Session token", "S3: only for temporary keys. Stored encrypted.")
    role = _text("role", "Role")
    external_id = _text("external_id", "External ID")
    sts_endpoint = _text("sts_endpoint", "Token service")
    client_access = _choice("client_access", "Clients get", CLIENT_ACCESS)
    lifetime_seconds = forms.IntegerField(
        label="Lifetime of credentials",
        min_value=1,
        widget=UnfoldAdminIntegerFieldWidget(),
        help_text="In seconds, for temporary credentials.",
    )

    def clean_roots(self) -> list[str]:
        text: str = self.cleaned_data["roots"]
        return [line.strip() for line in text.splitlines() if line.strip()]

    @property
    def fieldsets(self) -> Iterator[tuple[str, Sequence[forms.BoundField]]]:
        """The titles of the fieldsets, with their fields."""
        for title, names in FIELDSETS:
            yield title, [self[name] for name in names if name in self.fields]

    @property
    def new_key(self) -> Key | None:
        """The key that the user entered; None if there is none."""
        data = self.cleaned_data
        if not (data["secret"] or data["token"]):
            return None
        return Key(data["key_id"], data["secret"], data["token"])

    def values(self) -> dict[str, Any]:
        """The fields of the profile, apart from its name and key."""
        values = {name: self.cleaned_data[name] for name in FIELDS}
        values["kind"] = StoreKind(values["kind"])
        values["identity"] = ServerIdentity(values["identity"])
        values["client_access"] = ClientAccess(values["client_access"])
        return values


class CreateForm(ProfileForm):
    name = forms.CharField(
        max_length=100,
        widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off"}),
        help_text="Such as lake-eu. It cannot be changed later.",
    )
    field_order = ["name"]

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if data.get("key_id") and not (data.get("secret") or data.get("token")):
            self.add_error("secret", "Enter the secret that belongs to the key id.")
        return data


class ChangeForm(ProfileForm):
    """Changes of a profile. An empty secret leaves the key unchanged."""

    confirm = forms.CharField(required=False, widget=forms.HiddenInput())

    def __init__(self, data: QueryDict | None, *, profile: StorageProfile) -> None:
        super().__init__(data, initial=initial_of(profile))
        self._profile = profile
        if profile.secret is not None:
            for name in ("secret", "token"):
                self.fields[name].widget.attrs["placeholder"] = "unchanged"

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        is_new_id = data.get("key_id", "") != self._profile.key_id
        has_key = data.get("identity") != ServerIdentity.ENVIRONMENT
        if is_new_id and has_key and not data.get("secret"):
            self.add_error("secret", "Enter the secret that belongs to the new key id.")
        return data

    def changes(self) -> Changes:
        """The fields that differ from those of the profile, and the key if one was entered."""
        values = self.values()
        changed = {
            name: value for name, value in values.items() if value != getattr(self._profile, name)
        }
        return Changes(**changed, key=self.new_key)


def initial_of(profile: StorageProfile) -> dict[str, Any]:
    """The values of the form for a profile, without its secrets."""
    values = {name: getattr(profile, name) for name in FIELDS}
    return {**values, "roots": "\n".join(profile.roots), "key_id": profile.key_id}


def add_refusal(form: forms.Form, message: str) -> None:
    """Show a refusal of the services at the field that it names, as in "roots: …"."""
    name, separator, text = message.partition(": ")
    field = {"lifetime": "lifetime_seconds", "key": "secret"}.get(name, name)
    if separator and field in form.fields:
        form.add_error(field, text[0].upper() + text[1:])
    else:
        form.add_error(None, message)
