"""The place of the tests of access: a warehouse of their own."""

from pathlib import Path

import pytest

from catalog.formats.iceberg.scans import planning as scan_planning
from tests.recall import recalled_warehouse

__all__ = ["recalled_warehouse"]


@pytest.fixture
def warehouse(db, settings, tmp_path, monkeypatch, recalled_warehouse) -> Path:
    (tmp_path / "static").mkdir()
    settings.STATIC_ROOT = str(tmp_path / "static")
    monkeypatch.setattr(scan_planning, "FILES_AT_ONCE", 1)  # so that a plan has tasks to fetch
    # The feed must contain events of the test's own open transaction.
    monkeypatch.setattr("catalog.services.events.feed._horizon", lambda: 1 << 62)
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    return recalled_warehouse


@pytest.fixture
def _plain_static_files(settings) -> None:
    """The hashed names of static files exist only after collectstatic."""
    settings.STORAGES = {
        **settings.STORAGES,
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    }
