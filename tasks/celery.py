"""The Celery application: ``celery -A tasks worker``, ``celery -A tasks beat``."""

import gc
import os
import warnings
from typing import Any

from celery import Celery, bootsteps
from celery.signals import beat_init, worker_init, worker_ready, worker_shutdown

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

# Importing Lance starts nothing; its first call does, and only the pool's processes call it.
warnings.filterwarnings("ignore", message="lance is not fork-safe", category=UserWarning)

app = Celery("monodon")
app.config_from_object("django.conf:settings", namespace="CELERY")


class TaskModules(bootsteps.Step):  # type: ignore[misc]
    """Imports the tasks in workers only. Beat sends tasks by name, and their imports take 130 MB."""

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        # Imports create no garbage, so collections would only take time. Frozen objects stay in memory
        # that the processes of the pool share.
        gc.disable()
        try:
            worker.app.loader.import_task_module("tasks.maintenance")
        finally:
            gc.freeze()
            gc.enable()


app.steps["worker"].add(TaskModules)


@worker_init.connect
def _install_channel(**_: Any) -> None:
    from tasks import broker  # in workers only: web processes would take 8 MB more

    broker.install()


# The imports wait until Django is set up.


@worker_ready.connect
def _report_worker(sender: Any, **_: Any) -> None:
    from tasks import heartbeats

    heartbeats.report_worker(sender)


@beat_init.connect
def _report_beat(**_: Any) -> None:
    from tasks import heartbeats

    heartbeats.report_beat()


@worker_shutdown.connect
def _stop_reporting(**_: Any) -> None:
    from tasks import heartbeats

    heartbeats.stop()
