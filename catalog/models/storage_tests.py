from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from catalog.models.storage import StorageProfile


class StorageTestStatus(models.TextChoices):
    """The states of a test of a storage profile.

    queued ──worker takes it──▶ running ──▶ passed | failed
      └──────────────┬────────────┘
                     └─too late─▶ interrupted
    """

    QUEUED = "queued"
    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class StorageTest(models.Model):
    """A test of a storage profile: background work of a minute at most, with a result for each check.

    It is no ``Job``: those belong to a table, wait for each other, and are repeated until they succeed.
    A test is run once, and its failure is its result.
    """

    profile = models.ForeignKey(StorageProfile, models.CASCADE, related_name="tests")
    profile_version = models.PositiveIntegerField(
        help_text="The version of the profile that was tested."
    )
    status = models.TextField(choices=StorageTestStatus, default=StorageTestStatus.QUEUED)
    checks = models.JSONField(
        default=list, blank=True, help_text="The results of the checks that have ended, in order."
    )
    requested_by = models.TextField(blank=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["profile"],
                condition=Q(status__in=[StorageTestStatus.QUEUED, StorageTestStatus.RUNNING]),
                name="storage_test_one_active",
            ),
        ]
        indexes = [models.Index(fields=["profile", "-id"], name="storage_test_newest")]

    def __str__(self) -> str:
        return f"test {self.pk}"

    @property
    def is_active(self) -> bool:
        return self.status in {StorageTestStatus.QUEUED, StorageTestStatus.RUNNING}
