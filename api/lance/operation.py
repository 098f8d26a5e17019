"""The base of all operations of the Lance protocol: from the request to the call and back."""

import hashlib
from collections.abc import Callable, Mapping
from enum import Enum
from http import HTTPStatus
from typing import Any, ClassVar, TypeVar

import orjson
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from pydantic import BaseModel, ValidationError

from api import bounds
from api.lance import errors
from api.operation import Operation, complaint
from catalog import identifiers
from catalog.access import Principal
from catalog.errors import CatalogError, InvalidInput
from catalog.identifiers import Identifier
from catalog.models.audit import Interface

_E = TypeVar("_E", bound=Enum)
_M = TypeVar("_M", bound=BaseModel)
JSON = "application/json"
_CONTEXT_HEADER = "HTTP_X_LANCE_CTX_"


class LanceOperation(Operation):
    """One operation. Subclasses are named as the specification's operationId."""

    interface = Interface.LANCE
    verb: ClassVar[str] = "POST"
    request_model: ClassVar[type[BaseModel] | None] = None
    request_schema: ClassVar[dict[str, Any] | None] = None
    """The media type of a body without a model, which the operation reads itself."""
    documents_body: ClassVar[bool] = True
    """False if the specification has no body, but the operation accepts one."""
    response_model: ClassVar[type[BaseModel] | None] = None
    response_schema: ClassVar[dict[str, Any] | None] = None
    """The type of an answer without a model: a bare number, text or map."""
    body_type: ClassVar[str] = "application/json"
    answer_type: ClassVar[str] = "application/json"
    status: ClassVar[int] = 200
    """The status of success."""
    needs_data: ClassVar[bool] = False
    """True if it refuses a table that was declared and has no data, with 409 and code 19.

    The specification lists the code among its errors, but no 409 for most of these operations.
    """
    changes: ClassVar[bool] = False
    """True if it writes: its context headers are then recorded in the audit trail."""
    is_idempotent: ClassVar[bool] = False
    """True if it accepts an Idempotency-Key (``api.lance.once``)."""
    is_batch: ClassVar[bool] = False
    """True if errors name the failing operation by its index."""

    handle: Callable[..., Any]
    """``handle(actor, body, **path)``: call one service and render what it returns.

    ``body`` is an instance of ``request_model``. The result is an instance of ``response_model``,
    None for an empty 200, an HTTP response, or a value that is sent as bare JSON.
    """

    def perform(self, actor: Principal, path: dict[str, str]) -> HttpResponse:
        body = self._parse()
        return self._render(self.handle(actor, body, **self.path_arguments(path, body)))

    # -- the request

    def context(self) -> Mapping[str, str] | None:
        if not self.changes:
            return None
        start = len(_CONTEXT_HEADER)
        return {
            name[start:].lower(): value
            for name, value in self.request.META.items()
            if name.startswith(_CONTEXT_HEADER)
        }

    def _parse(self) -> BaseModel | None:
        return None if self.request_model is None else self.read(self.request_model)

    def read(self, model: type[_M]) -> _M:
        """The body as an instance of the model. Raises InvalidInput."""
        try:
            return model.model_validate_json(self._json())
        except ValidationError as error:
            raise InvalidInput(complaint(error)) from None

    def _json(self) -> bytes:
        content = self.content()
        # LanceDB's client sends this if the specification has no body.
        is_nothing = content == b"null" and not self.documents_body
        bounds.check_json(content)
        return b"{}" if is_nothing else content or b"{}"

    def path_arguments(self, kwargs: dict[str, str], body: BaseModel | None) -> dict[str, Any]:
        """The path's parameters, with ``id`` as an identifier that agrees with the body's."""
        if "id" not in kwargs:
            return kwargs
        identifier = self.identify(kwargs["id"])
        repeated = getattr(body, "id", None)
        if repeated is not None:
            named = self.absolute(tuple(repeated))
            if identifiers.fold(named) != identifiers.fold(identifier):
                raise InvalidInput(
                    f"The body's id {list(named)} is not the path's id {list(identifier)}"
                )
            # A body distinguishes '+' and space; a decoded path does not.
            identifier = identifiers.check(named)
        return {**kwargs, "id": identifier}

    def digested_body(self) -> Callable[[], bytes]:
        """A function that returns the SHA-256 of the body."""
        digest = hashlib.sha256(self.content()).digest()
        return lambda: digest

    @property
    def is_spoiled(self) -> bool:
        """True if the body was truncated or altered in transit: the client may send it again."""
        return False

    def identify(self, text: str) -> Identifier:
        """The identifier in the path's ``id``."""
        return self.absolute(identifiers.parse(text, self.delimiter))

    def absolute(self, names: Identifier) -> Identifier:
        """The identifier that the names in a request mean, from the root down."""
        return names

    def request_head(self) -> tuple[bytes, ...]:
        """All that distinguishes this request from others, apart from its body."""
        request = self.request
        return (
            (request.method or "").encode(),
            request.path.encode("utf-8", "surrogateescape"),
            request.META.get("QUERY_STRING", "").encode("utf-8", "surrogateescape"),
        )

    @property
    def delimiter(self) -> str:
        return self.query_values.get("delimiter", identifiers.DEFAULT_DELIMITER)

    @property
    def page(self) -> dict[str, Any]:
        """The ``limit`` and ``page_token`` of a list operation."""
        token = self.query_values.get("page_token") or None
        return {"limit": self.count("limit"), "page_token": token}

    # -- the answer

    def _render(self, answer: Any) -> HttpResponse:
        if isinstance(answer, BaseModel):
            content = content_of(answer)
        elif answer is None:
            return HttpResponse(b"")
        elif isinstance(answer, HttpResponseBase):
            return answer  # type: ignore[return-value]
        else:
            content = orjson.dumps(answer)
        return HttpResponse(content, status=self.status, content_type=JSON)

    def refuse(self, error: CatalogError) -> HttpResponse:
        if not self.is_batch:
            error.operation = None
        status, content, headers = errors.answer(error, self.request.path)
        return HttpResponse(
            content, status=status, content_type="application/json", headers=headers
        )

    def fail(self, message: str, detail: str) -> HttpResponse:
        status, code = errors.INTERNAL
        content = errors.body(code, message, detail, self.request.path)
        return HttpResponse(content, status=HTTPStatus(status), content_type="application/json")


def content_of(answer: BaseModel) -> bytes:
    """The JSON of an answer.

    Bytes, because for text Django parses the charset of the content type, which takes 10 µs.
    """
    return answer.model_dump_json(exclude_none=True, by_alias=True).encode()


def choose(kind: type[_E], text: str | None, default: _E) -> _E:
    """The member that a mode names: case-insensitive, in PascalCase or snake_case."""
    if not text:
        return default
    normalized = text.replace("_", "").lower()
    for member in kind:
        if member.value.replace("_", "").lower() == normalized:
            return member
    members = ", ".join(member.value for member in kind)
    raise InvalidInput(f"{text!r} is not known; use one of {members}")
