"""The unique key that an insert violated, from PostgreSQL's error."""

import re

from django.db import IntegrityError

from catalog.services.engine.statements import NewVersion

OF_VERSIONS = "table_version_unique"
"""The unique constraint of the ledger."""

# This part is the same in every language: "... (table_id, branch, version)=(12, dev, 7) ...".
_KEY = re.compile(r"\)=\((\d+), (.*)\)", re.DOTALL)


def constraint(error: IntegrityError) -> str:
    """The name of the violated constraint."""
    return getattr(getattr(error.__cause__, "diag", None), "constraint_name", None) or ""


def read(error: IntegrityError) -> tuple[str, str] | None:
    """The table and the rest of the taken key."""
    detail = getattr(getattr(error.__cause__, "diag", None), "message_detail", None) or ""
    match = _KEY.search(detail)
    return (match[1], match[2]) if match else None


def of_version(row: NewVersion) -> tuple[str, str]:
    """A version's unique key, in the form that ``read`` returns."""
    return str(row.table.pk), f"{row.branch}, {row.version}"
