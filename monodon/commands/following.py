"""Following a job until it ends."""

import sys
import time

import click

from monodon.client import models
from monodon.client.transport import next_token
from monodon.commands.app import FAILED, App, display
from monodon.commands.texts import echo, printable

ENDED = {"succeeded", "failed", "canceled"}
PAUSE = 1.0


def follow(app: App, job: int) -> models.JobWithLog:
    """Show the progress of a job until it ends.

    On a terminal, a progress bar; otherwise a line for each change.
    """
    if app.as_json or not sys.stdout.isatty():
        return _print_states(app, job)
    return _bar(app, job)


def finish(app: App, job: models.JobWithLog) -> None:
    """Print the result of a job. Exits with FAILED if it did not succeed."""
    if app.as_json:
        app.json(job)
    else:
        text = job["summary"] or job["message"]
        echo(f"Job {job['id']} {job['status']}{f': {text}' if text else '.'}")
    if job["status"] != "succeeded":
        raise click.exceptions.Exit(FAILED)


def print_log(app: App, job: int, *, until_end: bool) -> models.JobWithLog:
    """Print the log of a job: what there is, or all until the job ends."""
    token: str | None = None
    printed = 0
    while True:
        page = app.client.get_job(job, page_token=token)
        for event in page["log"][printed:]:
            if app.as_json:
                app.json_line(event)
            else:
                echo(f"{event['at']}  {event['level']:<7}  {event['message']}")
        following = next_token(page, "next_page_token", token)
        if following is not None:
            token, printed = following, 0
            continue
        if page["status"] in ENDED or not until_end:
            return page
        printed = len(page["log"])  # further events are added to this page
        time.sleep(PAUSE)


def _print_states(app: App, job: int) -> models.JobWithLog:
    """Print a line for each change of the state; nothing as JSON."""
    state = ""
    while True:
        row = app.client.get_job(job, limit=1)
        if not app.as_json and (text := _state(row)) != state:
            state = text
            echo(state)
        if row["status"] in ENDED:
            return app.client.get_job(job) if app.as_json else row
        time.sleep(PAUSE)


def _state(job: models.JobWithLog) -> str:
    text = f"{job['status']}"
    if job["total"]:
        text += f" {job['progress']}/{job['total']} {job['unit']}"
    return text


def _bar(app: App, job: int) -> models.JobWithLog:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[state]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, transient=True) as progress:
        task = progress.add_task(f"job {job}", total=None, state="")
        while True:
            row = app.client.get_job(job, limit=1)
            name = f"{row['kind']} {display(row['table'])}"
            progress.update(
                task,
                description=printable(name),
                total=row["total"],
                completed=row["progress"],
                state=printable(_state(row)),
            )
            if row["status"] in ENDED:
                return row
            time.sleep(PAUSE)
