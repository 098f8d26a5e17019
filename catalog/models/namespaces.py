import uuid
from typing import Self

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.functions import RandomUUID
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from catalog.identifiers import Identifier, digest, label
from catalog.models.storage import StorageProfile


class NamespaceQuerySet(models.QuerySet["Namespace"]):
    def live(self) -> Self:
        return self.filter(dropped_at=None)

    def named(self, *paths: Identifier) -> Self:
        """Live namespaces with these paths."""
        return self.live().filter(digest__in=[digest(path) for path in paths])

    def with_object_storage(self) -> Self:
        """Annotate ``has_object_storage``, from the namespace and its ancestors."""
        return self.annotate(
            has_object_storage=RawSQL(
                "EXISTS (SELECT FROM catalog_namespace above"
                " WHERE above.id = ANY(catalog_namespace.ancestors)"
                " AND (above.storage_profile_id IS NOT NULL OR above.location LIKE '%%://%%'))",
                [],
                output_field=models.BooleanField(),
            )
        )

    def holding_locations(self) -> Self:
        """Namespaces whose locations are reserved: live ones, and those in the trash."""
        return self.filter(models.Q(dropped_at=None) | models.Q(trash__isnull=False))


class Namespace(models.Model):
    """A node of the namespace tree, which holds tables. The root is a row with an empty path.

    A path never changes: no operation renames a namespace. A dropped namespace keeps its row,
    because dropped tables still refer to it.
    """

    uuid = models.UUIDField(
        default=uuid.uuid4,
        db_default=RandomUUID(),
        unique=True,
        editable=False,
        help_text="Part of the default location, so that each namespace has its own.",
    )
    path = ArrayField(models.TextField(), help_text="The names from the root to this namespace.")
    digest = models.UUIDField(editable=False, help_text="catalog.identifiers.digest of the path.")
    parent = models.ForeignKey(
        "self",
        models.PROTECT,
        null=True,
        blank=True,
        related_name="children",
        db_index=False,  # namespace_children serves
    )
    ancestors = ArrayField(
        models.BigIntegerField(),
        editable=False,
        db_default=models.Value([], output_field=ArrayField(models.BigIntegerField())),
        help_text="Ids from the root to this namespace; set by the database.",
    )
    name = models.TextField(help_text="The last part of the path.")
    properties = models.JSONField(default=dict, blank=True)
    location = models.TextField(
        null=True,
        editable=False,
        help_text="Canonical form of the property 'location'; null: not set.",
    )
    storage_profile = models.ForeignKey(
        StorageProfile,
        models.PROTECT,
        null=True,
        blank=True,
        related_name="namespaces",
        help_text="Storage of new tables, here and below; null: inherited.",
    )
    owner = models.TextField(blank=True, help_text="Name of the principal that owns the namespace.")
    is_protected = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Whether the namespace is protected from being dropped.",
    )
    retention_seconds = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="Seconds for which dropped objects can be restored; null: inherited.",
    )
    guarded = ArrayField(
        models.TextField(),
        default=list,
        blank=True,
        db_default=models.Value([], output_field=ArrayField(models.TextField())),
        help_text="Actions that require approval, here and below (GuardedAction).",
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(auto_now=True)
    dropped_at = models.DateTimeField(null=True, blank=True, editable=False)

    has_object_storage: bool | None = None
    """Whether new tables may go to an object store; None: it was not read."""

    objects = NamespaceQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["digest"],
                condition=models.Q(dropped_at=None),
                name="namespace_path_unique",
            ),
        ]
        indexes = [
            models.Index(
                fields=["parent", "name"],
                condition=models.Q(dropped_at=None),
                name="namespace_children",
            ),
            # Finds everything below the namespaces on which a principal has grants.
            GinIndex(
                fields=["ancestors"],
                name="namespace_ancestors",
                condition=models.Q(dropped_at=None),
            ),
            models.Index(
                fields=["owner"], name="namespace_of_owner", condition=models.Q(dropped_at=None)
            ),
            # Finds the namespaces whose locations overlap a requested location.
            models.Index(
                fields=["location"],
                name="namespace_location_prefix",
                opclasses=["text_pattern_ops"],
                condition=models.Q(location__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return label(self.path)

    @property
    def identifier(self) -> Identifier:
        return tuple(self.path)
