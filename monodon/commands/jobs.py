"""Commands for jobs: ls, show, logs, cancel, retry."""

import click

from monodon.commands.app import FAILED, NAME, App, command, display, limit_option, root
from monodon.commands.following import print_log
from monodon.commands.texts import echo

Parts = tuple[str, ...]
WITHHELD = "Parameters, result, message and log are shown to principals that may read the table"


@root.group("jobs")
def jobs() -> None:
    """Jobs of workers: maintenance, indexes, purges."""


@command(jobs, "ls")
@click.option("--status", help="Such as queued,running or failed.")
@click.option("--kind", help="Such as compact,clean_up.")
@click.option("--table", type=NAME, help="Only jobs of this table.")
@limit_option
def ls(app: App, *, status: str | None, kind: str | None, table: Parts | None, limit: int) -> None:
    """List jobs, newest first."""
    page = app.client.list_jobs(status=status, kind=kind, table=table, limit=limit)
    app.rows(
        page,
        ["job", "kind", "table", "status", "progress", "by", "created at", "message"],
        [
            (
                row["id"],
                row["kind"],
                display(row["table"]),
                row["status"],
                f"{row['progress']}/{row['total']}" if row["total"] else "",
                row["actor"],
                row["created_at"],
                row["message"],
            )
            for row in page["jobs"]
        ],
        empty="No jobs.",
    )


@command(jobs, "show")
@click.argument("job", type=int)
def show(app: App, *, job: int) -> None:
    """Show a job with its parameters and result."""
    row = app.client.get_job(job, limit=1)
    if app.as_json:
        app.json(row)
        return
    app.facts(
        [
            ("job", row["id"]),
            ("kind", row["kind"]),
            ("table", display(row["table"])),
            ("status", row["status"]),
            ("dry run", row["dry_run"] or None),
            ("attempts", row["attempts"]),
            ("by", row["actor"]),
            ("created at", row["created_at"]),
            ("started at", row["started_at"]),
            ("finished at", row["finished_at"]),
            ("message", row["message"]),
            ("summary", row["summary"]),
        ]
    )
    if not row.get("has_details", True):  # an older server does not say so
        echo(f"{WITHHELD}.")


@command(jobs, "logs")
@click.argument("job", type=int)
@click.option("-f", "--follow", "is_followed", is_flag=True, help="Wait until the job ends.")
def logs(app: App, *, job: int, is_followed: bool) -> None:
    """Print the log of a job."""
    row = print_log(app, job, until_end=is_followed)
    if not row.get("has_details", True):  # an older server does not say so
        app.say(f"{WITHHELD}.")
    if is_followed and row["status"] != "succeeded":
        raise click.exceptions.Exit(FAILED)


@command(jobs, "cancel")
@click.argument("job", type=int)
def cancel(app: App, *, job: int) -> None:
    """Cancel a queued job, or request a running one to stop."""
    row = app.client.cancel_job(job)
    if app.as_json:
        app.json(row)
    state = "is requested to stop" if row["status"] == "running" else f"is {row['status']}"
    app.say(f"Job {job} {state}.")


@command(jobs, "retry")
@click.argument("job", type=int)
def retry(app: App, *, job: int) -> None:
    """Start maintenance that failed or was canceled again, as a new job."""
    row = app.client.retry_job(job)
    if app.as_json:
        app.json(row)
    app.say(f"Started job {row['id']}.")
