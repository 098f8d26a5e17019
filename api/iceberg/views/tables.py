"""Tables: listing, creating, loading, committing, renaming and dropping them."""

from typing import Any, ClassVar

from django.http import HttpResponse, HttpResponseNotModified

from api.iceberg import references
from api.iceberg.changes import read_commit
from api.iceberg.messages import CreateTableRequest, RegisterTableRequest, RenameTableRequest
from api.iceberg.operation import JSON, IcebergOperation, no_content
from api.operation import announce_dependents
from catalog.access import Principal
from catalog.errors import InvalidInput
from catalog.formats.iceberg.metadata import documents as metadata_documents
from catalog.models import TableKind
from catalog.privileges import Privilege
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import metadata_files
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.tables import LoadedTable


class ListTables(IcebergOperation):
    """List the Iceberg tables of a namespace.

    Returns the tables that the caller may browse, sorted by name.
    """

    verb = "GET"
    query = ("pageToken", "pageSize")
    response_model = "ListTablesResponse"
    kind: ClassVar = TableKind.TABLE

    def handle(self, actor: Principal, body: None, *, namespace: str) -> dict[str, Any]:
        identifier = self.identify(namespace)
        names, last = iceberg_tables.list_tables(
            actor=actor, namespace=identifier, kind=self.kind, **self.page
        )
        levels = self.relative(identifier)
        return {
            "identifiers": [{"namespace": levels, "name": name} for name in names],
            "next-page-token": self.token(last),
        }


class CreateTable(IcebergOperation):
    """Create a table, or stage its creation.

    With ``stage-create`` nothing is created: the answer is the metadata from which the client
    starts a commit that creates the table. The server assigns ids, and a location if the request
    has none.
    """

    verb = "POST"
    changes = True
    is_idempotent = True
    request_model = CreateTableRequest
    response_model = "LoadTableResult"

    def handle(self, actor: Principal, body: CreateTableRequest, *, namespace: str) -> HttpResponse:
        created = iceberg_commits.create_table(
            actor=actor,
            table=self.identify(namespace, body.name),
            schema=body.table_schema,
            partition_spec=body.partition_spec,
            write_order=body.write_order,
            location=body.location,
            properties=body.properties,
            stage=bool(body.stage_create),
        )
        return respond(self, created)

    def replay(self, actor: Principal, body: CreateTableRequest, *, namespace: str) -> HttpResponse:
        if body.stage_create:  # a staged table cannot be loaded
            return self.handle(actor, body, namespace=namespace)
        return load(self, actor, namespace, body.name)


class LoadTable(IcebergOperation):
    """Load the current metadata of a table.

    Answers 304 if ``If-None-Match`` has the current ETag. With ``snapshots=refs`` the answer has
    only the snapshots that branches and tags name.
    """

    verb = "GET"
    query = ("snapshots", "referenced-by")
    request_headers = ("If-None-Match",)
    response_model = "LoadTableResult"

    def handle(self, actor: Principal, body: None, *, namespace: str, table: str) -> HttpResponse:
        if "referenced-by" in self.query_values:
            references.read(self.request.META.get("QUERY_STRING", ""))
        return load(self, actor, namespace, table)


class TableExists(IcebergOperation):
    """Check whether a table exists.

    Answers 204 if it does, and 404 if not, without a body.
    """

    verb = "HEAD"

    def handle(self, actor: Principal, body: None, *, namespace: str, table: str) -> None:
        iceberg_tables.table_exists(actor=actor, table=self.identify(namespace, table))


class UpdateTable(IcebergOperation):
    """Commit updates to a table.

    All requirements must hold on the current metadata; otherwise the answer is 409 and nothing
    changes. The updates are applied in their order. A commit with ``assert-create`` creates the
    table.
    """

    verb = "POST"
    changes = True
    is_commit = True
    is_idempotent = True
    request_model = "CommitTableRequest"
    response_model = "CommitTableResponse"

    def handle(
        self, actor: Principal, body: dict[str, Any], *, namespace: str, table: str
    ) -> HttpResponse:
        change = read_commit(self, self.identify(namespace, table), body)
        return respond(self, iceberg_commits.commit_table(actor=actor, change=change))

    def replay(
        self, actor: Principal, body: dict[str, Any], *, namespace: str, table: str
    ) -> HttpResponse:
        return load(self, actor, namespace, table)


class DropTable(IcebergOperation):
    """Drop a table.

    With ``purgeRequested`` its files are removed afterwards. The header ``Monodon-Dependents``
    counts the tables that refer to its files; while there are any, the files stay.
    """

    verb = "DELETE"
    changes = True
    is_idempotent = True
    query = ("purgeRequested",)

    def handle(self, actor: Principal, body: None, *, namespace: str, table: str) -> HttpResponse:
        row = iceberg_tables.drop_table(
            actor=actor,
            table=self.identify(namespace, table),
            purge=bool(self.flag("purgeRequested", default=False)),
        )
        return announce_dependents(no_content(), row)


class UnregisterTable(IcebergOperation):
    """Remove a table from the catalog and keep its files.

    The answer is the table's last metadata and its location, with which the table can be registered
    again.
    """

    verb = "POST"
    changes = True
    is_idempotent = True
    response_model = "UnregisterTableResult"

    def handle(self, actor: Principal, body: None, *, namespace: str, table: str) -> HttpResponse:
        identifier = self.identify(namespace, table)
        return respond(self, iceberg_tables.unregister_table(actor=actor, table=identifier))

    def replay(self, actor: Principal, body: None, *, namespace: str, table: str) -> HttpResponse:
        identifier = self.identify(namespace, table)
        return respond(self, iceberg_tables.last_dropped(actor=actor, table=identifier))


class RegisterTable(IcebergOperation):
    """Register a table by its metadata file.

    The file and all files of the table must be at a location that the caller may use. With
    ``overwrite`` the table of that name is deregistered first.
    """

    verb = "POST"
    changes = True
    is_idempotent = True
    request_model = RegisterTableRequest
    response_model = "LoadTableResult"

    def handle(
        self, actor: Principal, body: RegisterTableRequest, *, namespace: str
    ) -> HttpResponse:
        registered = iceberg_commits.register_table(
            actor=actor,
            table=self.identify(namespace, body.name),
            metadata_location=body.metadata_location,
            overwrite=bool(body.overwrite),
        )
        return respond(self, registered)

    def replay(
        self, actor: Principal, body: RegisterTableRequest, *, namespace: str
    ) -> HttpResponse:
        return load(self, actor, namespace, body.name)


class RenameTable(IcebergOperation):
    """Rename a table, or move it to another namespace.

    The files stay at their location.
    """

    verb = "POST"
    changes = True
    is_idempotent = True
    request_model = RenameTableRequest

    def handle(self, actor: Principal, body: RenameTableRequest) -> None:
        iceberg_tables.rename_table(
            actor=actor,
            table=self.absolute(body.source.levels, body.source.name),
            new=self.absolute(body.destination.levels, body.destination.name),
        )


class LoadCredentials(IcebergOperation):
    """Return the storage credentials of a table.

    The list is empty, because local storage needs no credentials.
    """

    verb = "GET"
    query = ("referenced-by",)
    response_model = "LoadCredentialsResponse"

    def handle(self, actor: Principal, body: None, *, namespace: str, table: str) -> dict[str, Any]:
        identifier = self.identify(namespace, table)
        references.read(self.request.META.get("QUERY_STRING", ""))
        iceberg_tables.table_exists(actor=actor, table=identifier, privilege=Privilege.READ)
        return {"storage-credentials": []}


# --- shared functions --------------------------------------------------------------------------


def load(operation: IcebergOperation, actor: Principal, namespace: str, table: str) -> HttpResponse:
    """The answer to loadTable: the stored bytes, or 304 if the client has them."""
    snapshots = operation.query_values.get("snapshots") or "all"
    if snapshots not in {"all", "refs"}:
        raise InvalidInput(f"Query parameter 'snapshots' is {snapshots!r}; use all or refs")
    tags = known_tags(operation.request.META.get("HTTP_IF_NONE_MATCH", ""), snapshots)
    loaded = iceberg_tables.load_table(
        actor=actor, table=operation.identify(namespace, table), etags=tags
    )
    if loaded.answer is None:
        return HttpResponseNotModified(headers={"ETag": tag_of(loaded.etag, snapshots)})
    if snapshots == "all":
        return respond(operation, loaded)
    text = metadata_documents.dump(metadata_documents.refs_only(loaded.document))
    answer = metadata_files.answer(loaded.metadata_location, text)
    return _send(operation, answer, tag_of(loaded.etag, snapshots))


def respond(operation: IcebergOperation, table: LoadedTable) -> HttpResponse:
    """The stored answer of a table, unchanged for clients that accept gzip."""
    if table.answer is None:
        raise TypeError("the answer was not read")
    return _send(operation, table.answer, table.etag)


def _send(operation: IcebergOperation, answer: bytes, etag: str) -> HttpResponse:
    headers = {"Content-Type": JSON, "Vary": "Accept-Encoding"}
    if etag:
        headers["ETag"] = etag
    if "gzip" in operation.request.META.get("HTTP_ACCEPT_ENCODING", ""):
        headers["Content-Encoding"] = "gzip"
    else:
        answer = metadata_files.decompress(answer)
    return HttpResponse(answer, headers=headers)


def tag_of(etag: str, wanted: str) -> str:
    """The ETag of an answer with this selection of snapshots."""
    return etag if wanted == "all" else f'{etag[:-1]}.{wanted}"'


def known_tags(header: str, wanted: str) -> list[str]:
    """The ETags of an If-None-Match header in their stored form."""
    tags = [tag.strip().removeprefix("W/") for tag in header.split(",") if tag.strip()]
    if wanted == "all":
        return tags
    ending = f'.{wanted}"'
    return [tag.removesuffix(ending) + '"' for tag in tags if tag.endswith(ending)]
