"""Serializers of grants, principals, API keys and the sign-on."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from api.management import fields
from api.management.serializers.base import QuerySerializer, Serializer
from catalog.models import ApiKey, Principal, PrincipalKind, PrincipalLevel
from catalog.privileges import words

MAX_OVERLAP_SECONDS = 30 * 86_400
_WORDS = "browse, read, write, create, manage, maintain, grant; with all that they include."
_SCOPES = "The privileges that the key is limited to. Null: all privileges of its principal."


class PrivilegesField(serializers.ListField):
    """Privileges, as a list of words."""

    child = serializers.CharField()

    def to_representation(self, data: Any) -> list[str]:
        return words(data)


# --- grants ----------------------------------------------------------------------------------------


class SetGrantSerializer(Serializer):
    """A grant to set."""

    principal = fields.TextField(help_text="The principal: etl, user:ada, group:analysts.")
    privileges = fields.ListField(
        help_text="Exactly these privileges and those that they include; 'all' includes all. An"
        " empty list removes the grant."
    )
    expires_at = fields.MomentField(
        **fields.OPTIONAL,
        help_text="From then on the grant permits nothing. Null: it has no end. A grant cannot end later than"
        " the caller's own privileges.",
    )
    dry_run = fields.DryRunField()


class GrantSerializer(Serializer):
    """A direct grant."""

    principal = serializers.CharField(source="principal.name")
    kind = fields.EnumField(PrincipalKind, source="principal.kind")
    privileges = PrivilegesField(help_text=_WORDS)
    granted_by = serializers.CharField()
    granted_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(
        allow_null=True, help_text="From then on the grant permits nothing. Null: it has no end."
    )


class RemainingAccessSerializer(Serializer):
    """The access to files that clients keep after a withdrawal."""

    until = serializers.DateTimeField(
        allow_null=True, help_text="The end of the last credentials. Null: none are valid."
    )
    profiles = serializers.ListField(
        child=serializers.CharField(),
        help_text="Storage profiles whose static key was issued to clients. A static key is valid until it"
        " is replaced. The names are visible to administrators of the catalog only.",
    )
    has_hidden_profiles = serializers.BooleanField(
        help_text="True if there are such profiles whose names the caller does not get."
    )
    is_complete = serializers.BooleanField(
        help_text="False if only the newest events of the audit trail were read: there may be later ends and"
        " more profiles."
    )
    text = serializers.CharField(help_text="The same as sentences, or empty.")


class GrantedSerializer(Serializer):
    """The grant after the change. No privileges: there is no grant."""

    principal = serializers.CharField()
    privileges = PrivilegesField(help_text=_WORDS)
    expires_at = serializers.DateTimeField(
        allow_null=True, help_text="From then on the grant permits nothing. Null: it has no end."
    )
    remaining = RemainingAccessSerializer(
        help_text="The access to files that clients have with credentials that they hold already."
    )


class SourceSerializer(Serializer):
    """A source of privileges."""

    because = serializers.ChoiceField(choices=["level", "superuser", "owner", "grant"])
    privileges = PrivilegesField()
    on = serializers.CharField(
        help_text="The object that is owned or granted on. Empty: everywhere."
    )
    is_here = serializers.BooleanField(
        help_text="Whether the grant is on the requested object, and not on a namespace above it."
    )
    through = serializers.CharField(
        help_text="The group that holds the privileges. Empty: the principal itself."
    )
    expires_at = serializers.DateTimeField(
        allow_null=True, help_text="The end of a grant. Null: the source has no end."
    )


class KeyLimitSerializer(Serializer):
    """The privileges that one of a principal's keys permits on the object."""

    name = serializers.CharField()
    privileges = PrivilegesField()
    scopes = PrivilegesField(help_text="The most that the key permits.")
    within = serializers.CharField(
        allow_null=True, help_text="The namespace that the key is limited to. Null: no limit."
    )


class HolderSerializer(Serializer):
    """The privileges of a principal on an object, with their sources."""

    principal = serializers.CharField(source="principal.name")
    kind = fields.EnumField(PrincipalKind, source="principal.kind")
    is_active = serializers.BooleanField(help_text="An inactive principal holds no privileges.")
    privileges = PrivilegesField(source="held", help_text=_WORDS)
    sources = SourceSerializer(many=True)
    keys = KeyLimitSerializer(many=True)


class WhatIfSerializer(Serializer):
    """A grant to assume."""

    principal = fields.TextField(help_text="The principal whose direct grant is assumed to change.")
    privileges = fields.ListField(
        default=list, help_text="The privileges of the assumed grant. Empty: no grant."
    )


class LossSerializer(Serializer):
    """The privileges that a principal would lose, given all its other sources."""

    principal = serializers.CharField(source="principal.name")
    before = PrivilegesField(help_text="The privileges that it holds now.")
    after = PrivilegesField()
    lost = PrivilegesField()
    namespaces = serializers.IntegerField(
        help_text="The number of namespaces that it would no longer see."
    )
    tables = serializers.IntegerField(
        help_text="The number of tables and views that it would no longer see."
    )


class GrantQuery(QuerySerializer):
    """A filter of the list of direct grants."""

    principal = fields.TextParameter(help_text="Only the grant of this principal.")


class GranteeQuery(QuerySerializer):
    """The principal of a grant to delete."""

    principal = fields.TextParameter(
        required=True,
        default=serializers.empty,
        help_text="The name of a principal.",
        error_messages={"required": "it names the principal whose grant is removed"},
    )


class HolderQuery(QuerySerializer):
    """A filter of the list of principals with privileges."""

    principal = fields.TextParameter(help_text="Only this principal.")


# --- principals ------------------------------------------------------------------------------------


class PrincipalSerializer(Serializer):
    """A person, a group or a service account."""

    name = serializers.CharField()
    kind = fields.EnumField(PrincipalKind)
    level = fields.EnumField(PrincipalLevel)
    description = serializers.CharField()
    is_active = serializers.BooleanField()
    issuer = serializers.CharField(
        help_text="The OpenID Connect issuer of its tokens. Empty: none."
    )
    subject = serializers.CharField(help_text="Its name at this issuer.")
    groups = serializers.SerializerMethodField()
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()

    def get_groups(self, row: Principal) -> list[str]:
        return sorted(group.name for group in row.groups.all())


class PrincipalQuery(QuerySerializer):
    """A filter of the list of principals."""

    kind = fields.EnumsParameter(PrincipalKind)


class MemberQuery(QuerySerializer):
    """A filter of the list of members."""

    member = fields.TextParameter(help_text="Only this member.")


class CreatePrincipalSerializer(Serializer):
    """A principal to create."""

    name = fields.TextField(help_text="etl, user:ada, group:analysts.")
    kind = fields.EnumField(PrincipalKind)
    level = fields.EnumField(PrincipalLevel, default=PrincipalLevel.GRANTED)
    description = fields.TextField(default="")
    issuer = fields.TextField(default="")
    subject = fields.TextField(default="")


class UpdatePrincipalSerializer(Serializer):
    """Changes of a principal. Omitted fields keep their values."""

    level = fields.EnumField(PrincipalLevel, **fields.OPTIONAL)
    description = fields.TextField(**fields.OPTIONAL)
    is_active = fields.FlagField(**fields.OPTIONAL)
    issuer = fields.TextField(**fields.OPTIONAL)
    subject = fields.TextField(**fields.OPTIONAL)

    def validate(self, attrs: Any) -> Any:
        if not self.initial_data:
            raise serializers.ValidationError("It names no change.")
        return attrs


# --- keys ------------------------------------------------------------------------------------------


class KeySerializer(Serializer):
    """An API key, without its secret."""

    name = serializers.CharField()
    principal = serializers.CharField(source="principal.name")
    prefix = serializers.CharField(help_text="The first characters of the secret.")
    scopes = serializers.SerializerMethodField(help_text=_SCOPES)
    namespace = serializers.SerializerMethodField(
        help_text="The namespace that the key is limited to, with everything below it."
    )
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(
        allow_null=True, help_text="With a precision of a minute."
    )
    replaced_by = serializers.CharField(
        source="replaced_by.name", allow_null=True, help_text="The key that replaces this key."
    )

    def get_scopes(self, row: ApiKey) -> list[str] | None:
        return None if row.scopes is None else words(row.ceiling)

    def get_namespace(self, row: ApiKey) -> list[str] | None:
        return None if row.namespace is None else list(row.namespace.identifier)


class RevokedKeySerializer(KeySerializer):
    """A revoked API key. The context has ``remaining``."""

    remaining = serializers.SerializerMethodField(
        help_text="The access to files that clients of the principal have with credentials that they hold."
    )

    @extend_schema_field(RemainingAccessSerializer)
    def get_remaining(self, _row: ApiKey) -> Any:
        return RemainingAccessSerializer(self.context["remaining"]).data


class NewKeySerializer(Serializer):
    """A new API key with its secret, which no later response contains."""

    key = serializers.CharField(help_text="The secret. Empty after a dry run.")
    details = KeySerializer()


class KeyQuery(QuerySerializer):
    """A filter of the list of keys."""

    principal = fields.TextParameter(help_text="Only the keys of this principal.")


class CreateKeySerializer(Serializer):
    """An API key to create."""

    principal = fields.TextField()
    name = fields.TextField()
    scopes = fields.ListField(**fields.OPTIONAL, help_text=_SCOPES)
    namespace = fields.ListField(**fields.OPTIONAL)
    expires_at = fields.MomentField(
        required=False,
        allow_null=True,
        help_text="Without it, the key expires after 90 days. Null: it never expires, which only an"
        " administrator may request.",
    )
    dry_run = fields.DryRunField()


class RotateKeySerializer(Serializer):
    """How to replace an API key."""

    overlap_seconds = fields.WholeNumberField(
        min_value=0,
        max_value=MAX_OVERLAP_SECONDS,
        help_text="The time in seconds during which the old key stays valid.",
    )
    name = fields.TextField(**fields.OPTIONAL, help_text="Null: the old name with a number.")
    expires_at = fields.MomentField(
        **fields.OPTIONAL, help_text="The end of the new key. Null: the end of the old key."
    )
    dry_run = fields.DryRunField()


# --- sign-on ---------------------------------------------------------------------------------------


class DeviceClientSerializer(Serializer):
    """A public client at an OpenID Connect issuer."""

    issuer = serializers.CharField(help_text="The URL of the issuer.")
    client_id = serializers.CharField()
    scope = serializers.CharField(help_text="Scopes, separated by spaces.")


class SignOnSerializer(Serializer):
    """How people sign in on the command line."""

    device = DeviceClientSerializer(
        allow_null=True, help_text="The client for the device authorization grant, or null."
    )
