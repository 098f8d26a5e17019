from typing import Self

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from catalog.models.maintenance import Job, JobStatus
from catalog.models.namespaces import Namespace
from catalog.models.tables import Table
from catalog.models.transactions import Transaction


class GuardedAction(models.TextChoices):
    """The actions for which a namespace may require the approval of a second person."""

    PURGE = "purge", "purging from the trash before the retention ends"
    DROP_PROTECTED = "drop_protected", "dropping or unprotecting a protected namespace"


class TrashState(models.TextChoices):
    """The state of a dropped object, as ``TrashItem.state`` returns it."""

    KEPT = "kept", "kept until it is purged manually"
    WAITING = "waiting", "waiting for the purge"
    PURGING = "purging", "being purged"
    FAILED = "failed", "purge failed or stopped after it began"


class TrashItemQuerySet(models.QuerySet["TrashItem"]):
    def held(self) -> Self:
        """Items whose data is not removed yet."""
        return self.exclude(job__status=JobStatus.SUCCEEDED)

    def restorable(self) -> Self:
        """Items of which no file has been removed."""
        return self.filter(purge_begun_at=None)


class TrashItem(models.Model):
    """A dropped namespace, table or view that can be restored.

    The row is deleted when the object is restored, and some time after it is purged. A worker records
    the start of a removal here first, with the table locked: from then on the table cannot be
    restored.
    """

    namespace = models.OneToOneField(
        Namespace, models.CASCADE, null=True, blank=True, related_name="trash"
    )
    table = models.OneToOneField(Table, models.CASCADE, null=True, blank=True, related_name="trash")
    job = models.OneToOneField(
        Job,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="trash",
        help_text="The job that removes the data; null: no job.",
    )
    transaction = models.ForeignKey(
        Transaction, models.PROTECT, null=True, related_name="trash", help_text="The drop."
    )
    dropped_by = models.TextField(blank=True)
    dropped_at = models.DateTimeField(db_default=Now(), editable=False)
    purge_at = models.DateTimeField(
        null=True,
        blank=True,
        db_index=True,
        help_text="End of the retention; null: kept until it is purged manually.",
    )
    purge_begun_at = models.DateTimeField(null=True, blank=True)
    content = models.JSONField(
        default=dict,
        help_text="Rows removed from other tables: the table's state, functions, a view's query.",
    )

    objects = TrashItemQuerySet.as_manager()

    class Meta:
        verbose_name = "dropped object"
        verbose_name_plural = "trash"
        constraints = [
            models.CheckConstraint(
                condition=Q(namespace__isnull=False, table__isnull=True)
                | Q(namespace__isnull=True, table__isnull=False),
                name="trash_of_one_thing",
            ),
        ]

    def __str__(self) -> str:
        return str(self.target)

    @property
    def target(self) -> Namespace | Table:
        row = self.namespace or self.table
        if row is None:
            raise AssertionError("the database has a constraint for this")
        return row

    @property
    def kind(self) -> str:
        """``namespace``, ``table`` or ``view``."""
        return "namespace" if self.table is None else self.table.kind

    @property
    def state(self) -> TrashState:
        status = self.job.status if self.job is not None else None
        if self.purge_begun_at is not None:
            goes_on = status in {JobStatus.QUEUED, JobStatus.RUNNING}
            return TrashState.PURGING if goes_on else TrashState.FAILED
        if status == JobStatus.FAILED:
            return TrashState.FAILED
        is_kept = self.purge_at is None or status == JobStatus.CANCELED
        return TrashState.KEPT if is_kept else TrashState.WAITING


class ApprovalStatus(models.TextChoices):
    """The states of an approval request, which ends once. An expired request counts as refused.

    pending ──▶ done (approved and carried out) | refused | withdrawn | expired
    """

    PENDING = "pending"
    DONE = "done"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"


class ApprovalRequest(models.Model):
    """A requested change that a second person must approve."""

    action = models.TextField(help_text="Description of the requested action.")
    target = models.TextField(help_text="Name of the object that the action concerns.")
    namespace = models.ForeignKey(
        Namespace,
        models.CASCADE,
        related_name="approvals",
        help_text="Principals with the manage privilege on it may decide.",
    )
    table = models.ForeignKey(
        Table,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="approvals",
        help_text="The table of a request for access to a table: its managers may decide too.",
    )
    operation = models.JSONField(help_text="The operation that is executed on approval.")
    expected = models.JSONField(
        help_text="State of the target at the request; the operation fails if it has changed."
    )
    reason = models.TextField(blank=True, help_text="Reason for the request.")
    requester = models.TextField()
    status = models.TextField(choices=ApprovalStatus, default=ApprovalStatus.PENDING)
    decided_by = models.TextField(blank=True)
    decision_reason = models.TextField(blank=True)
    transaction = models.ForeignKey(
        Transaction,
        models.PROTECT,
        null=True,
        blank=True,
        related_name="approvals",
        help_text="Transaction of the approved operation.",
    )
    digest = models.TextField(help_text="SHA-256 of the requester, the action and the target.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField()
    decided_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            # A repeated request refers to the pending one.
            models.UniqueConstraint(
                fields=["digest"],
                condition=Q(status=ApprovalStatus.PENDING),
                name="approval_asked_once",
            ),
        ]
        indexes = [
            models.Index(
                fields=["expires_at"],
                condition=Q(status=ApprovalStatus.PENDING),
                name="approval_pending",
            ),
            models.Index(fields=["requester", "-id"], name="approval_of_requester"),
        ]

    def __str__(self) -> str:
        return f"{self.action} '{self.target}'"

    @property
    def is_expired(self) -> bool:
        """True if the request expired without a decision, even if its status is not updated yet."""
        return self.status == ApprovalStatus.PENDING and self.expires_at <= timezone.now()

    @property
    def subject(self) -> Namespace | Table:
        """The object whose managers decide the request."""
        return self.table or self.namespace
