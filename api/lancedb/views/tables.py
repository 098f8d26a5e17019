"""Tables: listing, describing, declaring and renaming them."""

from collections.abc import Mapping
from typing import Any, ClassVar

from django.http import HttpResponse
from lance_namespace_urllib3_client import models as m
from pydantic import BaseModel, StrictBool, StrictInt, StrictStr

from api.lance import storage_options
from api.lance.views import tables as lance
from api.lancedb import schemas
from api.lancedb.operation import DatabaseOperation
from catalog import identifiers
from catalog.access import Principal
from catalog.identifiers import Identifier
from catalog.services.lance import data as lance_data
from catalog.services.lance import describe as lance_describe
from catalog.services.tables import tables
from catalog.storage import locations


class ListAllTables(DatabaseOperation, lance.ListAllTables):
    """List the Lance tables of the database.

    Returns the names, sorted, without those in namespaces of the database. ``page_token`` is the name
    after which the page begins.
    """

    def handle(self, actor: Principal, body: None) -> m.ListTablesResponse:
        names, token = tables.list_tables(
            actor=actor,
            namespace=self.database,
            include_declared=self.flag("include_declared", default=True) is not False,
            **self.page,
        )
        return m.ListTablesResponse(tables=names, page_token=token)


class DescribeTable(DatabaseOperation, lance.DescribeTable):
    """Return the version, the schema and the location of a table.

    The schema has the names of Lance's types. ``storage_options`` with credentials are only returned if
    ``vend_credentials`` is true.
    """

    def handle(
        self, actor: Principal, body: m.DescribeTableRequest, *, id: Identifier
    ) -> HttpResponse:
        options = lance.version_arguments(actor, id, body)
        facts = lance_describe.describe_table(**options)
        version, schema = lance_describe.load_schema(**options)
        access = (
            storage_options.of_table(actor, facts, held=facts.held, vend=True)
            if body.vend_credentials
            else None
        )
        names = self.relative(id)
        answer = {
            "table": names[-1],
            "namespace": list(names[:-1]),
            "version": version,
            "schema": schema,
            "location": facts.location,
            "table_uri": locations.uri(facts.location),
            "properties": facts.properties,
            "managed_versioning": facts.managed_versioning,
            "is_only_declared": False,
            **({} if access is None else {"storage_options": access}),
        }
        return storage_options.keep_private(self._render(answer), access)


class CloneTableRequest(BaseModel):
    """What the clients send."""

    source_location: StrictStr
    source_version: StrictInt | None = None
    source_tag: StrictStr | None = None
    is_shallow: StrictBool = False


class CloneTable(DatabaseOperation):
    """Create a table with the rows of another table.

    ``source_location`` is the location of the table to copy. The new table always has files of its own, so
    ``is_shallow`` has no effect.
    """

    request_model = CloneTableRequest
    response_schema: ClassVar[dict[str, Any]] = {"type": "object"}
    changes = True

    def handle(
        self, actor: Principal, body: CloneTableRequest, *, id: Identifier
    ) -> dict[str, Any]:
        created = lance_data.clone_table(
            actor=actor,
            table=id,
            location=body.source_location,
            version=body.source_version,
            tag=body.source_tag,
        )
        return {"location": created.location, "version": created.version}


class RenameTable(DatabaseOperation, lance.RenameTable):
    """Rename a table, or move it to another namespace of the database.

    ``new_namespace`` has the names of the namespace. Without it the table stays where it is.
    """

    translates = True
    sent_schema = schemas.RENAME

    def translate(self, body: dict[str, Any]) -> Mapping[str, Any]:
        return {"new_namespace_id": body.get("new_namespace"), **body}

    def handle(
        self, actor: Principal, body: m.RenameTableRequest, *, id: Identifier
    ) -> m.RenameTableResponse:
        if body.new_namespace_id is not None:
            body.new_namespace_id = [*self.database, *identifiers.check(body.new_namespace_id)]
        return super().handle(actor, body, id=id)


class CreateEmptyTable(DatabaseOperation, lance.DeclareTable):
    """Reserve a name for a table without data.

    The same as DeclareTable, for older clients.
    """
