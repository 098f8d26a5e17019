"""Tables: listing, creating, loading, committing, renaming and dropping them."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from django.http import HttpResponse, HttpResponseNotModified

from api.iceberg import answers, delegation, references
from api.iceberg.changes import read_commit
from api.iceberg.delegation import Delegation
from api.iceberg.messages import CreateTableRequest, RegisterTableRequest, RenameTableRequest
from api.iceberg.operation import JSON, IcebergOperation, no_content
from api.operation import announce_dependents
from catalog.access import Principal
from catalog.errors import InvalidInput
from catalog.formats.iceberg.metadata import documents as metadata_documents
from catalog.models import TableKind
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import metadata_files
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.tables import LoadedTable

SNAPSHOTS = {"": "all", "snapshots=all": "all", "snapshots=refs": "refs"}
"""The selection of snapshots by the whole query of loadTable, in the forms of the clients."""


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
        return self.answer(self.relative(identifier), names, last)

    @classmethod
    def answer(cls, levels: list[str], names: list[str], last: str | None) -> dict[str, Any]:
        """The answer for a page of names in a namespace, and the last name of the page if there is another one."""
        return {
            "identifiers": [{"namespace": levels, "name": name} for name in names],
            "next-page-token": cls.token(last),
        }


class CreateTable(IcebergOperation):
    """Create a table, or stage its creation.

    With ``stage-create`` nothing is created: the answer is the metadata from which the client
    starts a commit that creates the table. The server assigns ids, and a location if the request
    has none. ``config`` is that of loadTable.
    """

    verb = "POST"
    changes = True
    is_idempotent = True
    request_headers = ("X-Iceberg-Access-Delegation",)
    request_model = CreateTableRequest
    response_model = "LoadTableResult"

    def handle(self, actor: Principal, body: CreateTableRequest, *, namespace: str) -> HttpResponse:
        identifier = self.identify(namespace, body.name)
        delegation.require_available(self.request, actor, identifier, body.location)
        created = iceberg_commits.create_table(
            actor=actor,
            table=identifier,
            schema=body.table_schema,
            partition_spec=body.partition_spec,
            write_order=body.write_order,
            location=body.location,
            properties=body.properties,
            stage=bool(body.stage_create),
        )
        return respond_to_creation(self, actor, created)

    def replay(self, actor: Principal, body: CreateTableRequest, *, namespace: str) -> HttpResponse:
        if body.stage_create:  # a staged table cannot be loaded
            return self.handle(actor, body, namespace=namespace)
        return load(self, actor, namespace, body.name)


class LoadTable(IcebergOperation):
    """Load the current metadata of a table.

    Answers 304 if ``If-None-Match`` has the current ETag. For a table in an object store, ``config``
    has the store's address, and credentials for this table alone if ``X-Iceberg-Access-Delegation``
    lists ``vended-credentials``; the ETag changes when they are to be renewed. With ``snapshots=refs`` the answer has
    only the snapshots that branches and tags name.
    """

    verb = "GET"
    query = ("snapshots", "referenced-by")
    request_headers = ("If-None-Match", "X-Iceberg-Access-Delegation")
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
        identifier = self.identify(namespace, table)
        return respond(self, iceberg_tables.load_table(actor=actor, table=identifier))


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
        identifier = self.identify(namespace, body.name)
        delegation.require_available(self.request, actor, identifier, body.metadata_location)
        registered = iceberg_commits.register_table(
            actor=actor,
            table=identifier,
            metadata_location=body.metadata_location,
            overwrite=bool(body.overwrite),
            require=partial(delegation.require_available, self.request, actor, identifier),
        )
        return respond_to_creation(self, actor, registered)

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

    They open this table's files alone, for writing only if the caller may write to the table. The
    list is empty for local files, and if the storage profile has no credentials for clients.
    """

    verb = "GET"
    query = ("referenced-by",)
    response_model = "LoadCredentialsResponse"

    def handle(self, actor: Principal, body: None, *, namespace: str, table: str) -> HttpResponse:
        identifier = self.identify(namespace, table)
        references.read(self.request.META.get("QUERY_STRING", ""))
        loaded = iceberg_tables.load_table(actor=actor, table=identifier, etags=("*",))
        delegated = delegation.of_credentials_request(actor, loaded)
        if delegated is None:
            return self.render({"storage-credentials": []})
        credential = delegation.storage_credential(delegated.issue(), loaded, self.warehouse)
        response = self.render({"storage-credentials": [credential]})
        response["Cache-Control"] = delegation.NOT_STORED
        return response


# --- shared functions --------------------------------------------------------------------------


def load(operation: IcebergOperation, actor: Principal, namespace: str, table: str) -> HttpResponse:
    """The answer to loadTable: the stored bytes, with access to an object store, or 304."""
    snapshots = operation.query_values.get("snapshots") or "all"
    if snapshots not in {"all", "refs"}:
        raise InvalidInput(f"Query parameter 'snapshots' is {snapshots!r}; use all or refs")
    identifier = operation.identify(namespace, table)
    header = operation.request.META.get("HTTP_IF_NONE_MATCH", "")
    tags = known_tags(header, snapshots)
    loaded = iceberg_tables.load_table(actor=actor, table=identifier, etags=tags)
    delegated = delegation.of_loaded(operation.request, actor, loaded)
    if loaded.answer is None:
        current = _current_tag(header, tag_of(loaded.etag, snapshots), delegated)
        if current is not None:
            return HttpResponseNotModified(headers={"ETag": current})
        # The client has the metadata, and credentials that are to be renewed.
        loaded = iceberg_tables.load_table(actor=actor, table=identifier)
        delegated = delegation.of_loaded(operation.request, actor, loaded)
    if snapshots == "all":
        return _send(operation, loaded, delegated)
    text = metadata_documents.dump(metadata_documents.refs_only(loaded.document))
    etag = tag_of(loaded.etag, snapshots)
    answer = metadata_files.answer(loaded.metadata_location, text)
    return _send(operation, replace(loaded, answer=answer, etag=etag), delegated, is_stored=False)


def _current_tag(header: str, etag: str, delegated: Delegation | None) -> str | None:
    """The ETag of the request's that names the present answer; None: there is no such."""
    if delegated is None:
        return etag
    for tag in _tags_in(header):
        if delegation.unmarked([tag]) == [etag] and delegated.is_current(tag):
            return tag
    return None


def respond_to_creation(
    operation: IcebergOperation, actor: Principal, table: LoadedTable
) -> HttpResponse:
    """The answer for a new table: as it is stored, with access to an object store."""
    return _send(operation, table, delegation.of_created(operation.request, actor, table))


def respond(operation: IcebergOperation, table: LoadedTable) -> HttpResponse:
    """The stored answer of a table, unchanged for clients that accept gzip."""
    return _send(operation, table, None)


def _send(
    operation: IcebergOperation,
    table: LoadedTable,
    delegated: Delegation | None,
    *,
    is_stored: bool = True,
) -> HttpResponse:
    answer, etag = table.answer, table.etag
    if answer is None:
        raise TypeError("the answer was not read")
    headers = {"Content-Type": JSON, "Vary": "Accept-Encoding"}
    gzip = takes_gzip(operation.request.META)
    if delegated is not None:
        issued = delegated.issue()
        fields = delegation.fields(delegated, issued, operation.warehouse)
        stored_etag = etag if is_stored else ""
        answer = answers.with_fields(answer, fields, etag=stored_etag, gzip=gzip)
        headers["Vary"] = "Accept-Encoding, X-Iceberg-Access-Delegation"
        if etag:
            etag = delegated.marked(etag, issued)
        if delegated.has_secrets:
            headers["Cache-Control"] = delegation.NOT_STORED
    elif not gzip:
        answer = metadata_files.decompress(answer)
    if etag:
        headers["ETag"] = etag
    if gzip:
        headers["Content-Encoding"] = "gzip"
    return HttpResponse(answer, headers=headers)


def takes_gzip(meta: Mapping[str, Any]) -> bool:
    """True if a request, given as a WSGI environment, accepts answers in gzip."""
    return "gzip" in meta.get("HTTP_ACCEPT_ENCODING", "")


def tag_of(etag: str, snapshots: str) -> str:
    """The ETag of an answer with this selection of snapshots."""
    return etag if snapshots == "all" else f'{etag[:-1]}.{snapshots}"'


def has_current(header: str, etag: str, snapshots: str) -> bool:
    """True if an If-None-Match header names the stored ETag ``etag``, or any."""
    tags = known_tags(header, snapshots)
    return "*" in tags or etag in tags


def known_tags(header: str, snapshots: str) -> list[str]:
    """The ETags of an If-None-Match header in their stored form."""
    tags = delegation.unmarked(_tags_in(header))
    if snapshots == "all":
        return tags
    ending = f'.{snapshots}"'
    return [tag.removesuffix(ending) + '"' for tag in tags if tag.endswith(ending)]


def _tags_in(header: str) -> list[str]:
    return [tag.strip().removeprefix("W/") for tag in header.split(",") if tag.strip()]
