"""The idle drivers of this process. A driver runs one job at a time, and then waits for the next one.

A driver runs jobs of one engine profile. A process keeps the drivers of the two profiles that it used
last, so that jobs of both in turn do not start a driver each.

A driver is not used again after an error, after MONODON_SPARK_JOBS jobs, or when its memory is full.
It ends by itself when it has been idle for MONODON_SPARK_IDLE_SECONDS, and when this process ends.
"""

import atexit
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from catalog.engine_profiles import SparkEngine
from tasks.spark import configuration
from tasks.spark.driver import Driver

_MAX_IDLE = 2


@dataclass(frozen=True, slots=True)
class _Idle:
    """A driver that waits for its next job."""

    profile: str
    key: str
    """Drivers with equal keys were started with equal settings."""
    driver: Driver


_lock = threading.Lock()
_idle: list[_Idle] = []
"""The driver that was used last is the last one."""


def acquire(engine: SparkEngine, jars: Sequence[Path]) -> tuple[Driver, bool]:
    """A driver of this Spark with these jars, and whether it has run a job before. Raises Unsupported."""
    key, outdated = _key(engine, jars), []
    try:
        with _lock:
            for waiting in [idle for idle in reversed(_idle) if idle.profile == engine.name]:
                _idle.remove(waiting)
                if waiting.key == key and waiting.driver.is_alive:
                    return waiting.driver, True
                outdated.append(waiting.driver)
    finally:
        for driver in outdated:
            driver.end()
    properties = configuration.properties(engine, jars)
    return Driver(properties, configuration.environment(engine)), False


def release(driver: Driver, engine: SparkEngine, jars: Sequence[Path]) -> None:
    """Keep a driver for the next job, or end it if it has run enough jobs."""
    if driver.jobs >= settings.MONODON_SPARK_JOBS or not driver.is_alive:
        driver.end()
        return
    with _lock:
        _idle.append(_Idle(engine.name, _key(engine, jars), driver))
        excess = [_idle.pop(0) for _ in range(len(_idle) - _MAX_IDLE)]
    for waiting in excess:
        waiting.driver.end()


def end_all() -> None:
    """End the idle drivers."""
    with _lock:
        drivers = [waiting.driver for waiting in _idle]
        _idle.clear()
    for driver in drivers:
        driver.end()


def _key(engine: SparkEngine, jars: Sequence[Path]) -> str:
    text = configuration.properties(engine, jars)(Path())
    return f"{text}{configuration.environment(engine)}"


atexit.register(end_all)
