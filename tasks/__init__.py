"""Celery: what runs later and what runs by the clock."""

from tasks.celery import app as celery_app

__all__ = ["celery_app"]
