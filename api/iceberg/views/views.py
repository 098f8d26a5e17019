"""Views: listing, creating, loading, replacing, renaming and dropping them."""

from collections.abc import Mapping
from typing import Any

from django.http import HttpResponse
from pydantic import Field

from api.iceberg import references
from api.iceberg.changes import read_commit
from api.iceberg.messages import Message, RenameTableRequest
from api.iceberg.operation import IcebergOperation
from api.iceberg.views.tables import ListTables, respond
from catalog.access import Principal
from catalog.errors import CatalogError, InvalidMetadata
from catalog.models import TableKind
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg import views as iceberg_views


class CreateViewRequest(Message):
    name: str
    location: str | None = None
    view_schema: dict[str, Any] = Field(alias="schema")
    view_version: dict[str, Any] = Field(alias="view-version")
    properties: dict[str, str] | None = None


class RegisterViewRequest(Message):
    name: str
    metadata_location: str = Field(alias="metadata-location")


# The Java client maps only this type to the exception that its own catalogs raise.
_ERROR_TYPES: Mapping[type[CatalogError], str] = {InvalidMetadata: "IllegalArgumentException"}


class ListViews(ListTables):
    """List the views of a namespace.

    Returns the views that the caller may browse, sorted by name.
    """

    kind = TableKind.VIEW


class CreateView(IcebergOperation):
    """Create a view.

    The request has the view's schema and its first version, with the SQL in one or several
    dialects.
    """

    verb = "POST"
    changes = True
    request_model = CreateViewRequest
    error_types = _ERROR_TYPES
    response_model = "LoadViewResult"

    def handle(self, actor: Principal, body: CreateViewRequest, *, namespace: str) -> HttpResponse:
        created = iceberg_views.create_view(
            actor=actor,
            view=self.identify(namespace, body.name),
            schema=body.view_schema,
            view_version=body.view_version,
            location=body.location,
            properties=body.properties,
        )
        return respond(self, created)


class LoadView(IcebergOperation):
    """Load the current metadata of a view.

    The answer has all versions of the view that it still keeps.
    """

    verb = "GET"
    query = ("referenced-by",)
    response_model = "LoadViewResult"

    def handle(self, actor: Principal, body: None, *, namespace: str, view: str) -> HttpResponse:
        references.read(self.request.META.get("QUERY_STRING", ""))
        return load(self, actor, namespace, view)


class ReplaceView(IcebergOperation):
    """Commit updates to a view.

    All requirements must hold on the current metadata; otherwise the answer is 409 and nothing
    changes.
    """

    verb = "POST"
    changes = True
    is_commit = True
    is_idempotent = True
    request_model = "CommitViewRequest"
    error_types = _ERROR_TYPES
    response_model = "LoadViewResult"

    def handle(
        self, actor: Principal, body: dict[str, Any], *, namespace: str, view: str
    ) -> HttpResponse:
        change = read_commit(self, self.identify(namespace, view), body, kind=TableKind.VIEW)
        replaced = iceberg_views.replace_view(
            actor=actor,
            view=change.table,
            requirements=change.requirements,
            updates=change.updates,
        )
        return respond(self, replaced)

    def replay(
        self, actor: Principal, body: dict[str, Any], *, namespace: str, view: str
    ) -> HttpResponse:
        return load(self, actor, namespace, view)


class DropView(IcebergOperation):
    """Drop a view.

    Tables that the view reads are not affected.
    """

    verb = "DELETE"
    changes = True
    is_idempotent = True

    def handle(self, actor: Principal, body: None, *, namespace: str, view: str) -> None:
        iceberg_views.drop_view(actor=actor, view=self.identify(namespace, view))


class ViewExists(IcebergOperation):
    """Check whether a view exists.

    Answers 204 if it does, and 404 if not, without a body.
    """

    verb = "HEAD"

    def handle(self, actor: Principal, body: None, *, namespace: str, view: str) -> None:
        iceberg_tables.table_exists(
            actor=actor, table=self.identify(namespace, view), kind=TableKind.VIEW
        )


class RenameView(IcebergOperation):
    """Rename a view, or move it to another namespace.

    The metadata files stay at their location.
    """

    verb = "POST"
    changes = True
    is_idempotent = True
    request_model = RenameTableRequest

    def handle(self, actor: Principal, body: RenameTableRequest) -> None:
        iceberg_views.rename_view(
            actor=actor,
            view=self.absolute(body.source.levels, body.source.name),
            new=self.absolute(body.destination.levels, body.destination.name),
        )


class RegisterView(IcebergOperation):
    """Register a view by its metadata file.

    The file must be at a location that the caller may use.
    """

    verb = "POST"
    changes = True
    is_idempotent = True
    request_model = RegisterViewRequest
    response_model = "LoadViewResult"

    def handle(
        self, actor: Principal, body: RegisterViewRequest, *, namespace: str
    ) -> HttpResponse:
        registered = iceberg_views.register_view(
            actor=actor,
            view=self.identify(namespace, body.name),
            metadata_location=body.metadata_location,
        )
        return respond(self, registered)

    def replay(
        self, actor: Principal, body: RegisterViewRequest, *, namespace: str
    ) -> HttpResponse:
        return load(self, actor, namespace, body.name)


def load(operation: IcebergOperation, actor: Principal, namespace: str, view: str) -> HttpResponse:
    """The stored answer to loadView."""
    identifier = operation.identify(namespace, view)
    loaded = iceberg_tables.load_table(actor=actor, table=identifier, kind=TableKind.VIEW)
    return respond(operation, loaded)
