"""Indexes: creating and listing them, and loading them into memory."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from lance_namespace_urllib3_client import models as m
from pydantic import StrictBool

from api.lance.views import indexes as lance
from api.lancedb.operation import DatabaseOperation
from catalog.access import Principal
from catalog.formats.lance.naming import branch_name
from catalog.identifiers import Identifier
from catalog.services.lance.indexes import indexes
from catalog.services.lance.indexes.index_plans import NewIndex
from catalog.services.maintenance import job_control

_PARAMETERS = {field.name for field in dataclasses.fields(NewIndex)}
_RENAMED = {"metric_type": "distance_type", "num_edges": "m"}


class CreateTableIndexRequest(m.CreateTableIndexRequest):
    """The request of the Lance protocol, with what to do if an index of the name exists."""

    replace: StrictBool = True


class CreateTableIndex(DatabaseOperation, lance.CreateTableIndex):
    """Create a vector, scalar or full-text index on a column.

    The index replaces one of the same name unless ``replace`` is false. If a job builds the index, the
    answer has its ``job_id``.
    """

    request_model = CreateTableIndexRequest
    response_model = None  # type: ignore[assignment]
    response_schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "additionalProperties": {"type": "string"},
    }

    translates = True

    def translate(self, body: dict[str, Any]) -> Mapping[str, Any]:
        named = {lance_name: body.get(name) for name, lance_name in _RENAMED.items()}
        return {**{name: value for name, value in named.items() if value is not None}, **body}

    def handle(  # type: ignore[override]
        self, actor: Principal, body: m.CreateTableIndexRequest, *, id: Identifier
    ) -> dict[str, str]:
        transaction_id = indexes.create_index(
            actor=actor,
            table=id,
            index=NewIndex(**body.model_dump(include=_PARAMETERS)),
            branch=branch_name(body.branch),
            replace=isinstance(body, CreateTableIndexRequest) and body.replace,
        )
        answer = {} if transaction_id is None else {"transaction_id": transaction_id}
        job = job_control.find_job_of_transaction(actor=actor, transaction=transaction_id)
        return answer if job is None else {**answer, "job_id": str(job.pk)}


class PrewarmTableIndex(DatabaseOperation):
    """Load an index into the server's memory.

    Later searches of this process then need not read it.
    """

    needs_data = True
    response_schema: ClassVar[dict[str, Any]] = {"type": "object"}

    def handle(
        self, actor: Principal, body: None, *, id: Identifier, index_name: str
    ) -> dict[str, str]:
        indexes.prewarm_index(actor=actor, table=id, index=index_name)
        return {}
