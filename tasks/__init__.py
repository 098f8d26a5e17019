"""Celery tasks: background work and scheduled work."""

from tasks.celery import app as celery_app

__all__ = ["celery_app"]
