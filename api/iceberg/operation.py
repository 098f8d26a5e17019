"""The base of all operations of the Iceberg protocol: from the request to the call and back."""

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any, ClassVar

import orjson
from django.http import HttpResponse
from pydantic import BaseModel, ValidationError

from api.iceberg import errors, prefixes, wording
from api.operation import DEPENDENTS, Operation, complaint, parse_object
from catalog import identifiers
from catalog.access import Principal
from catalog.errors import CatalogError, InvalidInput, OutcomeUnknown, ServiceUnavailable
from catalog.identifiers import Identifier
from catalog.models import IdempotencyRecord
from catalog.models.audit import Interface
from catalog.services.engine import idempotency

JSON = "application/json"
MAX_PAGE = 10_000
_KEPT_HEADERS = ("Content-Type", "ETag", "Vary", DEPENDENTS)
_SURELY_FAILED = {HTTPStatus.BAD_REQUEST, HTTPStatus.CONFLICT}


class IcebergOperation(Operation):
    """One operation. Subclasses are named as the specification's operationId.

    ``handle(actor, body, **path)`` gets the path's parameters as they stand in the URL
    (``namespace``, ``table``, ``view``, ``function``, ``plan_id``; see ``identify``) and returns

    - a dict: 200 with this JSON,
    - a model: the same, with the names of its aliases,
    - an HttpResponse: sent as it is,
    - None: 204.
    """

    interface = Interface.ICEBERG
    request_model: ClassVar[type[BaseModel] | str | None] = None
    """What the body is checked against and given as. A name: the specification's schema of a body
    that stays a dict. None: there is no body, and none is read."""
    response_model: ClassVar[type[BaseModel] | str | None] = None
    """The same for the answer, for the OpenAPI document. None: 204 without a body."""
    request_headers: ClassVar[tuple[str, ...]] = ()
    """The request headers it reads, beside those of every operation."""
    is_commit: ClassVar[bool] = False
    """True if clients read any 5xx as "it may have happened". A certain failure is then a 409."""
    is_idempotent: ClassVar[bool] = False
    """True if it accepts an Idempotency-Key."""
    is_batch: ClassVar[bool] = False
    """True if refusals name the index of the failing operation."""
    error_types: ClassVar[Mapping[type[CatalogError], str]] = {}
    """Types of refusals that clients expect of this operation, instead of the usual ones."""

    def _no_content(self, actor: Principal, body: Any, **path: str) -> None:
        return None

    replay: Callable[..., Any] = _no_content
    """``replay(actor, body, **path)``: the answer to a change that stands already, when its own
    answer was not kept. Made from the present state, and of the shape that ``handle`` gives."""

    warehouse: Identifier = ()
    """The namespace that the prefix names; everything in the request is relative to it."""
    _is_first: bool = False
    """True if no result is stored under the request's Idempotency-Key, so it is carried out."""

    def perform(self, actor: Principal, path: dict[str, str]) -> HttpResponse:
        prefix = path.pop("prefix", None)
        if prefix is not None:
            self.warehouse = prefixes.read(prefix)
        body = self._read()
        key = self.request.META.get("HTTP_IDEMPOTENCY_KEY") if self.is_idempotent else None
        if key is not None:
            return self._perform_once(actor, key, body, path)
        return self.render(self.handle(actor, self._typed(body), **path))

    def _read(self) -> dict[str, Any] | None:
        return None if self.request_model is None else parse_object(self.content())

    def _typed(self, body: dict[str, Any] | None) -> BaseModel | dict[str, Any] | None:
        if body is None or isinstance(self.request_model, str) or self.request_model is None:
            return body
        try:
            return self.request_model.model_validate(body)
        except ValidationError as error:
            raise InvalidInput(complaint(error)) from None

    # -- once

    def _perform_once(
        self, actor: Principal, text: str, body: dict[str, Any] | None, path: dict[str, str]
    ) -> HttpResponse:
        """Carry out what carries an Idempotency-Key, or tell how it ended before."""
        key = idempotency.read_key(
            text,
            (self.request.method or "").encode(),
            self.request.path.encode("utf-8", "surrogateescape"),
            orjson.dumps(sorted(self.query_values.items())),
            orjson.dumps(body, option=orjson.OPT_SORT_KEYS),
        )
        self.actor = actor = replace(actor, idempotency=key)
        record = idempotency.find(actor)
        if record is not None:
            return self._repeat(record, actor, body, path)
        self._is_first = True
        try:
            response = self.render(self.handle(actor, self._typed(body), **path))
        except Exception as error:  # of a commit any failure may have to be noted
            if idempotency.lost_race(error):
                self._is_first = False
                record = idempotency.find(actor)
                if record is None:
                    raise
                return self._repeat(record, actor, body, path)
            refusal = self.failed(error)
            if not self._is_final(error, refusal):
                return refusal
            self._is_first = False  # perhaps refused because another with the key came in between
            record = idempotency.keep_refusal(
                actor,
                status=refusal.status_code,
                content=refusal.content,
                headers=_kept_headers(refusal),
            )
            return refusal if record is None else self._repeat(record, actor, body, path)
        return self._keep(actor, response)

    def _is_final(self, error: Exception, refusal: HttpResponse) -> bool:
        """Whether the same request must get the same refusal again.

        After such an answer a client removes the files of its commit. The request may have come
        twice, as when a proxy lost patience, and the other one be under way: with the refusal noted
        first, that one cannot commit any more. The next attempt of the client has another key.
        """
        if isinstance(error, CatalogError) and errors.is_final(error):
            return True
        return self.is_commit and refusal.status_code in _SURELY_FAILED

    def _repeat(
        self,
        record: IdempotencyRecord,
        actor: Principal,
        body: dict[str, Any] | None,
        path: dict[str, str],
    ) -> HttpResponse:
        if record.status is not None:
            response = HttpResponse(
                bytes(record.content or b""), status=record.status, headers=record.headers
            )
            if "Content-Type" not in record.headers:
                del response["Content-Type"]
            return response
        try:
            response = self.render(self.replay(actor, self._typed(body), **path))
        except CatalogError as error:
            if not self.is_commit:
                raise
            # The table has another name by now, perhaps: no reason to remove the commit's files.
            text = f"The commit was made, and its answer is gone: {self._words(error)}"
            raise OutcomeUnknown(text) from error
        return self._keep(actor, response)

    @staticmethod
    def _keep(actor: Principal, response: HttpResponse) -> HttpResponse:
        if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return response
        # Another time the client may take no gzip, and need new credentials.
        whole = (
            "Content-Encoding" not in response
            and "no-store" not in response.get("Cache-Control", "")
            and len(response.content) <= idempotency.MAX_KEPT_BYTES
        )
        idempotency.keep_answer(
            actor,
            status=response.status_code,
            content=response.content if whole else None,
            headers=_kept_headers(response),
        )
        return response

    # -- names

    def identify(self, namespace: str, name: str | None = None) -> Identifier:
        """The identifier in a path: a namespace, or the object ``name`` in it."""
        return self.absolute(prefixes.levels(namespace), name)

    def absolute(self, namespace: "list[str] | Identifier", name: str | None = None) -> Identifier:
        """The same of the levels in a body. Raises InvalidIdentifier."""
        parts = namespace if name is None else (*namespace, name)
        return (*self.warehouse, *identifiers.check(parts))

    def relative(self, identifier: Identifier) -> list[str]:
        """An identifier as this request's warehouse sees it."""
        return list(identifier[len(self.warehouse) :])

    def _words(self, error: CatalogError) -> str:
        return wording.message(error, self.warehouse)

    # -- pages

    @property
    def page(self) -> dict[str, Any]:
        """``limit`` and ``page_token`` of a list operation. No limit: everything is asked for."""
        token = self.query_values.get("pageToken")
        limit = self.count("pageSize")
        if token is None and limit is None:
            return {"limit": None, "page_token": None}
        return {"limit": min(limit or MAX_PAGE, MAX_PAGE), "page_token": _name_of(token or "")}

    @staticmethod
    def token(last: str | None) -> str | None:
        """The page token that goes on behind this name; opaque, so that nobody builds on it."""
        return base64.urlsafe_b64encode(last.encode()).decode().rstrip("=") if last else None

    # -- the answer

    @staticmethod
    def render(answer: BaseModel | dict[str, Any] | HttpResponse | None) -> HttpResponse:
        if isinstance(answer, HttpResponse):
            return answer
        if answer is None:
            return no_content()
        if isinstance(answer, BaseModel):
            answer = answer.model_dump(by_alias=True, exclude_none=True)
        return HttpResponse(orjson.dumps(answer), content_type=JSON)

    def refuse(self, error: CatalogError) -> HttpResponse:
        if not self.is_batch:
            error.operation = None
        if self.is_commit and isinstance(error, ServiceUnavailable):
            if self._changed_nothing:
                text = f"{self._words(error)}; nothing was changed"
                return self._error(*errors.COMMIT_FAILED, text, errors.RETRY)
            error = OutcomeUnknown(error.message)
        text = wording.complete(error, self._words(error))
        status, content, headers = errors.answer(error, text, self.error_types)
        return self._respond(status, content, headers)

    def fail(self, message: str, detail: str) -> HttpResponse:
        text = f"{message}: {detail}"
        if not self.is_commit:
            return self._error(*errors.INTERNAL, text)
        if self._changed_nothing:
            return self._error(*errors.COMMIT_FAILED, f"{text}; nothing was changed")
        return self._error(*errors.COMMIT_STATE_UNKNOWN, text)

    @property
    def _changed_nothing(self) -> bool:
        """Whether surely neither this request nor another one with its key changed anything.

        A client removes the files of a commit that surely failed. So before its key was looked up,
        nothing is sure of a request that may come again because the first answer was lost. Later
        it is: such an answer is noted before it is sent.
        """
        if self.actor is not None and self.actor.progress.committed:
            return False
        has_key = self.is_idempotent and "HTTP_IDEMPOTENCY_KEY" in self.request.META
        return self._is_first or not has_key

    def _error(
        self, status: int, kind: str, text: str, headers: dict[str, str] | None = None
    ) -> HttpResponse:
        return self._respond(status, errors.body(status, kind, text), headers)

    def _respond(
        self, status: int, content: bytes, headers: dict[str, str] | None = None
    ) -> HttpResponse:
        if self.request.method == "HEAD":
            content = b""
        return HttpResponse(content, status=status, content_type=JSON, headers=headers)


def _kept_headers(response: HttpResponse) -> dict[str, str]:
    return {name: response[name] for name in _KEPT_HEADERS if name in response}


def no_content() -> HttpResponse:
    response = HttpResponse(status=HTTPStatus.NO_CONTENT)
    del response["Content-Type"]
    return response


def _name_of(token: str) -> str | None:
    """The name behind which a page begins. Raises InvalidInput for what is no token of ours."""
    try:
        padded = token + "=" * (-len(token) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode() or None
    except (binascii.Error, ValueError):
        raise InvalidInput(f"Query parameter 'pageToken' is {token!r}, which is no token") from None
