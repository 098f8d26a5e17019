"""Old files that no version of their table names any more, and that a clone needs, outlive every clean-up.

Lance removes such files together with old versions.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from catalog.formats.lance import naming as lance_naming
from catalog.models import Job, JobStatus, Table, TableVersion
from catalog.services.engine.commit import commit
from catalog.services.maintenance import job_runner
from catalog.services.maintenance.plans import lance_removals
from catalog.services.tables import job_operations
from tests.catalog.services.maintenance.removals.test_spark_removal import LocalSpark
from tests.security.test_needed_by_clones import (
    ADA,
    SOURCE,
    make_clone,
    read,
    source,
    versions,
)

__all__ = ["source"]

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]


def remove_manifest(table: Table, version: int) -> None:
    """A client removes the manifest of a version; all files become a year old."""
    for path in Path(table.location).glob("_versions/*.manifest"):
        name = lance_naming.parse_manifest_name(path.name)
        if name is not None and name.version == version:
            path.unlink()
    for path in Path(table.location).rglob("*"):
        os.utime(path, (0, 0))


def clean_up(engine: str, executors: LocalSpark, *, dry: bool = False) -> Job:
    TableVersion.objects.update(created_at="2026-01-01T00:00Z")
    policy = {"keep_for": 0, "keep_versions": 1, "engine": engine}
    start = job_operations.StartMaintenance(
        table=SOURCE, kind_of_job="clean_up", is_dry_run=dry, parameters={"policy": policy}
    )
    job: Job = commit([start], actor=ADA).results[0]
    job_runner.run_job(job.pk, executors)  # type: ignore[arg-type]
    job.refresh_from_db()
    return job


@pytest.mark.parametrize("engine", ["worker", "spark"])
def test_a_clean_up_spares_the_files_of_a_version_whose_manifest_is_gone(source: Any, engine: str):
    make_clone(2)
    remove_manifest(source, 2)
    data = Path(source.location, "data")
    unneeded = data / "failed-write.lance"
    unneeded.write_bytes(b"-")
    os.utime(unneeded, (0, 0))
    executors = LocalSpark()
    job = clean_up(engine, executors)
    assert (job.status, job.engine) == (JobStatus.SUCCEEDED, engine)
    assert job.result["promise"]["kept"], job.result
    assert versions() == [4]
    assert [path.name for path in Path(source.location).glob("_versions/*.manifest")] == [
        lance_naming.final_manifest_path("", 4, lance_naming.NamingScheme.V2).rpartition("/")[2]
    ]
    assert not unneeded.exists()
    assert len(list(data.iterdir())) == 2
    assert bool(executors.paths) == (engine == "spark")
    assert read() == [2]
    assert clean_up(engine, executors).result["plan"] == []
    assert read() == [2]


def test_the_plan_of_a_clean_up_leaves_out_what_clones_need(source: Any):
    make_clone(2)
    remove_manifest(source, 2)
    estimate = lance_removals.removable(source, {"": [1, 3]})
    job = clean_up("worker", LocalSpark())
    assert (estimate.files, estimate.bytes) == (job.result["files"], job.result["bytes"])
    assert not estimate.is_estimate
