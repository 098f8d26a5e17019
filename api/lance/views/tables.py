"""Tables: listing, describing, declaring, registering, renaming and dropping them."""

from enum import StrEnum
from typing import Any

from django.http import HttpResponse
from lance_namespace_urllib3_client import models as m

from api.lance import storage_options
from api.lance.operation import LanceOperation, choose
from api.operation import announce_dependents
from catalog.access import Principal
from catalog.formats.lance.naming import branch_name
from catalog.identifiers import Identifier
from catalog.models import Table
from catalog.privileges import Privilege
from catalog.services.engine.commit import commit
from catalog.services.lance import describe as lance_describe
from catalog.services.lance.describe import TableDetails
from catalog.services.lance.ledger import registration_operations
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.tables import table_operations, tables
from catalog.services.tables.tables import TableDescription
from catalog.storage import locations


class RegisterMode(StrEnum):
    """What to do when a table of this name is there."""

    CREATE = "create"
    OVERWRITE = "overwrite"


class ListTables(LanceOperation):
    """List the Lance tables of a namespace.

    Returns the names that the caller may browse, sorted, a page at a time.
    """

    verb = "GET"
    response_model = m.ListTablesResponse
    query = ("page_token", "limit", "include_declared")

    def handle(self, actor: Principal, body: None, *, id: Identifier) -> m.ListTablesResponse:
        names, token = tables.list_tables(
            actor=actor,
            namespace=id,
            include_declared=self.flag("include_declared", default=True) is not False,
            **self.page,
        )
        return m.ListTablesResponse(tables=names, page_token=token)


class ListAllTables(LanceOperation):
    """List the Lance tables of all namespaces.

    Returns the identifiers that the caller may browse, oldest first, a page at a time.
    """

    verb = "GET"
    response_model = m.ListTablesResponse
    query = ("page_token", "limit", "include_declared")

    def handle(self, actor: Principal, body: None) -> m.ListTablesResponse:
        names, token = tables.list_all_tables(
            actor=actor,
            include_declared=self.flag("include_declared", default=True) is not False,
            **self.page,
        )
        return m.ListTablesResponse(
            tables=[self.delimiter.join(identifier) for identifier in names], page_token=token
        )


class DescribeTable(LanceOperation):
    """Return the location and properties of a table.

    This is all that a client needs to open the table. For a table in an object store,
    ``storage_options`` have the store's address, and credentials for this table alone unless
    ``vend_credentials`` is false or the store's profile has none for clients. With ``load_detailed_metadata`` the server
    opens the table and also returns its version, schema and statistics.
    """

    request_model = m.DescribeTableRequest
    response_model = m.DescribeTableResponse
    query = ("with_table_uri", "load_detailed_metadata", "check_declared")

    def handle(
        self, actor: Principal, body: m.DescribeTableRequest, *, id: Identifier
    ) -> HttpResponse:
        options = version_arguments(actor, id, body)
        facts = lance_describe.describe_table(**options)
        access = storage_options.of_table(actor, facts, held=facts.held, vend=body.vend_credentials)
        answer = self.answer(facts, access, *self.extras(body))
        if self.flag("load_detailed_metadata", body.load_detailed_metadata):
            detailed = _detailed(answer, id, lance_describe.load_details(**options))
            return storage_options.keep_private(self._render(detailed), access)
        return storage_options.keep_private(self._render(answer), access)

    def extras(self, body: m.DescribeTableRequest) -> tuple[bool, bool]:
        """Whether the answer has the URI of the table, and whether it states that there is no data."""
        has_uri = self.flag("with_table_uri", body.with_table_uri)
        return bool(has_uri), bool(self.flag("check_declared", body.check_declared))

    @staticmethod
    def answer(
        facts: TableDescription, access: dict[str, str] | None, has_uri: bool, has_state: bool
    ) -> m.DescribeTableResponse:
        return m.DescribeTableResponse(
            location=facts.location,
            table_uri=locations.uri(facts.location) if has_uri else None,
            properties=facts.properties,
            managed_versioning=facts.managed_versioning,
            storage_options=access,
            is_only_declared=facts.is_only_declared if has_state else None,
        )


def version_arguments(
    actor: Principal, table: Identifier, body: m.DescribeTableRequest
) -> dict[str, Any]:
    """The arguments of ``catalog.services.lance.describe`` for a table and the version that a request names."""
    return {
        "actor": actor,
        "table": table,
        "version": body.version,
        "branch": branch_name(body.branch),
        "tag": body.tag,
    }


class TableExists(LanceOperation):
    """Check whether a table, or a version of it, exists.

    Answers 200 without a body if it does, and 404 if not.
    """

    request_model = m.TableExistsRequest

    def handle(self, actor: Principal, body: m.TableExistsRequest, *, id: Identifier) -> None:
        if body.version is None:
            tables.describe_table(actor=actor, table=id, privilege=Privilege.BROWSE)
        else:
            lance_versions.describe_version(actor=actor, table=id, version=body.version)


class DeclareTable(LanceOperation):
    """Reserve a name and a location for a table without data.

    A client then writes the data and creates version 1. Without ``location`` the server chooses
    one. ``storage_options`` are those of DescribeTable.
    """

    request_model = m.DeclareTableRequest
    response_model = m.DeclareTableResponse
    changes = True

    def handle(
        self, actor: Principal, body: m.DeclareTableRequest, *, id: Identifier
    ) -> HttpResponse:
        storage_options.require_available(actor, id, body.location, vend=body.vend_credentials)
        committed = commit([declare_operation(id, body)], actor=actor)
        answer = declare_response(committed.results[0], committed.id)
        answer.storage_options = storage_options.of_new_table(
            actor, id, committed.results[0].location, vend=body.vend_credentials
        )
        return storage_options.keep_private(self._render(answer), answer.storage_options)


class RegisterTable(LanceOperation):
    """Register a table that is already in storage.

    The versions at the location become the table's. A location without versions is accepted as that of
    a table that is only declared, for which DescribeTable with ``check_declared`` returns
    ``is_only_declared``. Modes: ``Create`` (default) refuses a name that is in use, ``Overwrite``
    deregisters the table of that name first.
    """

    request_model = m.RegisterTableRequest
    response_model = m.RegisterTableResponse
    changes = True

    def handle(
        self, actor: Principal, body: m.RegisterTableRequest, *, id: Identifier
    ) -> m.RegisterTableResponse:
        mode = choose(RegisterMode, body.mode, RegisterMode.CREATE)
        register = registration_operations.RegisterTable(
            table=id,
            location=body.location,
            overwrite=mode is RegisterMode.OVERWRITE,
            properties=body.properties or {},
        )
        committed = commit([register], actor=actor)
        row = committed.results[0]
        # As in the reference server: clients compare it with the location in their request.
        location = body.location if locations.is_relative(body.location) else row.location
        return m.RegisterTableResponse(
            location=location, properties=row.properties, transaction_id=committed.id
        )


class DropTable(LanceOperation):
    """Drop a table and remove its data.

    A job removes the data after the retention; DescribeTransaction returns its status. The header
    ``Monodon-Dependents`` counts the tables that refer to its files; while there are any, the files
    stay.
    """

    response_model = m.DropTableResponse
    changes = True

    def handle(self, actor: Principal, body: None, *, id: Identifier) -> HttpResponse:
        committed = commit([table_operations.DropTable(table=id)], actor=actor)
        row = committed.results[0]
        answer = m.DropTableResponse(
            id=list(id),
            location=row.location,
            properties=row.properties,
            transaction_id=committed.id,
        )
        return announce_dependents(self._render(answer), row)


class DeregisterTable(LanceOperation):
    """Remove a table from the catalog and keep its data.

    The answer has the location, at which the table can be registered again.
    """

    request_model = m.DeregisterTableRequest
    response_model = m.DeregisterTableResponse
    changes = True

    def handle(
        self, actor: Principal, body: m.DeregisterTableRequest, *, id: Identifier
    ) -> m.DeregisterTableResponse:
        committed = commit([table_operations.DeregisterTable(table=id)], actor=actor)
        return deregister_response(id, committed.results[0], committed.id)


class RenameTable(LanceOperation):
    """Rename a table, or move it to another namespace.

    The data stays at its location.
    """

    request_model = m.RenameTableRequest
    response_model = m.RenameTableResponse
    changes = True

    def handle(
        self, actor: Principal, body: m.RenameTableRequest, *, id: Identifier
    ) -> m.RenameTableResponse:
        namespace = id[:-1] if body.new_namespace_id is None else tuple(body.new_namespace_id)
        rename = table_operations.RenameTable(table=id, new=(*namespace, body.new_table_name))
        committed = commit([rename], actor=actor)
        return m.RenameTableResponse(transaction_id=committed.id)


def _detailed(
    answer: m.DescribeTableResponse, id: Identifier, details: TableDetails
) -> dict[str, Any]:
    """The answer with the details. A dictionary, because the model of a type has no field for a
    unit."""
    answer.table, answer.namespace = id[-1], list(id[:-1])
    answer.version, answer.metadata = details.version, details.metadata
    answer.is_only_declared = False
    answer.stats = m.TableBasicStats(
        num_deleted_rows=details.num_deleted_rows, num_fragments=details.num_fragments
    )
    whole = answer.model_dump(mode="json", exclude_none=True, by_alias=True)
    return {**whole, "schema": details.schema}


def declare_operation(
    id: Identifier, body: m.DeclareTableRequest
) -> registration_operations.DeclareTable:
    return registration_operations.DeclareTable(
        table=id, location=body.location, properties=body.properties or {}
    )


def declare_response(row: Table, transaction_id: str | None) -> m.DeclareTableResponse:
    return m.DeclareTableResponse(
        location=row.location,
        properties=row.properties,
        managed_versioning=row.managed_versioning,
        transaction_id=transaction_id,
    )


def deregister_response(
    id: Identifier, row: Table, transaction_id: str | None
) -> m.DeregisterTableResponse:
    return m.DeregisterTableResponse(
        id=list(id),
        location=row.location,
        properties=row.properties,
        transaction_id=transaction_id,
    )
