"""Serializers of storage profiles. No response contains a secret."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from api.management import fields
from api.management.serializers.base import Serializer
from catalog.models import StorageProfile, StorageTest, StorageTestStatus
from catalog.services.storage.profile_checks.results import CheckStatus
from catalog.services.storage.profile_operations import Changes
from catalog.services.storage.profile_usage import Impact
from catalog.storage.configuration import ClientAccess, Key, ServerIdentity, StoreKind

_NAME = "Letters, digits, '.', '_' and '-'; at most 100. It cannot be changed."
_KIND = "The kind of the store."
_ROOTS = (
    "Locations below which tables may be, such as s3://lake/tables. New tables are placed below the"
    " first. Roots of profiles never overlap."
)
_REGION = "The region of the bucket."
_ENDPOINT = "The URL of the store. Empty: the provider's own."
_STS_ENDPOINT = "The URL of the token service. Empty: the endpoint, or the provider's own."
_PATH_STYLE = "Whether the bucket is part of the URL's path, not of its host name."
_KMS_KEY = "The key of the provider's key management that encrypts new objects."
_IDENTITY = (
    "How the server authenticates: with the profile's key, with its environment, or with a role."
)
_ROLE = "The ARN of the role that the server assumes, for itself or for clients."
_EXTERNAL_ID = "The external ID that the role's trust policy requires."
_CLIENT_ACCESS = (
    "How clients get access to a table's files: `sts` short-lived credentials for the table,"
    " `signing` signed requests, `static` the profile's own key, which is limited to nothing, `none`"
    " nothing."
)
_LIFETIME = "The seconds for which credentials of clients are valid: 10 to 43200; AWS: from 900."
_CONDITIONAL_WRITES = "Whether the store supports If-None-Match."


class StorageKeySerializer(Serializer):
    """A key of the server. Responses contain its id, and never its secret parts."""

    id = fields.TextField(
        default="",
        help_text="S3: the access key id. Azure: the name of the storage account. GCS: empty.",
    )
    secret = fields.TextField(
        write_only=True,
        help_text="S3: the secret access key. Azure: the account key. GCS: the JSON of a service account.",
    )
    token = fields.TextField(
        default="", write_only=True, help_text="S3: the session token of a temporary key."
    )

    def validate(self, attrs: Any) -> Key:
        return Key(**attrs)


class CreateStorageProfileSerializer(Serializer):
    """A storage profile to create."""

    name = fields.TextField(help_text=_NAME)
    kind = fields.EnumField(StoreKind, help_text=_KIND)
    roots = fields.ListField(help_text=_ROOTS)
    region = fields.TextField(default="", help_text=_REGION)
    endpoint = fields.TextField(default="", help_text=_ENDPOINT)
    sts_endpoint = fields.TextField(default="", help_text=_STS_ENDPOINT)
    path_style = fields.FlagField(default=False, help_text=_PATH_STYLE)
    kms_key = fields.TextField(default="", help_text=_KMS_KEY)
    identity = fields.EnumField(
        ServerIdentity, default=ServerIdentity.ENVIRONMENT, help_text=_IDENTITY
    )
    key = StorageKeySerializer(**fields.OPTIONAL)
    role = fields.TextField(default="", help_text=_ROLE)
    external_id = fields.TextField(default="", help_text=_EXTERNAL_ID)
    client_access = fields.EnumField(
        ClientAccess, default=ClientAccess.NONE, help_text=_CLIENT_ACCESS
    )
    lifetime_seconds = fields.WholeNumberField(default=3600, help_text=_LIFETIME)
    conditional_writes = fields.FlagField(default=True, help_text=_CONDITIONAL_WRITES)


class StorageProfileChangesSerializer(Serializer):
    """Changes of a storage profile. Omitted fields keep their values.

    ``key`` replaces the whole key; identity ``environment`` deletes it.
    """

    kind = fields.EnumField(StoreKind, **fields.OPTIONAL, help_text=_KIND)
    roots = fields.ListField(**fields.OPTIONAL, help_text=_ROOTS)
    region = fields.TextField(**fields.OPTIONAL, help_text=_REGION)
    endpoint = fields.TextField(**fields.OPTIONAL, help_text=_ENDPOINT)
    sts_endpoint = fields.TextField(**fields.OPTIONAL, help_text=_STS_ENDPOINT)
    path_style = fields.FlagField(**fields.OPTIONAL, help_text=_PATH_STYLE)
    kms_key = fields.TextField(**fields.OPTIONAL, help_text=_KMS_KEY)
    identity = fields.EnumField(ServerIdentity, **fields.OPTIONAL, help_text=_IDENTITY)
    key = StorageKeySerializer(**fields.OPTIONAL)
    role = fields.TextField(**fields.OPTIONAL, help_text=_ROLE)
    external_id = fields.TextField(**fields.OPTIONAL, help_text=_EXTERNAL_ID)
    client_access = fields.EnumField(ClientAccess, **fields.OPTIONAL, help_text=_CLIENT_ACCESS)
    lifetime_seconds = fields.WholeNumberField(**fields.OPTIONAL, help_text=_LIFETIME)
    conditional_writes = fields.FlagField(**fields.OPTIONAL, help_text=_CONDITIONAL_WRITES)


class UpdateStorageProfileSerializer(StorageProfileChangesSerializer):
    """Changes of a storage profile. Omitted fields keep their values.

    ``key`` replaces the whole key; identity ``environment`` deletes it.
    """

    confirm = fields.FlagField(
        default=False,
        help_text="Make a change that may take the storage of tables away, such as of the endpoint.",
    )


class PreviewStorageProfileSerializer(StorageProfileChangesSerializer):
    """Changes of a storage profile, or its deletion."""

    delete = fields.FlagField(default=False, help_text="Preview the deletion; without changes.")

    def validate(self, attrs: Any) -> dict[str, Changes | None]:
        is_deletion = attrs.pop("delete")
        changes = Changes(**attrs)
        if is_deletion and changes != Changes():
            raise serializers.ValidationError("Use either 'delete' or changes.")
        return {"changes": None if is_deletion else changes}


class StorageProfileSerializer(Serializer):
    """A storage profile, without its secrets."""

    name = serializers.CharField()
    kind = fields.EnumField(StoreKind)
    roots = fields.NamesField()
    region = serializers.CharField()
    endpoint = serializers.CharField()
    sts_endpoint = serializers.CharField()
    path_style = serializers.BooleanField()
    kms_key = serializers.CharField()
    identity = fields.EnumField(ServerIdentity)
    key_id = serializers.CharField(help_text="The id of the profile's key. Empty: it has none.")
    has_secret = serializers.SerializerMethodField(
        help_text="Whether the profile has a key. No response contains its secret."
    )
    role = serializers.CharField()
    external_id = serializers.CharField()
    client_access = fields.EnumField(ClientAccess)
    lifetime_seconds = serializers.IntegerField()
    conditional_writes = serializers.BooleanField()
    version = serializers.IntegerField(help_text="Increases with every change.")
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()

    def get_has_secret(self, row: StorageProfile) -> bool:
        return row.secret is not None


class StorageCheckSerializer(Serializer):
    """The result of a check."""

    key = serializers.CharField(help_text="The name of the check, such as conditional_write.")
    title = serializers.CharField()
    status = fields.EnumField(CheckStatus)
    seconds = serializers.FloatField(help_text="How long it took.")
    cause = serializers.CharField(help_text="Why it did not pass; details if it did.")
    remedy = serializers.CharField(help_text="How to make it pass. Empty: nothing is to be done.")


class StorageTestSerializer(Serializer):
    """A test of a storage profile."""

    id = serializers.IntegerField()
    profile = serializers.CharField(source="profile.name")
    profile_version = serializers.IntegerField(
        help_text="The version of the profile that is tested."
    )
    status = fields.EnumField(StorageTestStatus)
    checks = serializers.SerializerMethodField(
        help_text="The results of the checks that have ended, in order."
    )
    requested_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)

    @extend_schema_field(StorageCheckSerializer(many=True))
    def get_checks(self, row: StorageTest) -> list[dict[str, Any]]:
        return list(row.checks)


class AffectedSerializer(Serializer):
    """A number of objects, and the names of the first ones."""

    number = serializers.IntegerField()
    names = fields.NamesField()


class StorageImpactSerializer(Serializer):
    """What a change of a storage profile would mean."""

    is_possible = serializers.BooleanField()
    needs_confirmation = serializers.BooleanField(help_text="True if the change needs `confirm`.")
    changes = serializers.SerializerMethodField(
        help_text="The changed fields, each with its values before and after. Of a key, only its id."
    )
    tables = AffectedSerializer(help_text="Tables below the roots, with those in the trash.")
    tables_outside = AffectedSerializer(
        help_text="Tables that would be below no root of the profile any more."
    )
    namespaces = AffectedSerializer(help_text="Namespaces that are bound to the profile.")
    locations_outside = AffectedSerializer(
        help_text="Namespaces whose location would be below no root of the profile any more."
    )
    credentials_valid_until = serializers.DateTimeField(
        allow_null=True, help_text="Until when credentials that clients have may remain valid."
    )
    obstacles = fields.NamesField(help_text="Why the change is refused.")
    warnings = fields.NamesField(help_text="Why the change needs `confirm`.")

    def get_changes(self, impact: Impact) -> dict[str, Any]:
        return {
            name: {"before": before, "after": after}
            for name, (before, after) in impact.changes.items()
        }


class BindStorageProfileSerializer(Serializer):
    """The storage profile of a namespace."""

    profile = fields.TextField(help_text="The name of the profile.")


class NamespaceStorageSerializer(Serializer):
    """The storage of new tables of a namespace."""

    profile = serializers.CharField(
        allow_null=True, help_text="The name of the profile in effect. Null: none."
    )
    is_inherited = serializers.BooleanField(
        help_text="Whether a namespace above is bound to the profile."
    )
    bound_namespace = fields.NamesField(
        source="bound.path",
        allow_null=True,
        help_text="The namespace that is bound to the profile.",
    )
    location = serializers.CharField(help_text="The location below which new tables are placed.")
