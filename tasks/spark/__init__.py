"""Spark for jobs: drivers that run one job after another, and the libraries that they need."""

from tasks.spark.runner import run

__all__ = ["run"]
