"""The Celery application: ``celery -A tasks worker``, ``celery -A tasks beat``."""

import os
import warnings

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

# Importing Lance starts nothing; its first call does, and only the pool's processes call it.
warnings.filterwarnings("ignore", message="lance is not fork-safe", category=UserWarning)

app = Celery("monodon")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["tasks"], related_name="maintenance")
