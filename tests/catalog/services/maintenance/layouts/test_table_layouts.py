"""Compaction that sorts: its request to Spark, and the files that are sorted already."""

from typing import Any

import pytest

from catalog import maintenance_actions
from catalog.access import SYSTEM
from catalog.errors import InvalidInput
from catalog.models import Job, JobStatus, Table
from catalog.planning import Statistics
from catalog.policies import EffectivePolicy, effective
from catalog.services.maintenance import iceberg_statistics, job_runner, policies
from catalog.services.maintenance import scheduler as maintenance_scheduler
from catalog.services.maintenance.requests.arguments import Overrides
from tests.catalog.services.iceberg.writing import open_table, rows
from tests.factories import make_iceberg_table, unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
NAME = ("ws", "t")


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)


class FakeSpark:
    """Rewrites a table as one job of Spark does: with the number of the job in the snapshots."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    def __call__(
        self, job: Job, script: str, request: Any, report: Any, **_: Any
    ) -> dict[str, Any]:
        self.requests.append(dict(request))
        table = open_table(*NAME)
        content = table.scan().to_arrow()
        table.overwrite(content, snapshot_properties={"monodon.job-id": str(job.pk)})
        return {"rewritten_data_files_count": 3, "added_data_files_count": 1}


def write_files(number: int) -> Table:
    make_iceberg_table(*NAME)
    table = open_table(*NAME)
    for start in range(number):
        table.append(rows(start, start + number))
    return Table.objects.named(NAME).get()


def policy_for(**values: Any) -> EffectivePolicy:
    return effective([("test", values)])


def measure(row: Table, **values: Any) -> Statistics:
    measured = iceberg_statistics.measure(row, policy_for(**values))
    assert measured is not None
    return measured


def start(**overrides: str) -> Job:
    return maintenance_scheduler.start(
        actor=SYSTEM, table=NAME, kind="compact", overrides=Overrides(**overrides)
    )


def run(spark: FakeSpark, job: Job) -> Job:
    job_runner.run_job(job.pk, spark=spark)
    job.refresh_from_db()
    return job


def test_files_are_sorted_once() -> None:
    row = write_files(3)
    order = {"strategy": "sort", "sort_order": "name desc"}
    measured = measure(row, **order)
    assert (measured.files, measured.unsorted_files, measured.rewrite_files) == (3, 3, 3)
    (planned, *_) = maintenance_actions.plan(measured, policy_for(**order))
    assert (planned.kind, planned.is_for_spark) == ("compact", True)
    assert "3 are not sorted as the policy requires" in planned.reason
    assert maintenance_actions.plan(measure(row), policy_for()) == []

    spark = FakeSpark()
    job = run(spark, start(**order))

    assert job.status == JobStatus.SUCCEEDED, job.error
    (request,) = spark.requests
    assert (request["strategy"], request["sort_order"]) == ("sort", "`name` DESC NULLS LAST")
    assert request["options"]["rewrite-all"] == "true"
    facts = job.result["layout"]
    assert (facts["strategy"], facts["sort_order"], facts["files"]) == (
        "sort",
        "name desc nulls last",
        "all",
    )
    assert job.result["after"]["unsorted_files"] == 0
    assert measure(row, **order).unsorted_files == 0
    assert measure(row, strategy="sort", sort_order="name").unsorted_files == 1
    assert measure(row, strategy="zorder", sort_order="name").unsorted_files == 1


def test_sorted_files_are_recognized_by_the_ids_of_the_columns() -> None:
    """After two columns exchanged their names, the files are not sorted by the other one."""
    row = write_files(2)
    assert run(FakeSpark(), start(strategy="sort", sort_order="id")).status == JobStatus.SUCCEEDED
    for old, new in (("id", "former"), ("name", "id"), ("former", "name")):
        with open_table(*NAME).update_schema() as update:
            update.rename_column(old, new)
    for strategy, column, unsorted in (("sort", "id", 1), ("sort", "name", 0), ("zorder", "id", 1)):
        measured = measure(row, strategy=strategy, sort_order=column)
        assert measured.unsorted_files == unsorted, (strategy, column)
    assert measure(row, strategy="sort", sort_order="name asc nulls first").unsorted_files == 0
    assert measure(row, strategy="sort", sort_order="name desc").unsorted_files == 1


def test_few_new_files_do_not_sort_all_files_again() -> None:
    row = write_files(3)
    order = {"strategy": "sort", "sort_order": "name"}
    assert run(FakeSpark(), start(**order)).status == JobStatus.SUCCEEDED
    open_table(*NAME).append(rows(99))
    measured = measure(row, **order, unsorted_ratio=0.9)
    assert (measured.files, measured.unsorted_files, measured.rewrite_files) == (2, 1, 0)
    assert maintenance_actions.plan(measured, policy_for(**order, unsorted_ratio=0.9)) == []
    assert measure(row, **order, unsorted_ratio=0.1).rewrite_files == 2


def test_a_zorder_is_requested_with_quoted_columns() -> None:
    write_files(2)
    spark = FakeSpark()
    job = run(spark, start(strategy="zorder", sort_order="name, id"))
    assert job.status == JobStatus.SUCCEEDED, job.error
    assert spark.requests[0]["strategy"] == "sort"
    assert spark.requests[0]["sort_order"] == "zorder(`name`, `id`)"


def test_bin_packing_has_no_sort_order() -> None:
    write_files(9)
    spark = FakeSpark()
    job = run(spark, start())
    assert job.status == JobStatus.SUCCEEDED, job.error
    assert not {"strategy", "sort_order"} & spark.requests[0].keys()
    assert "rewrite-all" not in spark.requests[0]["options"]
    assert job.result["layout"] == {"strategy": "binpack", "sort_order": ""}


def test_a_column_that_was_dropped_fails_the_job_and_changes_nothing() -> None:
    write_files(2)
    job = start(strategy="sort", sort_order="name")
    with open_table(*NAME).update_schema() as update:
        update.delete_column("name")
    metadata = open_table(*NAME).metadata_location
    spark = FakeSpark()
    run(spark, job)
    assert job.status == JobStatus.FAILED
    assert job.error == "The table has no column 'name' to sort by. Nothing was changed"
    assert spark.requests == []
    assert open_table(*NAME).metadata_location == metadata


def test_a_measurement_ignores_an_order_that_does_not_fit() -> None:
    row = write_files(2)
    for values in (
        {"strategy": "sort", "sort_order": "gone"},
        {"strategy": "sort", "sort_order": ""},
        {"strategy": "zorder", "sort_order": "name desc"},
    ):
        assert measure(row, **values).unsorted_files == 0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"strategy": "sort", "sort_order": "gone"}, "no column 'gone'"),
        ({"strategy": "sort"}, "the table has none"),
        ({"strategy": "zorder"}, "needs the columns"),
        ({"strategy": "hilbert"}, "must be one of"),
        ({"sort_order": "name; DROP"}, "must be a sort order"),
    ],
)
def test_arguments_of_a_job_are_checked_against_the_table(
    overrides: dict[str, str], message: str
) -> None:
    write_files(1)
    with unchanged(), pytest.raises(InvalidInput, match=message):
        start(**overrides)


def test_other_jobs_take_no_layout() -> None:
    write_files(1)
    with unchanged(), pytest.raises(InvalidInput, match="does not take 'strategy'"):
        maintenance_scheduler.start(
            actor=SYSTEM,
            table=NAME,
            kind="clean_up",
            overrides=Overrides(strategy="sort"),
        )


def test_the_policy_of_a_table_is_checked_against_its_schema() -> None:
    write_files(1)
    for values, message in (
        ({"sort_order": "gone"}, "no column 'gone'"),
        ({"strategy": "zorder", "sort_order": "gone"}, "no column 'gone'"),
    ):
        with unchanged(), pytest.raises(InvalidInput, match=message):
            policies.set_table_policy(actor=SYSTEM, table=NAME, values=values)
    values = {"strategy": "zorder", "sort_order": "name, id"}
    assert policies.set_table_policy(actor=SYSTEM, table=NAME, values=values) == values
    # A namespace has tables with other columns.
    policies.set_namespace_policy(actor=SYSTEM, namespace=("ws",), values={"sort_order": "gone"})


def test_a_retry_keeps_the_arguments_of_the_job() -> None:
    write_files(1)
    job = start(strategy="sort", sort_order="name")
    Job.objects.update(status=JobStatus.FAILED)
    again = maintenance_scheduler.retry(actor=SYSTEM, job=job.pk)
    assert again.pk != job.pk
    assert again.parameters["overrides"] == {"strategy": "sort", "sort_order": "name"}
    assert again.parameters["policy"]["sort_order"] == "name"
