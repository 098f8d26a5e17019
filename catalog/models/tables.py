import uuid
from typing import Self

from django.db import models
from django.db.models.functions import Now

from catalog.identifiers import Identifier, digest, label
from catalog.models.namespaces import Namespace
from catalog.storage import locations


class TableFormat(models.TextChoices):
    LANCE = "lance"
    ICEBERG = "iceberg"


class TableKind(models.TextChoices):
    """The kind of a table row. Iceberg views share the names of tables, and have no data."""

    TABLE = "table"
    VIEW = "view"


class TableState(models.TextChoices):
    """A table is declared, becomes live with its first version, and ends dropped.

        declared ──first version──▶ live
            │                        │
            └──────drop, deregister──┴──▶ dropped

    Dropping keeps the row: bringing a table back is a change of state.
    """

    DECLARED = "declared"
    LIVE = "live"
    DROPPED = "dropped"


class TableQuerySet(models.QuerySet["Table"]):
    def present(self) -> Self:
        """Tables that are not dropped."""
        return self.exclude(state=TableState.DROPPED)

    def needed(self) -> Self:
        """Tables whose files must not be removed for another table: tables that are not dropped, and
        dropped tables whose scheduled purge has not begun."""
        return self.filter(
            ~models.Q(state=TableState.DROPPED)
            | models.Q(trash__job__status__in=["queued", "running"], trash__purge_begun_at=None)
        )

    def meeting(self, location: str) -> Self:
        """Tables at a location, below it or above it, in any state."""
        return self.filter(
            models.Q(location__in=[location, *locations.parents(location)])
            | models.Q(location__startswith=location + "/")
        )

    def named(self, *identifiers: Identifier) -> Self:
        """Tables with these identifiers that are not dropped."""
        return self.present().filter(digest__in=[digest(i) for i in identifiers])


class Table(models.Model):
    """A table of either format, or a view. A name is unique across formats and kinds."""

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    namespace = models.ForeignKey(
        Namespace,
        models.PROTECT,
        related_name="tables",
        db_index=False,  # table_listing serves
    )
    name = models.TextField()
    digest = models.UUIDField(
        editable=False, help_text="catalog.identifiers.digest of the full name."
    )
    format = models.TextField(choices=TableFormat, default=TableFormat.LANCE)
    kind = models.TextField(choices=TableKind, default=TableKind.TABLE, db_default=TableKind.TABLE)
    state = models.TextField(choices=TableState, default=TableState.DECLARED)
    location = models.TextField(help_text="Local path of the table's files.")
    properties = models.JSONField(default=dict, blank=True)
    managed_versioning = models.BooleanField(
        default=True, help_text="Whether all commits go through the catalog."
    )
    is_materialized = models.BooleanField(
        default=False, db_default=False, help_text="Whether the table is a materialized view."
    )
    owner = models.TextField(blank=True, help_text="Name of the principal that owns the table.")
    is_protected = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Whether the table is protected from being dropped or overwritten.",
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    located_at = models.DateTimeField(
        db_default=Now(), editable=False, help_text="When the table got its location."
    )
    restored_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="When the table was last restored from the trash.",
    )
    updated_at = models.DateTimeField(auto_now=True)
    dropped_at = models.DateTimeField(null=True, blank=True, editable=False)

    objects = TableQuerySet.as_manager()

    class Meta:
        permissions = [("preview_table", "Can look at rows of a table")]
        constraints = [
            models.UniqueConstraint(
                fields=["digest"],
                condition=~models.Q(state=TableState.DROPPED),
                name="table_name_unique",
            ),
            models.UniqueConstraint(
                fields=["location"],
                condition=~models.Q(state=TableState.DROPPED),
                name="table_location_unique",
            ),
        ]
        indexes = [
            models.Index(
                fields=["namespace", "name"],
                condition=~models.Q(state=TableState.DROPPED),
                name="table_listing",
            ),
            # Lists the tables dropped from a namespace, for its history.
            models.Index(
                fields=["namespace", "name"],
                condition=models.Q(state=TableState.DROPPED),
                name="table_dropped_listing",
            ),
            # Finds the dropped tables that belong to an owner.
            models.Index(
                fields=["owner"],
                condition=models.Q(state=TableState.DROPPED),
                name="table_dropped_of_owner",
            ),
            # Finds the last dropped tables of the catalog.
            models.Index(
                fields=["dropped_at"],
                condition=models.Q(state=TableState.DROPPED),
                name="table_by_drop",
            ),
            # Finds the views whose SQL changed since it was parsed.
            models.Index(
                fields=["id"],
                condition=models.Q(kind="view") & ~models.Q(state=TableState.DROPPED),
                name="table_views",
            ),
            # Finds the tables below a location that is being declared.
            models.Index(
                fields=["location"],
                name="table_location_prefix",
                opclasses=["text_pattern_ops"],
            ),
            models.Index(
                fields=["owner", "namespace"],
                condition=~models.Q(state=TableState.DROPPED),
                name="table_of_owner",
            ),
            # Sorts lists of all tables.
            models.Index(
                fields=["owner", "id"],
                condition=~models.Q(state=TableState.DROPPED),
                name="table_by_owner",
            ),
        ]

    def __str__(self) -> str:
        return label(self.identifier)

    @property
    def identifier(self) -> Identifier:
        return (*self.namespace.path, self.name)
