"""A pytest plugin: the first session that needs a database migrates it, later sessions copy it."""

import sys
from typing import Any

import pytest


class CopiedDatabase:
    def pytest_configure(self, config: pytest.Config) -> None:
        # Registered after pytest-django, so that its fixture of the same name is replaced.
        config.pluginmanager.register(sys.modules[__name__])


@pytest.fixture(scope="session")
def django_db_setup(django_test_environment: None, django_db_blocker: Any) -> None:  # noqa: ARG001
    from django.conf import settings
    from django.db import connection
    from django.test.utils import setup_databases

    name = connection.creation._get_test_db_name()  # noqa: SLF001 -- as Django's own commands do
    template = f"{name}_template"
    with django_db_blocker.unblock(), connection._nodb_cursor() as cursor:  # noqa: SLF001
        cursor.execute("SELECT count(*) FROM pg_database WHERE datname = %s", [template])
        if cursor.fetchone()[0]:
            connection.close()
            cursor.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            cursor.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY FILE_COPY')
            settings.DATABASES["default"]["NAME"] = connection.settings_dict["NAME"] = name
        else:
            setup_databases(verbosity=0, interactive=False, aliases={"default"})
            connection.close()
            cursor.execute(f'CREATE DATABASE "{template}" TEMPLATE "{name}" STRATEGY FILE_COPY')
