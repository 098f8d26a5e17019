from django.db import models
from django.db.models.functions import Now

from catalog.engine_profiles import EngineKind

ENGINE_KINDS = {
    EngineKind.LOCAL.value: "Spark on the machine of the worker",
    EngineKind.STANDALONE.value: "a standalone cluster of Spark",
    EngineKind.YARN.value: "Hadoop YARN",
    EngineKind.KUBERNETES.value: "Kubernetes",
}


class EngineProfile(models.Model):
    """A Spark on which jobs run, besides the one that the settings of the server describe."""

    name = models.CharField(max_length=100, unique=True)
    kind = models.CharField(max_length=20, choices=ENGINE_KINDS)
    master = models.TextField(blank=True, help_text="The Spark master of a cluster.")
    cores = models.PositiveIntegerField(
        default=2, help_text="Number of cores that a driver and its executors use."
    )
    memory = models.CharField(
        max_length=20,
        blank=True,
        help_text="Memory of the driver and of each executor, such as 4g; empty: Spark's default.",
    )
    concurrency = models.PositiveIntegerField(
        default=1, help_text="Maximum number of jobs, each with a driver, at the same time."
    )
    conf = models.JSONField(
        default=dict, blank=True, help_text="Settings of Spark by name, from the allow list."
    )
    version = models.PositiveIntegerField(
        default=1, editable=False, help_text="Increases with every change."
    )
    created_by = models.TextField(blank=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(auto_now=True)

    problem = ""
    """Why no running worker can use the profile; empty if one can. Services set it on reading."""

    def __str__(self) -> str:
        return self.name
