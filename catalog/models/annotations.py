"""Annotations and labels of namespaces, tables and columns, and the search documents."""

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchVectorField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from catalog.models.namespaces import Namespace
from catalog.models.tables import Table

_ONE_TARGET = Q(namespace__isnull=False, table__isnull=True, column="") | Q(
    namespace__isnull=True, table__isnull=False
)


class Sensitivity(models.TextChoices):
    """The harm of disclosure, in increasing order."""

    PUBLIC = "public"
    INTERNAL = "internal"
    CONFIDENTIAL = "confidential"
    RESTRICTED = "restricted"

    @property
    def rank(self) -> int:
        """The position in the order, from 0."""
        return list(type(self)).index(self)


class LabelTarget(models.TextChoices):
    """The kinds of objects to which a label may be assigned."""

    NAMESPACE = "namespace"
    TABLE = "table", "table or view"
    COLUMN = "column"


class LabelColour(models.TextChoices):
    """The colours of labels in the web admin."""

    GREY = "grey"
    BLUE = "blue"
    GREEN = "green"
    YELLOW = "yellow"
    ORANGE = "orange"
    RED = "red"


class LabelDefinition(models.Model):
    """The definition of a label: its allowed values and kinds of objects."""

    key = models.TextField(unique=True)
    description = models.TextField(blank=True)
    colour = models.TextField(choices=LabelColour, default=LabelColour.GREY)
    values = ArrayField(
        models.TextField(), default=list, blank=True, help_text="Allowed values. Empty: any text."
    )
    is_multiple = models.BooleanField(
        default=False, help_text="Whether an object may have several values of the label."
    )
    applies_to = ArrayField(
        models.TextField(choices=LabelTarget),
        help_text="Kinds of objects to which the label may be assigned.",
    )
    created_by = models.TextField(blank=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name = "label"

    def __str__(self) -> str:
        return self.key


class LabelAssignment(models.Model):
    """A value of a label on a namespace and everything below it, on a table or on a column."""

    definition = models.ForeignKey(
        LabelDefinition,
        models.PROTECT,
        related_name="assignments",
        db_index=False,  # label_on_namespace and label_on_table serve
    )
    namespace = models.ForeignKey(
        Namespace, models.CASCADE, null=True, blank=True, related_name="labels"
    )
    table = models.ForeignKey(Table, models.CASCADE, null=True, blank=True, related_name="labels")
    column = models.TextField(
        blank=True,
        default="",
        help_text="Path of the column; empty: the namespace or table itself.",
    )
    value = models.TextField(blank=True)
    set_by = models.TextField(blank=True)
    set_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=_ONE_TARGET, name="label_on_one_thing"),
            models.UniqueConstraint(
                fields=["definition", "namespace", "value"], name="label_on_namespace"
            ),
            models.UniqueConstraint(
                fields=["definition", "table", "column", "value"], name="label_on_table"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.definition}={self.value}" if self.value else str(self.definition)


class Facts(models.Model):
    """The annotations of a namespace, a table or a column. A row without any is removed."""

    namespace = models.ForeignKey(
        Namespace,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="facts",
        db_index=False,  # facts_of_namespace serves
    )
    table = models.ForeignKey(
        Table,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="facts",
        db_index=False,  # facts_of_table serves
    )
    column = models.TextField(
        blank=True,
        default="",
        help_text="Path of the column; empty: the namespace or table itself.",
    )
    description = models.TextField(blank=True, help_text="Markdown.")
    sensitivity = models.TextField(blank=True, choices=Sensitivity, help_text="Empty: inherited.")
    links = models.JSONField(default=list, blank=True, help_text="Titles and URLs, in order.")
    updated_by = models.TextField(blank=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name_plural = "facts"
        constraints = [
            models.CheckConstraint(condition=_ONE_TARGET, name="facts_of_one_thing"),
            models.CheckConstraint(
                condition=Q(sensitivity__in=["", *Sensitivity.values]),
                name="facts_known_sensitivity",
            ),
            models.UniqueConstraint(fields=["namespace"], name="facts_of_namespace"),
            models.UniqueConstraint(fields=["table", "column"], name="facts_of_table"),
        ]
        indexes = [
            # A search resolves the sensitivity inherited from namespaces, which few define.
            models.Index(
                fields=["namespace"],
                condition=Q(table=None) & ~Q(sensitivity=""),
                name="facts_classified_namespaces",
            ),
        ]

    def __str__(self) -> str:
        return f"facts of {self.table or self.namespace}"


class SearchDocument(models.Model):
    """The search document of a namespace, a table or a view.

    Changes of annotations update it in their own transaction. All other changes are applied by a
    periodic task that follows the audit trail, and ``due_at`` marks pending documents. ``vector``
    holds the words with their weights and, after a colon, the marks of filters
    (``catalog.services.search.words``).
    """

    namespace = models.OneToOneField(
        Namespace, models.CASCADE, null=True, blank=True, related_name="search_document"
    )
    table = models.OneToOneField(
        Table, models.CASCADE, null=True, blank=True, related_name="search_document"
    )
    vector = SearchVectorField(null=True, editable=False)
    columns = models.JSONField(default=list, help_text="Path, type and comment of each column.")
    schema_version = models.TextField(
        blank=True,
        help_text="The schema version from which the columns were read; empty: not read yet.",
    )
    due_at = models.DateTimeField(
        null=True, help_text="When the document is rebuilt next; null: it is up to date."
    )
    attempts = models.PositiveSmallIntegerField(default=0)
    error = models.TextField(blank=True, help_text="Why the columns could not be read.")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(namespace__isnull=False, table__isnull=True)
                | Q(namespace__isnull=True, table__isnull=False),
                name="document_of_one_thing",
            ),
        ]
        indexes = [
            # No fastupdate: a search would have to read the whole pending list.
            GinIndex(fields=["vector"], fastupdate=False, name="document_vector"),
            models.Index(
                fields=["due_at", "id"], condition=Q(due_at__isnull=False), name="document_due"
            ),
        ]

    def __str__(self) -> str:
        return f"document of {self.table or self.namespace}"


class SearchWord(models.Model):
    """A word of names and columns under one of the keys for finding similar words.

    The keys are its trigrams; after a hyphen, the word with one letter omitted; and after an equals
    sign, the word itself. They replace pg_trgm, which not every server has.
    """

    pk = models.CompositePrimaryKey("key", "word")
    key = models.TextField()
    word = models.TextField()

    def __str__(self) -> str:
        return self.word


class SearchCursor(models.Model):
    """The last audit event that the search documents reflect. One row."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    xid = models.BigIntegerField(help_text="AuditEvent.xid of the last processed event.")
    event = models.BigIntegerField(help_text="AuditEvent.id of the last processed event.")

    def __str__(self) -> str:
        return f"{self.xid}/{self.event}"
