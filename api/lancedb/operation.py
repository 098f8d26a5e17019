"""The base of the operations of the dialect: names relative to the database, and refusals."""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, ClassVar, TypeVar

from django.http import HttpRequest, HttpResponse
from pydantic import BaseModel, ValidationError

from api import database_header
from api.lance.operation import LanceOperation
from api.lancedb import database
from api.operation import complaint, parse_object
from catalog import identifiers
from catalog.errors import (
    BranchAlreadyExists,
    CatalogError,
    ColumnNotFound,
    CommitConflict,
    InvalidIdentifier,
    InvalidInput,
    TableAlreadyExists,
    TagNotFound,
    VersionNotFound,
)
from catalog.identifiers import Identifier

_M = TypeVar("_M", bound=BaseModel)
_VERSION_HEADER = "phalanx-version"
_VERSION = "0.3.0"
"""The version of LanceDB's server whose requests this dialect understands. Clients send several vectors
in one query from 0.2.0 on, structured full-text queries from 0.3.0, and parallel uploads, which are not
supported here, from 0.4.0."""
_EXPECTED_CONFLICTS = (CommitConflict, BranchAlreadyExists)
"""Refused with 409: a conflict that may not recur, and one for which the clients expect it."""
_TAGS = re.compile(r"/tags/(create|update)/?$")
_NAMESPACES = f"{database_header.PATHS}namespace/"


class DatabaseOperation(LanceOperation):
    """An operation of the Lance protocol, called by a client of LanceDB."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: str) -> HttpResponse:
        response = super().dispatch(request, *args, **kwargs)
        response[_VERSION_HEADER] = _VERSION
        return response

    @property
    def database(self) -> Identifier:
        return database.of_request(self.request)

    # -- names

    def absolute(self, names: Identifier) -> Identifier:
        if not self.request.path_info.startswith(_NAMESPACES):
            identifiers.check_table(names)
        return (*self.database, *names)

    def relative(self, identifier: Identifier) -> Identifier:
        """The identifier as the client knows it."""
        return identifier[len(self.database) :]

    def target(self) -> str:
        try:
            names = self.database
        except InvalidIdentifier:
            names = (self.request.META[database_header.KEY][: identifiers.MAX_NAME_LENGTH],)
        return ".".join((*names, super().target())).strip(".")

    def request_head(self) -> tuple[bytes, ...]:
        names = "\0".join(self.database)
        return (*super().request_head(), names.encode("utf-8", "surrogateescape"))

    # -- requests

    translates: ClassVar[bool] = False
    """True if the body has another form than in the Lance protocol: ``translate``."""
    sent_schema: ClassVar[dict[str, Any] | None] = None
    """The JSON schema of such a body, for the document."""

    def translate(self, body: dict[str, Any]) -> Mapping[str, Any]:
        """Return a body of this dialect as a body of the Lance protocol."""
        return body

    def read(self, model: type[_M]) -> _M:
        if not self.translates:
            return super().read(model)
        content = self.content()
        body = {} if content in {b"", b"null"} else parse_object(content)
        try:
            return model.model_validate(self.translate(body))
        except ValidationError as error:
            raise InvalidInput(complaint(error)) from None

    # -- answers

    def _render(self, answer: Any) -> HttpResponse:
        if isinstance(answer, BaseModel) and isinstance(getattr(answer, "id", None), list):
            answer.id = list(self.relative(tuple(answer.id)))  # type: ignore[attr-defined]
        return super()._render(answer)

    def refuse(self, error: CatalogError) -> HttpResponse:
        """Render a refusal.

        The clients repeat a request after a 409, and report a missing table after a 404. So other conflicts,
        and other missing objects, are refused with 400.
        """
        if isinstance(error, TableAlreadyExists):
            error.reword(
                f"Table '{identifiers.label(error.table)}' already exists"
            )  # clients match it
        response = super().refuse(error)
        status = response.status_code
        is_conflict = status == HTTPStatus.CONFLICT and not isinstance(error, _EXPECTED_CONFLICTS)
        # The clients report a missing table also if it is the version of a new tag that is missing.
        is_version_of_tag = isinstance(error, VersionNotFound) and _TAGS.search(
            self.request.path_info
        )
        if is_conflict or is_version_of_tag or isinstance(error, (ColumnNotFound, TagNotFound)):
            response.status_code = HTTPStatus.BAD_REQUEST
        return response
