"""What all operations of the management API share: from the request to the call and back."""

from collections.abc import Callable, Collection
from datetime import UTC, datetime
from enum import Enum
from http import HTTPStatus
from typing import Any, ClassVar, TypeVar

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from pydantic import BaseModel, ValidationError

from api.management import errors
from api.operation import Operation, complaint, parse_object, refuse_repeated_keys
from catalog import identifiers
from catalog.access import Principal
from catalog.errors import CatalogError, InvalidInput, JobNotFound
from catalog.identifiers import Identifier
from catalog.models.audit import Interface

_E = TypeVar("_E", bound=Enum)
JSON = "application/json"


class ManagementOperation(Operation):
    """One operation. ``handle(actor, body, **path)`` returns a model, or None: 204.

    The path's ``id`` comes as an identifier, its ``job`` as a number.
    """

    interface = Interface.MANAGEMENT
    request_model: ClassVar[type[BaseModel] | None] = None
    """None: there is no body, and none is read."""
    response_model: ClassVar[type[BaseModel] | None] = None
    """None: 204 without a body."""
    status: ClassVar[HTTPStatus] = HTTPStatus.OK
    """The status of success, where there is a body."""
    media: ClassVar[tuple[str, ...]] = ()
    """What else than JSON it answers with; then ``handle`` returns the whole response."""

    handle: Callable[..., Any]

    def perform(self, actor: Principal, path: dict[str, str]) -> HttpResponse:
        return self.render(self.handle(actor, self._body(), **self._path(path)))

    # -- the request

    def _body(self) -> BaseModel | None:
        if self.request_model is None:
            return None
        content = self.content()
        body = parse_object(content)
        refuse_repeated_keys(content)
        try:
            return self.request_model.model_validate(body)
        except ValidationError as error:
            raise InvalidInput(complaint(error)) from None

    def _path(self, path: dict[str, str]) -> dict[str, Any]:
        arguments: dict[str, Any] = dict(path)
        if "id" in path:
            arguments["id"] = self.identify(path["id"])
        if "job" in path:
            arguments["job"] = _job(path["job"])
        return arguments

    def identify(self, text: str) -> Identifier:
        """What a path, or a parameter, names. The delimiter alone is the root namespace."""
        delimiter = self.query_values.get("delimiter", identifiers.DEFAULT_DELIMITER)
        return identifiers.parse(text, delimiter)

    def named(self, name: str) -> Identifier | None:
        """What a parameter names, if it is there."""
        text = self.query_values.get(name)
        return self.identify(text) if text else None

    def chosen(self, name: str, kind: type[_E]) -> list[_E]:
        """Members of an enumeration, between commas. Raises InvalidInput for others."""
        members = {member.value: member for member in kind}
        return [members[word] for word in self.words(name, members)]

    def words(self, name: str, allowed: Collection[str]) -> list[str]:
        """Words between commas. Raises InvalidInput for a word that is not allowed."""
        text = self.query_values.get(name)
        if not text:
            return []
        words = text.split(",")
        if not set(words) <= set(allowed):
            raise InvalidInput(
                f"Query parameter '{name}' is {text!r}; use {', '.join(allowed)}, with commas"
                " between several"
            )
        return words

    def moment(self, name: str) -> datetime | None:
        """A moment such as 2027-01-31T12:00:00Z; without a zone it is in UTC."""
        text = self.query_values.get(name)
        if not text:
            return None
        try:
            # In a query a plus is a blank, unless it was encoded.
            moment = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
        except (ValueError, OverflowError):
            raise InvalidInput(
                f"Query parameter '{name}' is {text!r}; use a time such as 2027-01-31T12:00:00Z"
            ) from None

    def number(self, name: str, default: int, *, most: int) -> int:
        """A whole number from 1 on. Raises InvalidInput for one that is larger than ``most``."""
        value = self.count(name) or default
        if value > most:
            raise InvalidInput(f"Query parameter '{name}' is {value}; use 1 to {most}")
        return value

    @property
    def page(self) -> dict[str, Any]:
        """``limit`` and ``page_token`` of a list operation."""
        token = self.query_values.get("page_token") or None
        return {"limit": self.count("limit"), "page_token": token}

    # -- the answer

    def render(self, answer: BaseModel | HttpResponseBase | None) -> HttpResponse:
        if isinstance(answer, HttpResponseBase):
            return answer  # type: ignore[return-value]
        if answer is None:
            response = HttpResponse(status=HTTPStatus.NO_CONTENT)
            del response["Content-Type"]
            return response
        return HttpResponse(
            answer.model_dump_json().encode(), status=self.status, content_type=JSON
        )

    def refuse(self, error: CatalogError) -> HttpResponse:
        status, content, headers = errors.answer(error, self.request.path)
        if self.request.method == "HEAD":
            content = b""
        return HttpResponse(content, status=status, content_type=errors.MEDIA, headers=headers)

    def fail(self, message: str, detail: str) -> HttpResponse:
        status, title = errors.INTERNAL
        content = errors.body(status, title, f"{message}: {detail}", self.request.path)
        return HttpResponse(content, status=status, content_type=errors.MEDIA)


class SecretOperation(ManagementOperation):
    """One whose answer holds a secret, which nothing on the way may keep."""

    def render(self, answer: Any) -> HttpResponse:
        response = super().render(answer)
        response.headers["Cache-Control"] = "no-store"
        return response


def _job(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise JobNotFound(text)
    return int(text)
