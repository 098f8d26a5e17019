"""The idle drivers of this process. A driver runs one job at a time, and then waits for the next one.

A driver is not used again after an error, after MONODON_SPARK_JOBS jobs, or when its memory is full.
It ends by itself when it has been idle for MONODON_SPARK_IDLE_SECONDS, and when this process ends.
"""

import atexit
import threading
from collections.abc import Sequence
from pathlib import Path

from django.conf import settings

from tasks.spark import configuration
from tasks.spark.driver import Driver

_lock = threading.Lock()
_idle: list[tuple[str, Driver]] = []


def acquire(jars: Sequence[Path]) -> tuple[Driver, bool]:
    """A driver with these jars, and whether it has run a job before. Raises Unsupported."""
    key, outdated = _key(jars), []
    try:
        with _lock:
            while _idle:
                other, driver = _idle.pop()
                if other == key and driver.is_alive:
                    return driver, True
                outdated.append(driver)
    finally:
        for driver in outdated:
            driver.end()
    return Driver(configuration.properties(jars), configuration.environment()), False


def release(driver: Driver, jars: Sequence[Path]) -> None:
    """Keep a driver for the next job, or end it if it has run enough jobs."""
    if driver.jobs >= settings.MONODON_SPARK_JOBS or not driver.is_alive:
        driver.end()
        return
    with _lock:
        _idle.append((_key(jars), driver))


def end_all() -> None:
    """End the idle drivers."""
    with _lock:
        drivers = [driver for _, driver in _idle]
        _idle.clear()
    for driver in drivers:
        driver.end()


def _key(jars: Sequence[Path]) -> str:
    """Drivers with equal keys were started with equal settings."""
    return f"{configuration.properties(jars)(Path())}{configuration.environment()}"


atexit.register(end_all)
