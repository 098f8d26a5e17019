from typing import Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from catalog.identifiers import Identifier, digest, label


class NamespaceQuerySet(models.QuerySet["Namespace"]):
    def live(self) -> Self:
        return self.filter(dropped_at=None)

    def named(self, *paths: Identifier) -> Self:
        """The live namespaces of these paths."""
        return self.live().filter(digest__in=[digest(path) for path in paths])


class Namespace(models.Model):
    """A node of the tree that holds tables. The root is a row whose path is empty.

    A path never changes: there is no operation that renames a namespace. A dropped namespace keeps
    its row, because dropped tables still refer to it.
    """

    path = ArrayField(models.TextField(), help_text="The names from the root down.")
    digest = models.UUIDField(editable=False, help_text="catalog.identifiers.digest of the path.")
    parent = models.ForeignKey(
        "self",
        models.PROTECT,
        null=True,
        blank=True,
        related_name="children",
        db_index=False,  # namespace_children serves
    )
    name = models.TextField(help_text="The last part of the path.")
    properties = models.JSONField(default=dict, blank=True)
    owner = models.TextField(blank=True, help_text="The principal who created it.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(auto_now=True)
    dropped_at = models.DateTimeField(null=True, blank=True, editable=False)

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
        ]

    def __str__(self) -> str:
        return label(self.path)

    @property
    def identifier(self) -> Identifier:
        return tuple(self.path)
