from django.db import models
from django.db.models.functions import Now

from catalog.models.tables import Table


class FileReference(models.Model):
    """A reference of a table to another table's files, committed by a principal who may read them.

    Readers of the table may read those files through it while that principal may read the source.
    Clean-up and removal of the source check such references first.
    """

    table = models.ForeignKey(
        Table,
        models.CASCADE,
        related_name="file_references",
        db_index=False,  # file_reference_unique serves
    )
    source = models.ForeignKey(
        Table,
        models.CASCADE,
        related_name="dependent_references",
        help_text="The table whose files they are.",
    )
    principal = models.TextField(help_text="The name of the principal who committed the reference.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["table", "source"], name="file_reference_unique"),
        ]

    def __str__(self) -> str:
        return f"{self.table} → {self.source}"
