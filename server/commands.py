"""The command lines of the web server, the worker and the scheduler, without the interpreter."""

from server.options import Options

_TASK_PROCESSES = 4
"""Some periodic tasks and tests of storage profiles take minutes; the others must not wait for them."""

# --skip-checks: Django's checks import the whole API, and Celery ignores what they find.


def web(options: Options) -> list[str]:
    return [
        *("-m", "config.web", "--host", options.host, "--port", str(options.port)),
        *("--workers", str(options.web_workers)),
        *("--max-connections", str(options.max_connections)),
    ]


def worker(options: Options) -> list[str]:
    """A worker for both queues."""
    return _worker(options.worker_concurrency)


def job_worker(options: Options) -> list[str]:
    """A worker for jobs, which may take hours."""
    queue = ("--queues", f"{options.queue}.jobs", "--hostname", "jobs@%h")
    return [*_worker(options.worker_concurrency), *queue]


def task_worker(options: Options) -> list[str]:
    """A worker for the short periodic tasks, which no job keeps waiting."""
    return [*_worker(_TASK_PROCESSES), "--queues", options.queue, "--hostname", "tasks@%h"]


def _worker(concurrency: int) -> list[str]:
    return [
        *("-W", "ignore:You're running the worker with superuser privileges"),
        *("-m", "celery", "--quiet", "--skip-checks", "-A", "tasks", "worker"),
        *("--concurrency", str(concurrency)),
        *("--loglevel", "info", "--without-gossip", "--without-mingle"),
    ]


BEAT = (
    *("-m", "celery", "--quiet", "--skip-checks", "-A", "tasks", "beat"),
    *("--scheduler", "django_celery_beat.schedulers:DatabaseScheduler"),
    *("--pidfile", "", "--loglevel", "info"),
)
