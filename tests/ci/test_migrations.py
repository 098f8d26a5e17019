"""Servers of the old release keep working while and after a migration runs (rolling updates)."""

import pytest
from django.db.migrations.loader import MigrationLoader
from django_migration_linter import MigrationLinter
from django_migration_linter.sql_analyser import analyse_sql_statements, get_sql_analyser_class

LAST_UNCHECKED = "0033_access_requests"
"""Up to this migration there was no release from which an installation could be updated."""


def errors_of(statement: str) -> list[str]:
    analyser = get_sql_analyser_class("postgresql", analyser_string="postgresql")
    return [issue.code for issue in analyse_sql_statements(analyser, [statement], [])[0]]


@pytest.mark.django_db(transaction=True)  # an index that is built concurrently refuses one
def test_migrations_are_compatible_with_the_code_before_them(capsys):
    names = sorted(name for app, name in MigrationLoader(None).graph.nodes if app == "catalog")
    assert LAST_UNCHECKED in names
    unchecked = names[: names.index(LAST_UNCHECKED) + 1]
    linter = MigrationLinter(ignore_name=unchecked)
    linter.lint_all_migrations(app_label="catalog")
    assert not linter.has_errors, capsys.readouterr().out
    assert linter.nb_total == len(names)
    assert linter.nb_ignored == len(unchecked)


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ('ALTER TABLE "catalog_table" DROP COLUMN "name" CASCADE', "DROP_COLUMN"),
        ('ALTER TABLE "catalog_table" RENAME COLUMN "name" TO "title"', "RENAME_COLUMN"),
        ('ALTER TABLE "catalog_table" ADD COLUMN "size" integer NOT NULL', "NOT_NULL"),
        ('DROP TABLE "catalog_table" CASCADE', "DROP_TABLE"),
    ],
)
def test_incompatible_statements_are_detected(statement: str, code: str):
    assert errors_of(statement) == [code]


def test_a_new_column_with_a_default_is_compatible():
    assert errors_of('ALTER TABLE "catalog_table" ADD COLUMN "size" integer NULL') == []
