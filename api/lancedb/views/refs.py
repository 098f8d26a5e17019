"""Tags and versions."""

from typing import Any

from lance_namespace_urllib3_client import models as m

from api.lance.views import refs as lance
from api.lance.views import versions as lance_versions
from api.lancedb.operation import DatabaseOperation
from catalog.access import Principal
from catalog.formats.lance.naming import branch_name
from catalog.identifiers import Identifier
from catalog.services.lance.ledger import versions
from catalog.services.lance.refs import tags

_PAGES = 100
"""Maximum number of pages in an answer, since these clients do not ask for the next page."""


class ListTableTags(DatabaseOperation, lance.ListTableTags):
    """List the tags of a table.

    The answer is a map of the tags' names.
    """

    response_model = None  # type: ignore[assignment]
    response_schema = {"type": "object", "additionalProperties": {"type": "object"}}

    def handle(  # type: ignore[override]
        self, actor: Principal, body: None, *, id: Identifier
    ) -> dict[str, dict[str, Any]]:
        answer: dict[str, dict[str, Any]] = {}
        token = None
        for _ in range(_PAGES):
            page, token = tags.list_tags(actor=actor, table=id, page_token=token)
            for tag in page:
                answer[tag.name] = {
                    "version": tag.version,
                    "branch": tag.branch or None,
                    "manifestSize": tag.manifest_size,
                }
            if token is None:
                break
        return answer


class ListTableVersions(DatabaseOperation, lance_versions.ListTableVersions):
    """List the versions of a table.

    The answer has the time of each version. A request for a page gets the answer of the Lance protocol.
    """

    response_model = None  # type: ignore[assignment]
    response_schema = {"type": "object", "properties": {"versions": {"type": "array"}}}

    def handle(
        self, actor: Principal, body: m.ListTableVersionsRequest, *, id: Identifier
    ) -> dict[str, Any]:
        if self.query_values.keys() & {"limit", "page_token", "descending"}:
            return super().handle(actor, body, id=id)
        branch = branch_name(self.query_values.get("branch", body.branch))
        answer: list[dict[str, Any]] = []
        token = None
        for _ in range(_PAGES):
            page, token = versions.list_versions(
                actor=actor, table=id, branch=branch, page_token=token
            )
            answer += (
                {
                    "version": row.version,
                    "timestamp": row.created_at.isoformat(),
                    "metadata": row.metadata or {},
                }
                for row in page
            )
            if token is None:
                break
        return {"versions": answer}
