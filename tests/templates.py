"""Migrated databases that the databases of tests and of live servers are copies of.

The migrations take many seconds. Therefore one process of a test session runs them, once.
"""

import functools
import os
import tempfile
import uuid
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from tests.django_process import DjangoProcess

KEY = "live-server-key-of-the-tests"
_VARIABLE = "TESTS_TEMPLATE"
"""Environment variable with the name of the session's template."""
_MIGRATE = """
from django.core.management import call_command
call_command("migrate", interactive=False, verbosity=0)
"""
_ADD_KEY = """
from django.db import connection
from catalog.access import SYSTEM
from catalog.services.access import api_keys
connection.settings_dict["NAME"] = {database!r}
api_keys.create_api_key(actor=SYSTEM, name="tests", key={key!r})
"""


def choose_name() -> None:
    """Choose the name of the template for this process and the workers that it starts."""
    os.environ[_VARIABLE] = f"monodon_template_{uuid.uuid4().hex}"


def migrated() -> str:
    """The name of a migrated database."""
    _make()
    return os.environ[_VARIABLE]


def with_key() -> str:
    """The name of a migrated database that contains the API key ``KEY``."""
    _make()
    return f"{os.environ[_VARIABLE]}_key"


def drop() -> None:
    """Drop the templates of the session."""
    for suffix in ("", "_draft", "_key"):
        execute("DROP DATABASE IF EXISTS {}", os.environ[_VARIABLE] + suffix)


def url_of(database: str) -> str:
    return urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{database}").geturl()


def execute(statement: str, *names: str) -> None:
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


@functools.cache
def _make() -> None:
    plain = os.environ[_VARIABLE]
    draft, keyed = f"{plain}_draft", f"{plain}_key"
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        # Other processes of the session wait here.
        connection.execute("SELECT pg_advisory_lock(hashtext(%s))", [plain])
        query = "SELECT FROM pg_database WHERE datname = %s"
        if connection.execute(query, [keyed]).fetchone() is not None:
            return
        drop()
        execute("CREATE DATABASE {}", plain)
        with tempfile.TemporaryDirectory(prefix="monodon-template-") as home:
            django = DjangoProcess(
                os.environ | {"DATABASE_URL": url_of(plain), "MONODON_HOME": home}
            )
            try:
                django.run(_MIGRATE)
                execute("CREATE DATABASE {} TEMPLATE {}", draft, plain)
                django.run(_ADD_KEY.format(database=draft, key=KEY))
            finally:
                django.close()
        execute("ALTER DATABASE {} RENAME TO {}", draft, keyed)
