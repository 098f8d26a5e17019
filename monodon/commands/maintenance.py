"""Commands for maintenance: maintain plan, run, watch; repair."""

from collections.abc import Sequence
from typing import Literal

import click

from monodon.client import UNSET, pages
from monodon.commands import completing
from monodon.commands.app import (
    NAME,
    App,
    command,
    display,
    dry_run_option,
    limit_option,
    root,
)
from monodon.commands.following import finish, follow

Parts = tuple[str, ...]


@root.group("maintain")
def maintain() -> None:
    """Maintenance of tables: compaction, clean-up, indexes."""


@command(maintain, "plan")
@click.argument("table", type=NAME, required=False)
@click.option("--namespace", type=NAME, help="Only tables in this namespace and below.")
@click.option("--max-score", type=click.IntRange(0, 100), help="Only this health or lower.")
@limit_option
def plan(
    app: App, *, table: Parts | None, namespace: Parts | None, max_score: int | None, limit: int
) -> None:
    """Measure TABLE and print its plan.

    Without TABLE, list the tables with the lowest health.
    """
    if table:
        answer = app.client.plan_maintenance(table)
        if app.as_json:
            app.json(answer)
            return
        app.say(f"{display(table)}: health {answer['score']}")
        app.table(
            ["kind", "mode", "reason", "files removed", "bytes read", "on"],
            [
                (
                    job["kind"],
                    job["mode"],
                    job["reason"],
                    job["files_gone"],
                    job["bytes_read"],
                    "Spark" if job["is_for_spark"] else "worker",
                )
                for job in answer["planned"]
            ],
            empty="No maintenance is needed.",
        )
        return
    page = app.client.list_health(namespace=namespace, max_score=max_score, limit=limit)
    app.rows(
        page,
        ["health", "table", "format", "planned", "measured at", "error"],
        [
            (
                row["score"],
                display(row["table"]),
                row["format"],
                [job["kind"] for job in row["planned"]],
                row["measured_at"],
                row["error"],
            )
            for row in page["tables"]
        ],
        empty="No tables are measured yet.",
    )


@command(maintain, "run")
@click.argument("table", type=NAME)
@click.argument("kind", shell_complete=completing.kinds)
@click.option("--dry-run", is_flag=True, help="Report what it would do; change nothing.")
@click.option("--index", "indexes", multiple=True, help="Only this index; repeatable.")
@click.option("--engine-profile", help="The engine profile of a job on Spark.")
@click.option(
    "--strategy",
    type=click.Choice(["binpack", "sort", "zorder"]),
    help="The order of rows after the compaction of an Iceberg table.",
)
@click.option("--sort-order", help="Its columns, such as 'country, created_at desc'.")
@click.option("--no-wait", is_flag=True, help="Start the job, and return.")
def run(
    app: App,
    *,
    table: Parts,
    kind: str,
    dry_run: bool,
    indexes: Sequence[str],
    engine_profile: str | None,
    strategy: Literal["binpack", "sort", "zorder"] | None,
    sort_order: str | None,
    no_wait: bool,
) -> None:
    """Start maintenance of TABLE, and follow the job until it ends.

    KIND: compact, clean_up, remove_orphans, optimize_indexes, rebuild_indexes, …
    """
    job = app.client.start_maintenance(
        table,
        kind=kind,
        dry_run=dry_run,
        indexes=list(indexes) or UNSET,
        engine_profile=engine_profile or UNSET,
        strategy=strategy or UNSET,
        sort_order=sort_order or UNSET,
    )
    if no_wait:
        if app.as_json:
            app.json(job)
        app.say(f"Started job {job['id']}. To follow it: monodon jobs logs -f {job['id']}")
        return
    finish(app, follow(app, job["id"]))


@command(maintain, "watch")
@click.argument("job", type=int, required=False)
def watch(app: App, *, job: int | None) -> None:
    """Follow JOB, or all jobs that are queued or running, until they end."""
    if job is not None:
        finish(app, follow(app, job))
        return
    rows = list(pages(app.client.list_jobs, status="queued,running"))
    if not rows:
        app.say("No jobs are queued or running.")
    for row in reversed(rows):
        finish(app, follow(app, row["id"]))


@command(root, "repair")
@click.argument("table", type=NAME)
@dry_run_option
def repair(app: App, *, table: Parts, dry_run: bool) -> None:
    """Repair a Lance table whose newest version has lost files.

    Publishes a copy of the newest complete version of each branch that needs it. Removes no files.
    """
    answer = app.client.repair_table(table, dry_run=dry_run)
    published = answer["published"]
    app.rows(
        answer,
        [
            *("branch", "newest", "fault", "last complete", "without a manifest"),
            *("not in the ledger", "would publish" if dry_run else "published"),
        ],
        [
            (
                row["branch"] or "main",
                row["newest"],
                row["fault"],
                row["last_complete"],
                row["missing"],
                row["unlisted"],
                published.get(row["branch"]),
            )
            for row in answer["branches"]
        ],
    )
