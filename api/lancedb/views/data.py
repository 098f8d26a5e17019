"""Data: updating and deleting rows."""

from lance_namespace_urllib3_client import models as m

from api.lance.views import data as lance
from api.lancedb.operation import DatabaseOperation
from catalog.access import Principal
from catalog.formats.lance.naming import branch_name
from catalog.identifiers import Identifier
from catalog.services.lance import data as lance_data

_COUNT = {"type": "integer", "format": "int64", "minimum": 0}


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
