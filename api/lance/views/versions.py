"""Versions: the ledger of a table's versions, and commits to several tables."""

from collections.abc import Sequence
from typing import Any

from lance_namespace_urllib3_client import models as m

from api.lance.operation import LanceOperation
from api.lance.views.tables import (
    declare_operation,
    declare_response,
    deregister_response,
)
from catalog.access import Principal
from catalog.errors import CatalogError, InvalidInput
from catalog.formats.lance.naming import branch_name
from catalog.identifiers import Identifier
from catalog.services.engine.commit import commit
from catalog.services.engine.operation import Operation
from catalog.services.engine.statements import NewVersion
from catalog.services.lance.ledger import reconcile as lance_reconcile
from catalog.services.lance.ledger import registration_operations, version_operations
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.tables import table_operations

_KINDS = ("declare_table", "create_table_version", "delete_table_versions", "deregister_table")


class ListTableVersions(LanceOperation):
    """List the versions of a table.

    Sorted by number, a page at a time, for ``main`` or another branch.
    """

    request_model = m.ListTableVersionsRequest
    documents_body = False
    response_model = m.ListTableVersionsResponse
    query = ("branch", "page_token", "limit", "descending")

    def handle(
        self, actor: Principal, body: m.ListTableVersionsRequest, *, id: Identifier
    ) -> dict[str, Any]:
        rows, token = lance_versions.list_versions(
            actor=actor, table=id, branch=self.branch(body), **self.selection(body)
        )
        return self.answer(rows, token)

    def branch(self, body: m.ListTableVersionsRequest) -> str:
        return branch_name(self.query_values.get("branch", body.branch))

    def selection(self, body: m.ListTableVersionsRequest) -> dict[str, Any]:
        """The arguments of ``versions.bounds``. Raises InvalidInput."""
        if body.limit is not None and body.limit < 1:
            raise InvalidInput(f"limit is {body.limit}; use a positive integer")
        page = self.page
        return {
            "descending": bool(self.flag("descending", body.descending)),
            "limit": page["limit"] or body.limit,
            "page_token": page["page_token"] or body.page_token,
        }

    @staticmethod
    def answer(rows: Sequence[lance_versions.Version], token: str | None) -> dict[str, Any]:
        # Models of a thousand versions would take three times as long as the rest of the request.
        answer: dict[str, Any] = {"versions": [_entry(row) for row in rows]}
        if token is not None:
            answer["page_token"] = token
        return answer


class CreateTableVersion(LanceOperation):
    """Add a version to a table.

    The client has written the manifest under a staged name. The version is added only if its number
    was never used on the branch; otherwise the answer is 409 with code 14, and the client may
    rebase and try the next number.
    """

    request_model = m.CreateTableVersionRequest
    response_model = m.CreateTableVersionResponse
    changes = True

    def handle(
        self, actor: Principal, body: m.CreateTableVersionRequest, *, id: Identifier
    ) -> m.CreateTableVersionResponse:
        committed = commit([_create_operation(id, body)], actor=actor)
        return m.CreateTableVersionResponse(
            transaction_id=committed.id, version=_version(committed.results[0])
        )


class DescribeTableVersion(LanceOperation):
    """Return the manifest of a version.

    The answer has the manifest's path, size and ETag, and the version's metadata.
    """

    request_model = m.DescribeTableVersionRequest
    response_model = m.DescribeTableVersionResponse

    def handle(
        self, actor: Principal, body: m.DescribeTableVersionRequest, *, id: Identifier
    ) -> m.DescribeTableVersionResponse:
        branch = branch_name(body.branch)
        row = lance_reconcile.describe_version(
            actor=actor, table=id, version=body.version, branch=branch
        )
        return m.DescribeTableVersionResponse(version=_version(row))


class BatchDeleteTableVersions(LanceOperation):
    """Delete ranges of versions from the ledger.

    Only the records are deleted; files stay. The newest version cannot be deleted.
    """

    request_model = m.BatchDeleteTableVersionsRequest
    response_model = m.BatchDeleteTableVersionsResponse
    changes = True

    def handle(
        self, actor: Principal, body: m.BatchDeleteTableVersionsRequest, *, id: Identifier
    ) -> m.BatchDeleteTableVersionsResponse:
        committed = commit([_delete_operation(id, body)], actor=actor)
        return m.BatchDeleteTableVersionsResponse(
            deleted_count=committed.results[0], transaction_id=committed.id
        )


class BatchCreateTableVersions(LanceOperation):
    """Add versions to several tables, all or none.

    A refusal names the entry that failed by its index.
    """

    request_model = m.BatchCreateTableVersionsRequest
    response_model = m.BatchCreateTableVersionsResponse
    changes = True
    is_batch = True

    def handle(
        self, actor: Principal, body: m.BatchCreateTableVersionsRequest
    ) -> m.BatchCreateTableVersionsResponse:
        create = [_create_operation(tuple(entry.id), entry) for entry in body.entries]
        committed = commit(create, actor=actor)
        return m.BatchCreateTableVersionsResponse(
            transaction_id=committed.id, versions=[_version(row) for row in committed.results]
        )


class BatchCommitTables(LanceOperation):
    """Apply several operations on tables, all or none.

    Each operation declares a table, adds a version, deletes versions or deregisters a table. A
    refusal names the operation that failed by its index.
    """

    request_model = m.BatchCommitTablesRequest
    response_model = m.BatchCommitTablesResponse
    changes = True
    is_batch = True

    def handle(
        self, actor: Principal, body: m.BatchCommitTablesRequest
    ) -> m.BatchCommitTablesResponse:
        operations = [_operation(index, entry) for index, entry in enumerate(body.operations)]
        committed = commit(operations, actor=actor)
        transaction_id = committed.id
        return m.BatchCommitTablesResponse(
            transaction_id=transaction_id,
            results=[
                _result(operation, result, transaction_id)
                for operation, result in zip(operations, committed.results, strict=True)
            ],
        )


def _operation(index: int, entry: m.CommitTableOperation) -> Operation:
    """One operation of a batch; the entry must have exactly one field. Errors name its index."""
    kinds = [kind for kind in _KINDS if getattr(entry, kind) is not None]
    try:
        if len(kinds) != 1:
            raise InvalidInput(
                f"exactly one of {', '.join(_KINDS)} must be given, not "
                f"{' and '.join(kinds) or 'none'}"
            )
        request = getattr(entry, kinds[0])
        if not request.id:
            raise InvalidInput(f"{kinds[0]} has no id")
        table = tuple(request.id)  # the commit checks the names
        match kinds[0]:
            case "declare_table":
                return declare_operation(table, request)
            case "create_table_version":
                return _create_operation(table, request)
            case "delete_table_versions":
                return _delete_operation(table, request)
            case _:
                return table_operations.DeregisterTable(table=table)
    except CatalogError as error:
        error.operation = index
        raise


def _result(operation: Operation, result: Any, transaction_id: str | None) -> m.CommitTableResult:
    match operation:
        case registration_operations.DeclareTable():
            answer: dict[str, Any] = {"declare_table": declare_response(result, transaction_id)}
        case version_operations.CreateVersion():
            answer = {
                "create_table_version": m.CreateTableVersionResponse(
                    transaction_id=transaction_id, version=_version(result)
                )
            }
        case version_operations.DeleteVersions():
            answer = {
                "delete_table_versions": m.BatchDeleteTableVersionsResponse(
                    deleted_count=result, transaction_id=transaction_id
                )
            }
        case table_operations.DeregisterTable():
            answer = {
                "deregister_table": deregister_response(operation.table, result, transaction_id)
            }
        case _:
            raise TypeError(operation)
    return m.CommitTableResult(**answer)


def _create_operation(
    id: Identifier, body: m.CreateTableVersionRequest | m.CreateTableVersionEntry
) -> version_operations.CreateVersion:
    return version_operations.CreateVersion(
        table=id,
        branch=branch_name(body.branch),
        version=body.version,
        manifest_path=body.manifest_path,
        manifest_size=body.manifest_size,
        e_tag=body.e_tag,
        metadata=body.metadata,
        naming_scheme=body.naming_scheme,
    )


def _delete_operation(
    id: Identifier, body: m.BatchDeleteTableVersionsRequest
) -> version_operations.DeleteVersions:
    return version_operations.DeleteVersions(
        table=id,
        branch=branch_name(body.branch),
        ranges=tuple((r.start_version, r.end_version) for r in body.ranges),
    )


def _version(row: lance_versions.Version | NewVersion) -> m.TableVersion:
    if isinstance(row, NewVersion):
        timestamp_millis = int(row.created_at.timestamp() * 1000)
    else:
        timestamp_millis = row.timestamp_millis
    return m.TableVersion(
        version=row.version,
        manifest_path=row.manifest_path,
        manifest_size=row.manifest_size,
        e_tag=row.e_tag,
        timestamp_millis=timestamp_millis,
        metadata=row.metadata,
    )


def _entry(row: lance_versions.Version) -> dict[str, Any]:
    """The JSON of ``_version``."""
    version, manifest_path, manifest_size, e_tag, metadata, _ = row
    entry = {"version": version, "manifest_path": manifest_path}
    if manifest_size is not None:
        entry["manifest_size"] = manifest_size
    if e_tag is not None:
        entry["e_tag"] = e_tag
    entry["timestamp_millis"] = row.timestamp_millis
    if metadata is not None:
        entry["metadata"] = metadata
    return entry
