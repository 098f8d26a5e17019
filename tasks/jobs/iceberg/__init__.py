"""Maintenance of an Iceberg table with Iceberg's own procedures, through the catalog's REST endpoint.

The driver of the worker (``tasks/jobs/driver.py``) calls ``run`` for each job, and ``describe`` for its error;
``tasks/jobs/iceberg_maintain.py`` starts a job manually. Imports are relative, because Spark's processes have
this package under its own name, without the packages above it.
"""

from .actions import run
from .errors import describe

__all__ = ["describe", "run"]
