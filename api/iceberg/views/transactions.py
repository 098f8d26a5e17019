"""Transactions: commits to several tables."""

from typing import Any

from api.iceberg.changes import read_change, read_identifier
from api.iceberg.operation import IcebergOperation
from catalog.access import Principal
from catalog.errors import InvalidInput
from catalog.services.iceberg import commits as iceberg_commits


class CommitTransaction(IcebergOperation):
    """Commit updates to several tables, all or none.

    A refusal names the table change that failed by its index. If any requirement does not hold, no
    table changes.
    """

    verb = "POST"
    changes = True
    is_commit = True
    is_idempotent = True
    is_batch = True
    request_model = "CommitTransactionRequest"

    def handle(self, actor: Principal, body: dict[str, Any]) -> None:
        changes = body.get("table-changes")
        if not isinstance(changes, list):
            raise InvalidInput("table-changes: expected a list")
        prepared = []
        for index, change in enumerate(changes):
            if not isinstance(change, dict):
                raise InvalidInput(f"table-changes.{index}: expected an object")
            table = read_identifier(
                self, change.get("identifier"), f"table-changes.{index}.identifier"
            )
            prepared.append(read_change(table, change))
        if prepared:
            iceberg_commits.commit_tables(actor=actor, changes=prepared)
