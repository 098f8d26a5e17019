from typing import Self

from django.db import models
from django.db.models import (
    Count,
    Exists,
    IntegerField,
    Min,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Value,
)
from django.db.models.functions import Coalesce, Now

from catalog.models.tables import Table
from catalog.models.versions import TableVersion


class MaterializedViewQuerySet(models.QuerySet["MaterializedView"]):
    def behind(self) -> Self:
        """Views that follow their source and lack its newest versions."""
        newer = TableVersion.objects.visible().filter(
            table=OuterRef("source"),
            branch="",
            version__gt=Coalesce(OuterRef("source_version"), Value(-1)),
        )
        follows = Q(definition__version__isnull=True) | Q(source_version=None)
        return self.filter(follows, Exists(newer))

    def with_lag(self) -> Self:
        """Annotate the lag behind the source: ``newest``, ``behind`` and ``behind_since``."""
        of_source = TableVersion.objects.visible().filter(table=OuterRef("source"), branch="")
        unread = of_source.filter(version__gt=Coalesce(OuterRef("source_version"), Value(-1)))
        return self.annotate(
            newest=Subquery(of_source.order_by("-version").values("version")[:1]),
            behind=Coalesce(_only(unread, number=Count("pk")), 0, output_field=IntegerField()),
            behind_since=_only(unread, since=Min("created_at")),
        )


def _only(rows: "QuerySet[TableVersion]", **aggregate: Count | Min) -> Subquery:
    """A subquery for a single aggregate of all rows."""
    (name,) = aggregate
    return Subquery(rows.order_by().values("table").annotate(**aggregate).values(name))


class MaterializedView(models.Model):
    """A Lance table that holds the result of a query over another table at one of its versions.

    The source is the table itself, not its name: a renamed table remains the source, and a new table
    with the old name is not the source.
    """

    table = models.OneToOneField(
        Table, models.CASCADE, primary_key=True, related_name="materialized_view"
    )
    source = models.ForeignKey(Table, models.PROTECT, related_name="materialized_views")
    definition = models.JSONField(
        help_text="The query, in the form of catalog.formats.view_queries."
    )
    source_query = models.TextField(help_text="The query in the client's notation.")
    source_version = models.BigIntegerField(
        null=True, help_text="Source version of the view's content; null: never refreshed."
    )
    auto_refresh = models.BooleanField(
        default=False, help_text="Whether the view is refreshed when its source has a new version."
    )
    refreshed_at = models.DateTimeField(null=True)
    failed_at = models.DateTimeField(null=True, help_text="Time of the last refresh, if it failed.")
    error = models.TextField(blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = MaterializedViewQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(
                fields=["table"], condition=Q(auto_refresh=True), name="view_auto_refresh"
            ),
        ]

    def __str__(self) -> str:
        return str(self.table)
