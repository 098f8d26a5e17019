from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from catalog.storage.configuration import ClientAccess, ServerIdentity, StoreKind

KINDS = {
    StoreKind.S3.value: "S3 and compatible stores",
    StoreKind.GCS.value: "Google Cloud Storage",
    StoreKind.ADLS.value: "Azure Data Lake Storage",
}
IDENTITIES = {
    ServerIdentity.KEY.value: "a key that this profile holds",
    ServerIdentity.ENVIRONMENT.value: "the environment or identity of the server",
    ServerIdentity.ROLE.value: "a role that the server assumes",
}
CLIENT_ACCESS = {
    ClientAccess.STS.value: "short-lived credentials for one table",
    ClientAccess.SIGNING.value: "the server signs requests",
    ClientAccess.STATIC.value: "the server's own key, for trusted clients only",
    ClientAccess.NONE.value: "no access from the catalog",
}


class StorageProfile(models.Model):
    """Object storage that may hold tables: its roots, and how the server and clients reach it.

    The local warehouse needs no row. Roots of profiles never overlap.
    """

    name = models.CharField(max_length=100, unique=True)
    kind = models.CharField(max_length=10, choices=KINDS)
    roots = ArrayField(
        models.TextField(),
        help_text="Locations below which tables may be, such as s3://lake/tables. New tables are placed below the first.",
    )
    region = models.CharField(
        max_length=100, blank=True, help_text="Region of the bucket, such as eu-central-1."
    )
    endpoint = models.TextField(
        blank=True, help_text="URL of the store; empty: the provider's own."
    )
    sts_endpoint = models.TextField(
        blank=True,
        help_text="URL of the token service; empty: the endpoint if it is set, else the provider's own.",
    )
    path_style = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Whether the bucket is part of the URL's path rather than of its host name.",
    )
    kms_key = models.TextField(
        blank=True, help_text="Key of the provider's key management that encrypts new objects."
    )
    identity = models.CharField(
        max_length=20,
        choices=IDENTITIES,
        default=ServerIdentity.ENVIRONMENT.value,
        help_text="How the server authenticates.",
    )
    key_id = models.TextField(
        blank=True, help_text="Access key id, or name of the storage account for Azure."
    )
    secret = models.BinaryField(
        null=True, editable=False, help_text="Secret parts of the key, encrypted."
    )
    role = models.TextField(
        blank=True, help_text="ARN of the role that the server assumes, for itself or for clients."
    )
    external_id = models.TextField(
        blank=True, help_text="External ID that the role's trust policy requires."
    )
    client_access = models.CharField(
        max_length=20,
        choices=CLIENT_ACCESS,
        default=ClientAccess.NONE.value,
        help_text="How clients get access to the files of a table.",
    )
    lifetime_seconds = models.PositiveIntegerField(
        default=3600, help_text="Seconds for which credentials of clients are valid."
    )
    conditional_writes = models.BooleanField(
        default=True,
        db_default=True,
        help_text="Whether the store supports If-None-Match, so that a write never replaces an object.",
    )
    version = models.PositiveIntegerField(
        default=1, editable=False, help_text="Increases with every change."
    )
    created_by = models.TextField(blank=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return self.name


class StagedLocation(models.Model):
    """A location for which a principal got credentials when it staged the creation of a table.

    Until they expire, no other principal may have a table, files of a table or a namespace there.
    """

    location = models.TextField(help_text="Canonical.")
    principal = models.TextField(help_text="Name of the principal that has the credentials.")
    until = models.DateTimeField(db_index=True, help_text="When the credentials have expired.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["location", "principal"], name="staged_location_once"),
        ]
        indexes = [
            # For prefixes, in databases of any collation.
            models.Index(
                fields=["location"],
                name="staged_location_prefix",
                opclasses=["text_pattern_ops"],
            ),
        ]

    def __str__(self) -> str:
        return self.location
