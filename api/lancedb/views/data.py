"""Data: merging, updating and deleting rows."""

from lance_namespace_urllib3_client import models as m

from api.lance.views import data as lance
from api.lancedb.operation import DatabaseOperation
from catalog.access import Principal
from catalog.formats.lance.naming import branch_name
from catalog.identifiers import Identifier
from catalog.services.lance import data as lance_data

_COUNT = {"type": "integer", "format": "int64", "minimum": 0}
_MERGED = ("num_updated_rows", "num_inserted_rows", "num_deleted_rows")


class MergeInsertIntoTable(DatabaseOperation, lance.MergeInsertIntoTable):
    """Update, insert and delete rows by comparing them with an Arrow IPC stream.

    The answer also has the number of attempts and of written rows.
    """

    response_model = None  # type: ignore[assignment]
    response_schema = {
        "type": "object",
        "properties": dict.fromkeys((*_MERGED, "num_attempts", "num_rows", "version"), _COUNT),
    }

    def handle(  # type: ignore[override]
        self, actor: Principal, body: lance_data.Data, *, id: Identifier
    ) -> dict[str, int]:
        written = self.merge(actor, body, id)
        counts = {name: written.result[name] for name in _MERGED}
        return {
            **counts,
            "num_rows": counts["num_updated_rows"] + counts["num_inserted_rows"],
            "num_attempts": written.attempts,
            "version": written.version,
        }


class UpdateTable(DatabaseOperation, lance.UpdateTable):
    """Update the rows of a table.

    Sets columns to SQL expressions. The answer has the number of rows as ``rows_updated``.
    """

    response_model = None  # type: ignore[assignment]
    response_schema = {"type": "object", "properties": {"rows_updated": _COUNT, "version": _COUNT}}

    def handle(  # type: ignore[override]
        self, actor: Principal, body: m.UpdateTableRequest, *, id: Identifier
    ) -> dict[str, int]:
        answer = super().handle(actor, body, id=id)
        return {"rows_updated": answer.updated_rows, "version": answer.version}


class DeleteFromTable(DatabaseOperation, lance.DeleteFromTable):
    """Delete rows of a table.

    The answer has the number of deleted rows.
    """

    response_model = None  # type: ignore[assignment]
    response_schema = {
        "type": "object",
        "properties": {"num_deleted_rows": _COUNT, "version": _COUNT},
    }

    def handle(  # type: ignore[override]
        self, actor: Principal, body: m.DeleteFromTableRequest, *, id: Identifier
    ) -> dict[str, int]:
        written = lance_data.delete(
            actor=actor, table=id, predicate=body.predicate, branch=branch_name(body.branch)
        )
        return {"num_deleted_rows": written.result, "version": written.version}
