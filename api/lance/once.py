"""Operations on rows of Lance tables that accept an Idempotency-Key, and are executed once per key."""

from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any, ClassVar

from django.http import HttpResponse
from pydantic import BaseModel

from api.lance.operation import LanceOperation
from catalog.access import IdempotencyKey, Principal
from catalog.errors import CatalogError, CommitConflict
from catalog.models import IdempotencyRecord
from catalog.services.engine import idempotency

_FINAL = {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}
"""Refusals that are repeated for the same request. Others may not recur with other credentials or
later."""


class OnceOperation(LanceOperation):
    """An operation whose requests can be repeated without repeating the change.

    The change records the key in its transaction (``catalog.services.engine.idempotency``). A repeated
    request gets the recorded answer. Another request with the same key is refused.
    """

    is_idempotent: ClassVar[bool] = True

    def replay(self, change: Mapping[str, Any], transaction_id: str) -> BaseModel:
        """The answer to a committed change whose answer was lost, built from its transaction."""
        raise NotImplementedError

    def kept_content(self, response: HttpResponse) -> bytes:
        """The content of an answer that repeated requests get."""
        return response.content

    def renewed(self, actor: Principal, response: HttpResponse) -> HttpResponse:
        """A noted answer as a repeated request gets it."""
        return response

    def perform(self, actor: Principal, path: dict[str, str]) -> HttpResponse:
        text = self.request.META.get("HTTP_IDEMPOTENCY_KEY")
        if text is None:
            return super().perform(actor, path)
        self.actor = actor = replace(actor, idempotency=self._key(text))
        record = idempotency.find(actor)
        if record is not None:
            return self._repeat(actor, record)
        try:
            response = super().perform(actor, path)
        except Exception as error:  # noqa: BLE001 -- any refusal may have to be noted
            return self._refused(actor, error)
        return self._keep(actor, response)

    def _key(self, text: str) -> IdempotencyKey:
        head = self.request_head()
        body = self.digested_body()
        return IdempotencyKey(
            idempotency.read_any_key(text), lambda: idempotency.fingerprint_of(*head, body())
        )

    def _refused(self, actor: Principal, error: Exception) -> HttpResponse:
        if idempotency.lost_race(error):
            record = idempotency.find(actor)
            if record is None:
                raise error
            return self._repeat(actor, record)
        refusal = self.failed(error)
        is_final = (
            isinstance(error, CatalogError)
            and not isinstance(error, CommitConflict)
            and refusal.status_code in _FINAL
            and not self.is_spoiled
        )
        if not is_final:
            return refusal
        record = idempotency.keep_refusal(
            actor, status=refusal.status_code, content=refusal.content, headers=_headers(refusal)
        )
        return refusal if record is None else self._repeat(actor, record)

    def _repeat(self, actor: Principal, record: IdempotencyRecord) -> HttpResponse:
        if record.status is not None:
            noted = HttpResponse(
                bytes(record.content or b""), status=record.status, headers=record.headers
            )
            return self.renewed(actor, noted)
        change = idempotency.change_of(record)
        response = self._render(self.replay(change, str(record.transaction_id)))
        return self.renewed(actor, self._keep(actor, response))

    def _keep(self, actor: Principal, response: HttpResponse) -> HttpResponse:
        content = self.kept_content(response)
        idempotency.keep_answer(
            actor,
            status=response.status_code,
            content=content if len(content) <= idempotency.MAX_KEPT_BYTES else None,
            headers=_headers(response),
        )
        return response


def _headers(response: HttpResponse) -> dict[str, str]:
    return {"Content-Type": response["Content-Type"]}
