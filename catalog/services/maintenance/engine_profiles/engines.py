"""The Spark of each engine profile, and whether it can run jobs."""

import os
from collections.abc import Mapping

from django.conf import settings

from catalog import engine_profiles
from catalog.engine_profiles import DEFAULT, EngineKind, Limits, SparkEngine
from catalog.errors import InvalidInput, Unsupported
from catalog.models import EngineProfile, Job, Table, TableFormat, TableState
from catalog.policies import EffectivePolicy
from catalog.services.engine import processes

_IMAGES = (
    "spark.kubernetes.container.image",
    "spark.kubernetes.executor.container.image",
)
_HADOOP = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


def limits() -> Limits:
    """What the settings of this process permit profiles to use."""
    own = [] if settings.SPARK_MASTER.startswith("local") else [settings.SPARK_MASTER]
    masters = [*own, *settings.MONODON_SPARK_MASTERS]
    return Limits(tuple(masters), tuple(settings.MONODON_SPARK_PROFILE_CONF))


def default_engine() -> SparkEngine:
    """The Spark that the settings describe."""
    return SparkEngine(
        DEFAULT, settings.SPARK_MASTER, settings.MONODON_SPARK_CORES, settings.MONODON_SPARK_MEMORY
    )


def engine_of_job(job: Job) -> SparkEngine:
    """The Spark of a job's profile. Raises Unsupported if it does not exist or cannot run here."""
    name = job.engine_profile or DEFAULT
    if name == DEFAULT:
        return default_engine()
    row = EngineProfile.objects.filter(name=name).first()
    if row is None:
        raise Unsupported(f"Engine profile '{name}' of the job does not exist any more")
    if reason := problem(row):
        raise Unsupported(reason)
    return _engine(row)


def _engine(row: EngineProfile) -> SparkEngine:
    is_local = row.kind == EngineKind.LOCAL
    master = engine_profiles.local_master(row.cores) if is_local else row.master
    return SparkEngine(row.name, master, row.cores, row.memory, dict(row.conf))


def check(row: EngineProfile) -> None:
    """Check the fields of a profile together. Raises InvalidInput, and ValueError for an unknown kind."""
    engine_profiles.check(
        kind=EngineKind(row.kind),
        master=row.master,
        cores=row.cores,
        memory=row.memory,
        concurrency=row.concurrency,
        conf=row.conf,
        limits=limits(),
    )


def problem(row: EngineProfile, environment: Mapping[str, str] = os.environ) -> str:
    """Why this machine cannot run jobs on a profile; empty if nothing is known to be missing.

    The settings may have changed since the profile was stored, so its fields are checked again.
    """
    try:
        check(row)
    except (InvalidInput, ValueError) as error:
        return f"Engine profile '{row.name}' cannot be used: {error}"
    conf = settings.MONODON_SPARK_CONF | row.conf
    if row.kind == EngineKind.YARN and not any(environment.get(name) for name in _HADOOP):
        return (
            f"Engine profile '{row.name}' needs HADOOP_CONF_DIR or YARN_CONF_DIR in the environment of"
            " the worker"
        )
    if row.kind == EngineKind.KUBERNETES and not any(conf.get(name) for name in _IMAGES):
        return (
            f"Engine profile '{row.name}' needs the image of the executors: set {_IMAGES[0]} in"
            " MONODON_SPARK_CONF"
        )
    return ""


def problems() -> dict[str, str]:
    """The profiles on which this machine cannot run jobs, each with the reason. One statement."""
    reasons = {row.name: problem(row) for row in EngineProfile.objects.order_by("name")}
    return {name: reason for name, reason in reasons.items() if reason}


def reason_to_decline(pk: int) -> str:
    """Why this worker leaves a queued job to another one; empty if it should take the job.

    A job whose profile no running worker can use is taken, and fails with the reason. Two statements
    at most.
    """
    names = Job.objects.filter(pk=pk).values("engine_profile")
    row = EngineProfile.objects.filter(name__in=names).first()
    reason = problem(row) if row is not None else ""
    return reason if row is not None and reason and processes.can_use_profile(row.name) else ""


def cannot_maintain_iceberg() -> bool:
    """True if there are Iceberg tables, and no running worker can maintain them. Two statements at most."""
    if not processes.missing_for_iceberg():
        return False
    return Table.objects.filter(format=TableFormat.ICEBERG, state=TableState.LIVE).exists()


def obstacle(table_format: str, policy: EffectivePolicy) -> str:
    """Why no running worker can run jobs that need Spark under a policy; empty if one can.

    The worker compacts Lance tables itself, unless the policy says otherwise.
    """
    is_iceberg = table_format == TableFormat.ICEBERG
    if not is_iceberg and policy["engine"] != "spark":
        return ""
    reason = processes.missing_for_iceberg() if is_iceberg else ""
    name = policy["engine_profile"]
    if reason or name == DEFAULT:
        return reason
    if not EngineProfile.objects.filter(name=name).exists():
        return f"Engine profile '{name}' does not exist"
    return processes.missing_for_profiles().get(name, "")


def profile_of(table_format: str, policy: EffectivePolicy) -> str:
    """The profile that a job which may use Spark gets; empty if the policy keeps it in the worker."""
    if table_format == TableFormat.LANCE and policy["engine"] == "worker":
        return ""
    return str(policy["engine_profile"])
