"""What all operations of the Lance protocol share: from the request to the call and back."""

import logging
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar
from urllib.parse import parse_qsl

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db import DatabaseError, DataError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.http.request import UnreadablePostError
from pydantic import BaseModel, ValidationError
from rest_framework.views import APIView

from api.errors import BodyTooLarge, MethodNotAllowed
from api.lance import errors
from api.lance.schema import LanceSchema
from api.request_id import request_id
from catalog import identifiers
from catalog.errors import CatalogError, InvalidInput, ServiceUnavailable
from catalog.identifiers import Identifier
from catalog.services import access
from catalog.services.access import Principal

log = logging.getLogger(__name__)

_E = TypeVar("_E", bound=Enum)
_CONTEXT_HEADER = "HTTP_X_LANCE_CTX_"
_TRUE, _FALSE = frozenset({"true", "1"}), frozenset({"false", "0"})


class LanceOperation(APIView):
    """One operation. Subclasses are named as the specification's operationId.

    ``dispatch`` takes the place of REST framework's: at 260 µs a request its negotiation, its
    request object and its exception handling would be a third of the whole.
    """

    schema = LanceSchema()
    verb: ClassVar[str] = "POST"
    request_model: ClassVar[type[BaseModel] | None] = None
    documents_body: ClassVar[bool] = True
    """False where the specification has no body and one is understood all the same."""
    response_model: ClassVar[type[BaseModel] | None] = None
    query: ClassVar[tuple[str, ...]] = ()
    """The query parameters it reads, beside the delimiter."""
    changes: ClassVar[bool] = False
    """Whether it writes: then its context headers go into the audit trail."""
    is_batch: ClassVar[bool] = False
    """Whether errors name the failing operation by its index."""

    handle: Callable[..., BaseModel | None]
    """``handle(actor, body, **path)``: call one service and render what it returns.

    ``body`` is an instance of ``request_model``; None as the answer is an empty 200.
    """
    request: HttpRequest  # type: ignore[assignment]
    query_values: Mapping[str, str]

    def __init_subclass__(cls) -> None:
        # REST framework, and with it the OpenAPI document, reads the method off the class.
        setattr(cls, cls.verb.lower(), cls.dispatch)

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: str) -> HttpResponse:
        request.operation = type(self).__name__  # type: ignore[attr-defined]
        self.request = request
        try:
            self.query_values = _parse_query(request.META.get("QUERY_STRING", ""))
            if request.method != self.verb:
                raise MethodNotAllowed(request.method or "", self.verb)
            actor = self._authenticate(request)
            body = self._parse(request)
            path = self._path(kwargs, body)
            return self._render(self.handle(actor, body, **path))
        except CatalogError as error:
            if not self.is_batch:
                error.operation = None
            return self._refuse(error)
        except DataError as error:
            # What PostgreSQL cannot store, such as a NUL character in a value.
            return self._refuse(InvalidInput(f"A value cannot be stored: {_first_line(error)}"))
        except OperationalError as error:
            log.error("The database failed: %s", _first_line(error))
            return self._refuse(ServiceUnavailable("The database is not available"))
        except Exception as error:  # the outermost frame: the caller still gets the Lance form
            log.exception("%s failed", type(self).__name__)
            detail = "database" if isinstance(error, DatabaseError) else "server"
            return self._fail(f"An unexpected {detail} error; the log has it under this request id")

    # -- the request

    def _authenticate(self, request: HttpRequest) -> Principal:
        meta = request.META
        key = meta.get("HTTP_X_API_KEY")
        if not key:
            scheme, _, token = meta.get("HTTP_AUTHORIZATION", "").partition(" ")
            key = token.strip() if scheme.lower() == "bearer" else None
        context = None
        if self.changes:
            start = len(_CONTEXT_HEADER)
            context = {
                name[start:].lower(): value
                for name, value in meta.items()
                if name.startswith(_CONTEXT_HEADER)
            }
        actor = access.authenticate(key, request_id=request_id.get(), context=context)
        request.actor_name = actor.name  # type: ignore[attr-defined]
        return actor

    def _parse(self, request: HttpRequest) -> BaseModel | None:
        if self.request_model is None:
            return None
        limit = settings.MONODON_MAX_BODY_BYTES
        try:
            content = request.body
        except RequestDataTooBig:
            raise BodyTooLarge(limit) from None
        except UnreadablePostError:
            raise InvalidInput("The request body ended early") from None
        try:
            return self.request_model.model_validate_json(content or b"{}")
        except ValidationError as error:
            raise InvalidInput(_complaint(error)) from None

    def _path(self, kwargs: dict[str, str], body: BaseModel | None) -> dict[str, Any]:
        """The path's parameters, with ``id`` as an identifier that agrees with the body's."""
        if "id" not in kwargs:
            return kwargs
        identifier = self.identify(kwargs["id"])
        repeated = getattr(body, "id", None)
        if repeated is not None:
            if identifiers.fold(repeated) != identifiers.fold(identifier):
                raise InvalidInput(
                    f"The body's id {list(repeated)} is not the path's id {list(identifier)}"
                )
            # The body tells a '+' from a space; a decoded path cannot.
            identifier = identifiers.check(repeated)
        return {**kwargs, "id": identifier}

    def identify(self, text: str) -> Identifier:
        """What the path's ``id`` names."""
        return identifiers.parse(text, self.delimiter)

    @property
    def delimiter(self) -> str:
        return self.query_values.get("delimiter", identifiers.DEFAULT_DELIMITER)

    def flag(self, name: str, default: bool | None = None) -> bool | None:
        """A boolean of the query. Raises InvalidInput for anything but true and false."""
        text = self.query_values.get(name)
        if text is None or text == "":
            return default
        if text.lower() in _TRUE:
            return True
        if text.lower() in _FALSE:
            return False
        raise InvalidInput(f"Query parameter '{name}' is {text!r}; use true or false")

    @property
    def page(self) -> dict[str, Any]:
        """The ``limit`` and ``page_token`` of a list operation."""
        text = self.query_values.get("limit")
        limit = None
        if text:
            if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) > 0):
                raise InvalidInput(f"Query parameter 'limit' is {text!r}; use a positive integer")
            limit = int(text)
        return {"limit": limit, "page_token": self.query_values.get("page_token") or None}

    # -- the answer

    @staticmethod
    def _render(answer: BaseModel | None) -> HttpResponse:
        if answer is None:
            return HttpResponse(b"")
        # Bytes, because for a text Django looks for its charset in the content type, which takes
        # 10 µs.
        content = answer.model_dump_json(exclude_none=True, by_alias=True).encode()
        return HttpResponse(content, content_type="application/json")

    def _refuse(self, error: CatalogError) -> HttpResponse:
        status, content, headers = errors.answer(error, self.request.path)
        return HttpResponse(
            content, status=status, content_type="application/json", headers=headers
        )

    def _fail(self, message: str) -> HttpResponse:
        status, code = errors.INTERNAL
        detail = f"request id {request_id.get()}"
        content = errors.body(code, message, detail, self.request.path)
        return HttpResponse(content, status=HTTPStatus(status), content_type="application/json")


@lru_cache(maxsize=4096)
def _parse_query(query: str) -> Mapping[str, str]:
    """The query's parameters, the last of a name counting. Clients repeat the same few queries."""
    try:
        return MappingProxyType(dict(parse_qsl(query, keep_blank_values=True, max_num_fields=100)))
    except ValueError:
        raise InvalidInput("The query has more than 100 parameters") from None


def choose(kind: type[_E], text: str | None, default: _E) -> _E:
    """The member that a mode names, in any case, as PascalCase or as snake_case."""
    if not text:
        return default
    wanted = text.replace("_", "").lower()
    for member in kind:
        if member.value.replace("_", "").lower() == wanted:
            return member
    known = ", ".join(member.value for member in kind)
    raise InvalidInput(f"{text!r} is not known; use one of {known}")


def _complaint(error: ValidationError) -> str:
    """The first thing that is wrong with a body, with the path to it."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else f"The request body is not valid: {first['msg']}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
