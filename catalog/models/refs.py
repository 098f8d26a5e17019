from django.db import models
from django.db.models.functions import Now

from catalog.models.tables import Table


class Branch(models.Model):
    """A named branch beside main. Main has no row: it is the empty branch name."""

    table = models.ForeignKey(
        Table,
        models.CASCADE,
        related_name="branches",
        db_index=False,  # branch_name_unique serves
    )
    name = models.TextField()
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name_plural = "branches"
        constraints = [
            models.UniqueConstraint(fields=["table", "name"], name="branch_name_unique"),
        ]

    def __str__(self) -> str:
        return self.name
