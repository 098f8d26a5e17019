"""Serializers of engine profiles."""

from rest_framework import serializers

from api.management import fields
from api.management.serializers.base import Serializer
from catalog.engine_profiles import EngineKind
from catalog.models import EngineProfile

_NAME = "Letters, digits, '.', '_' and '-'; at most 100. It cannot be changed."
_KIND = "The kind of the Spark master: `local` runs on the machine of the worker, the others on a cluster."
_MASTER = (
    "The Spark master of a cluster, which the settings of the server must name: SPARK_MASTER or"
    " MONODON_SPARK_MASTERS. Empty for `local`."
)
_CORES = "The cores that a job uses."
_MEMORY = "The memory of the driver and of each executor, such as 4g. Empty: Spark's default."
_CONCURRENCY = "The most jobs that run at the same time, each with a driver of its own."
_CONF = "Settings of Spark by name. The server refuses those that could load code or read files."


class CreateEngineProfileSerializer(Serializer):
    """An engine profile to create."""

    name = fields.TextField(help_text=_NAME)
    kind = fields.EnumField(EngineKind, help_text=_KIND)
    master = fields.TextField(default="", help_text=_MASTER)
    cores = fields.WholeNumberField(default=2, help_text=_CORES)
    memory = fields.TextField(default="", help_text=_MEMORY)
    concurrency = fields.WholeNumberField(default=1, help_text=_CONCURRENCY)
    conf = serializers.DictField(child=fields.TextField(), default=dict, help_text=_CONF)


class UpdateEngineProfileSerializer(Serializer):
    """Changes of an engine profile. Omitted fields keep their values; ``conf`` replaces all settings."""

    kind = fields.EnumField(EngineKind, **fields.OPTIONAL, help_text=_KIND)
    master = fields.TextField(**fields.OPTIONAL, help_text=_MASTER)
    cores = fields.WholeNumberField(**fields.OPTIONAL, help_text=_CORES)
    memory = fields.TextField(**fields.OPTIONAL, help_text=_MEMORY)
    concurrency = fields.WholeNumberField(**fields.OPTIONAL, help_text=_CONCURRENCY)
    conf = serializers.DictField(child=fields.TextField(), **fields.OPTIONAL, help_text=_CONF)


class EngineProfileSerializer(Serializer):
    """A Spark on which jobs run. The profile `default` is that of the server's settings."""

    name = serializers.CharField()
    kind = serializers.CharField(help_text=_KIND)
    master = serializers.CharField(help_text=_MASTER)
    cores = serializers.IntegerField(help_text=_CORES)
    memory = serializers.CharField(help_text=_MEMORY)
    concurrency = serializers.SerializerMethodField(
        help_text=f"{_CONCURRENCY} Null: as many as the workers run."
    )
    conf = serializers.DictField(child=serializers.CharField(), help_text=_CONF)
    is_built_in = serializers.SerializerMethodField(
        help_text="Whether the settings of the server describe it. It cannot be changed or deleted."
    )
    problem = serializers.CharField(
        help_text="Why no running worker can use it. Empty: one can, or no worker runs."
    )
    version = serializers.IntegerField(help_text="Increases with every change.")
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField(
        allow_null=True, help_text="Null for the built-in profile."
    )
    updated_at = serializers.DateTimeField(
        allow_null=True, help_text="Null for the built-in profile."
    )

    def get_concurrency(self, row: EngineProfile) -> int | None:
        return row.concurrency if row.pk else None

    def get_is_built_in(self, row: EngineProfile) -> bool:
        return not row.pk
