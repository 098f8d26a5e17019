"""Following a job until it ends."""

import sys
import time
from collections.abc import Callable
from typing import Any

import click

from monodon.client import models
from monodon.commands.app import FAILED, App, display

ENDED = {"succeeded", "failed", "canceled"}
PAUSE = 1.0


def follow(app: App, job: int, *, with_log: bool) -> models.JobWithLog:
    """Show the progress of a job until it ends, or its log.

    On a terminal, a progress bar; otherwise a line for each change.
    """
    if with_log or app.as_json or not sys.stdout.isatty():
        return _lines(app, job, with_log=with_log)
    return _bar(app, job)


def finish(app: App, job: models.JobWithLog) -> None:
    """Print the result of a job. Exits with FAILED if it did not succeed."""
    if app.as_json:
        app.json(job)
    else:
        text = job["summary"] or job["message"]
        click.echo(f"Job {job['id']} {job['status']}{f': {text}' if text else '.'}")
    if job["status"] != "succeeded":
        raise click.exceptions.Exit(FAILED)


def log_line(event: models.JobEvent) -> str:
    return f"{event['at']}  {event['level']:<7}  {event['message']}"


def _read(app: App, job: int, show: Callable[[models.JobEvent], None], token: str | None) -> Any:
    """The job, and the token with which its further log lines are read."""
    while True:
        page = app.client.get_job(job, page_token=token)
        for event in page["log"]:
            show(event)
        if page["next_page_token"] is None:
            return page
        token = page["next_page_token"]


def _lines(app: App, job: int, *, with_log: bool) -> models.JobWithLog:
    printed, state = 0, ""
    while True:
        events: list[models.JobEvent] = []
        row: models.JobWithLog = _read(app, job, events.append, None)
        if with_log:
            for event in events[printed:]:
                if app.as_json:
                    app.json_line(event)
                else:
                    click.echo(log_line(event))
        elif not app.as_json and (text := _state(row)) != state:
            state = text
            click.echo(state)
        printed = len(events)
        if row["status"] in ENDED:
            return row
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
                description=name,
                total=row["total"],
                completed=row["progress"],
                state=_state(row),
            )
            if row["status"] in ENDED:
                return row
            time.sleep(PAUSE)
