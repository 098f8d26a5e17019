"""The base of the operations of both protocols: from the request to the call, and failures."""

import json
import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar
from urllib.parse import parse_qsl

import orjson
from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db import DatabaseError, Error
from django.http import HttpRequest, HttpResponse
from django.http.request import UnreadablePostError
from pydantic import ValidationError
from rest_framework.views import APIView

from api import bounds, credentials, encodings, failures, request_facts
from api.errors import BodyTooLarge, MethodNotAllowed
from api.front import marker
from api.hosts import check_host
from api.request_id import request_id
from catalog.access import Principal
from catalog.errors import CatalogError, ContradictoryInput, InvalidInput
from catalog.models import Table
from catalog.services.storage import file_references

log = logging.getLogger(__name__)

_TRUE, _FALSE = frozenset({"true", "1"}), frozenset({"false", "0"})
# Functions that traverse a body are recursive, and Python's limit is about a thousand calls.
MAX_DEPTH = 200
_NUL = b"\\u0000"
_LONGEST_KEPT = 500


DEPENDENTS = "Monodon-Dependents"


class Operation(APIView):
    """One operation of a protocol. Subclasses are named as the specification's operationId.

    ``dispatch`` replaces that of REST framework: at 260 µs per request, its negotiation, its request
    object and its exception handling would take a third of the time. A protocol defines how an
    operation is executed (``perform``), and the form of refusals and failures.
    """

    verb: ClassVar[str] = "GET"
    changes: ClassVar[bool] = False
    """True if the operation writes."""
    interface: ClassVar[str] = ""
    """The name of the protocol in the audit trail."""
    query: ClassVar[tuple[str, ...]] = ()
    """The query parameters of the operation, in addition to those of every operation of the
    protocol."""
    described: ClassVar[Mapping[str, dict[str, Any]]] = {}
    """Description and schema of query parameters that the protocol's document does not describe."""

    handle: Callable[..., Any]
    """``handle(actor, body, **path)``: call one service and render what it returns."""
    request: HttpRequest  # type: ignore[assignment]
    query_values: Mapping[str, str] = MappingProxyType({})
    actor: Principal | None = None
    """The principal of the request, after authentication."""

    def __init_subclass__(cls) -> None:
        # REST framework, and with it the OpenAPI document, reads the method off the class.
        setattr(cls, cls.verb.lower(), cls.dispatch)

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: str) -> HttpResponse:
        request.operation = type(self).__name__  # type: ignore[attr-defined]
        self.request, self.kwargs = request, kwargs
        front = request.META.get(marker.KEY)
        try:
            check_host(request)
            if isinstance(front, CatalogError):
                raise front
            self.query_values = parse_query(request.META.get("QUERY_STRING", ""))
            if request.method != self.verb:
                raise MethodNotAllowed(request.method or "", self.verb)
            self.actor = actor = self.authenticate()
            if front is marker.BodyState.AWAITED:
                return marker.Proceed()
            return self.perform(actor, kwargs)
        except Exception as error:  # noqa: BLE001 -- the outermost frame
            return self.failed(error)
        finally:
            request.target = kwargs, self.query_values.get("delimiter")  # type: ignore[attr-defined]

    # -- to be defined by a protocol

    def perform(self, actor: Principal, path: dict[str, str]) -> HttpResponse:
        """Read the request, call ``handle`` and write the answer."""
        raise NotImplementedError

    def refuse(self, error: CatalogError) -> HttpResponse:
        """Render a refusal."""
        raise NotImplementedError

    def fail(self, message: str, detail: str) -> HttpResponse:
        """Render an internal error."""
        raise NotImplementedError

    def context(self) -> Mapping[str, str] | None:
        """The context headers of the request for the audit trail."""
        return None

    def target(self) -> str:
        """The object of the request in the audit trail, as far as the path names it."""
        return request_facts.name(self.kwargs, self.query_values.get("delimiter"))

    # -- failures

    def failed(self, error: Exception) -> HttpResponse:
        """Render an exception in the form of the protocol."""
        refusal = failures.as_refusal(error, self.actor, changes=self.changes)
        if refusal is not None:
            failures.note(
                refusal,
                self.request,
                self.actor,
                interface=self.interface,
                operation=type(self).__name__,
                target=self.target(),
                changes=self.changes,
            )
            return self.refuse(refusal)
        log.error("%s failed", type(self).__name__, exc_info=error)
        kind = "database" if isinstance(error, DatabaseError) else "server"
        return self.fail(
            f"An unexpected {kind} error; the log has it under this request id",
            f"request id {request_id.get()}",
        )

    # -- the request

    def authenticate(self) -> Principal:
        return credentials.authenticate(
            self.request, interface=self.interface, context=self.context()
        )

    def content(self) -> bytes:
        return read_content(self.request)

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

    def count(self, name: str) -> int | None:
        """A positive integer of the query. Raises InvalidInput for anything else."""
        text = self.query_values.get(name)
        if not text:
            return None
        if text.isascii() and text.isdigit() and len(text) < 19 and int(text) > 0:
            return int(text)
        raise InvalidInput(f"Query parameter '{name}' is {text!r}; use a positive integer")


def read_content(request: HttpRequest) -> bytes:
    """Return the body, whole and unpacked.

    Raises BodyTooLarge, UnsupportedEncoding, and InvalidInput for a body that broke off.
    """
    meta = request.META
    try:
        content = request.body
    except RequestDataTooBig:
        raise BodyTooLarge(settings.MONODON_MAX_BODY_BYTES) from None
    except UnreadablePostError:
        raise InvalidInput("The request body ended early") from None
    length = meta.get("CONTENT_LENGTH")
    if length and length.isdigit() and len(content) < int(length):
        raise InvalidInput(f"The request body is shorter than its Content-Length, {length} bytes")
    if "HTTP_CONTENT_ENCODING" in meta:
        return encodings.decode(content, meta["HTTP_CONTENT_ENCODING"])
    return content


def parse_query(query: str) -> Mapping[str, str]:
    """The query's parameters, the last of a name counting. Clients repeat the same few queries."""
    # Anybody may send long ones, and they would stay in memory.
    return _parse_known(query) if len(query) <= _LONGEST_KEPT else _parse(query)


def _parse(query: str) -> Mapping[str, str]:
    try:
        return MappingProxyType(dict(parse_qsl(query, keep_blank_values=True, max_num_fields=100)))
    except ValueError:
        raise InvalidInput("The query has more than 100 parameters") from None


_parse_known = lru_cache(maxsize=4096)(_parse)


def parse_object(content: bytes) -> dict[str, Any]:
    """A JSON object that can be walked and stored; integers of 64 bits stay exact.

    Raises InvalidInput for anything else, for nesting deeper than MAX_DEPTH, for a map or a list
    over its bound (``api.bounds``), and for NUL characters, which PostgreSQL does not store.
    """
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"The request body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidInput("The request body is not a JSON object")
    if _NUL in content or content.count(b"[") + content.count(b"{") > MAX_DEPTH:
        _walk(body)
    if bounds.may_exceed(content):
        bounds.check(body)
    return body


def refuse_repeated_keys(content: bytes) -> None:
    """Raises ContradictoryInput when an object of a body that was parsed has a key twice."""
    json.loads(content, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> None:
    names: set[str] = set()
    for key, _ in pairs:
        if key in names:
            raise ContradictoryInput(f"The key {key!r} is there more than once")
        names.add(key)


def _walk(body: dict[str, Any]) -> None:
    """Look at every string and every level, level by level."""
    level: list[Any] = [body]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                values: Any = (*item, *item.values())
            else:
                values = item
            for value in values:
                if isinstance(value, str):
                    if "\0" in value:
                        raise InvalidInput("The request body holds a NUL character")
                elif isinstance(value, (dict, list)):
                    inner.append(value)
        if not inner:
            return
        level = inner
    raise InvalidInput(f"The request body is nested deeper than {MAX_DEPTH} levels")


def complaint(error: ValidationError) -> str:
    """The first thing that is wrong with a body, with the path to it."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(step) for step in first["loc"])
    return f"{where}: {first['msg']}" if where else f"The request body is not valid: {first['msg']}"


def announce_dependents(response: HttpResponse, dropped: Table) -> HttpResponse:
    """Say in a header how many tables refer to files of a table that was dropped, if some do.

    The drop is committed, so its response is sent without the header if the database fails now.
    """
    try:
        number = file_references.count_dependents(dropped)
    except Error as error:
        log.warning("The dependents of '%s' cannot be counted: %s", dropped, error)
        return response
    if number:
        response[DEPENDENTS] = str(number)
    return response
