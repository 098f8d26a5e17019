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

    ``handle(actor, body, **path)`` gets the parameters of the path as in the URL
    (``namespace``, ``table``, ``view``, ``function``, ``plan_id``; see ``identify``) and returns

    - a dict: 200 with this JSON,
    - a model: the same, with the names of its aliases,
    - an HttpResponse: sent unchanged,
    - None: 204.
    """

    interface = Interface.ICEBERG
    request_model: ClassVar[type[BaseModel] | str | None] = None
    """The model that validates the body. A name: the specification's schema of a body that remains
    a dict. None: no body is read."""
    response_model: ClassVar[type[BaseModel] | str | None] = None
    """The same for the answer, for the OpenAPI document. None: 204 without a body."""
    request_headers: ClassVar[tuple[str, ...]] = ()
    """The request headers of the operation, in addition to those of every operation."""
    is_commit: ClassVar[bool] = False
    """True if clients interpret any 5xx as an unknown outcome. A definite failure is then a 409."""
    is_idempotent: ClassVar[bool] = False
    """True if it accepts an Idempotency-Key."""
    is_batch: ClassVar[bool] = False
    """True if refusals name the index of the failing operation."""
    error_types: ClassVar[Mapping[type[CatalogError], str]] = {}
    """Types of refusals that clients expect of this operation, instead of the usual ones."""

    def _no_content(self, actor: Principal, body: Any, **path: str) -> None:
        return None

    replay: Callable[..., Any] = _no_content
    """``replay(actor, body, **path)``: the answer to a change that is committed already, if its
    answer was not stored. Built from the current state, in the form of the results of ``handle``."""

    warehouse: Identifier = ()
    """The namespace that the prefix names; everything in the request is relative to it."""
    _is_first: bool = False
    """True if no result is stored under the request's Idempotency-Key, so the request is executed."""

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

    # -- idempotency

    def _perform_once(
        self, actor: Principal, text: str, body: dict[str, Any] | None, path: dict[str, str]
    ) -> HttpResponse:
        """Execute a request with an Idempotency-Key, or return its former result."""
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
        except Exception as error:  # any failure of a commit may have to be recorded
            if idempotency.lost_race(error):
                self._is_first = False
                record = idempotency.find(actor)
                if record is None:
                    raise
                return self._repeat(record, actor, body, path)
            refusal = self.failed(error)
            if not self._is_final(error, refusal):
                return refusal
            self._is_first = False  # possibly refused because of a concurrent request with the key
            record = idempotency.keep_refusal(
                actor,
                status=refusal.status_code,
                content=refusal.content,
                headers=_kept_headers(refusal),
            )
            return refusal if record is None else self._repeat(record, actor, body, path)
        return self._keep(actor, response)

    def _is_final(self, error: Exception, refusal: HttpResponse) -> bool:
        """True if the same request must get the same refusal again.

        After such an answer, a client removes the files of its commit. A proxy may have sent the
        request twice, and the other one may still be running: it cannot commit once the refusal is
        recorded. The next attempt of the client has another key.
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
            # The table may have been renamed, which is no reason to remove the commit's files.
            text = f"The commit was made, and its answer is gone: {self._words(error)}"
            raise OutcomeUnknown(text) from error
        return self._keep(actor, response)

    @staticmethod
    def _keep(actor: Principal, response: HttpResponse) -> HttpResponse:
        if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return response
        # The client may not accept gzip the next time, and may need new credentials.
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
        """The identifier for the levels in a body. Raises InvalidIdentifier."""
        parts = namespace if name is None else (*namespace, name)
        return (*self.warehouse, *identifiers.check(parts))

    def relative(self, identifier: Identifier) -> list[str]:
        """An identifier relative to this request's warehouse."""
        return list(identifier[len(self.warehouse) :])

    def _words(self, error: CatalogError) -> str:
        return wording.message(error, self.warehouse)

    # -- pages

    @property
    def page(self) -> dict[str, Any]:
        """``limit`` and ``page_token`` of a list operation. Without a limit, all entries are
        requested."""
        token = self.query_values.get("pageToken")
        limit = self.count("pageSize")
        if token is None and limit is None:
            return {"limit": None, "page_token": None}
        return {"limit": min(limit or MAX_PAGE, MAX_PAGE), "page_token": _name_of(token or "")}

    @staticmethod
    def token(last: str | None) -> str | None:
        """The page token for the page after this name. It is opaque, so that clients do not depend
        on its form."""
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
        """True if definitely neither this request nor another one with its key changed anything.

        A client removes the files of a commit that definitely failed. A request may be a repetition
        whose first answer was lost, so its failure is not definite before its key was looked up.
        Afterwards it is, because such an answer is recorded before it is sent.
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
    """The name after which a page begins. Raises InvalidInput for an invalid token."""
    try:
        padded = token + "=" * (-len(token) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode() or None
    except (binascii.Error, ValueError):
        raise InvalidInput(f"Query parameter 'pageToken' is {token!r}, which is no token") from None
