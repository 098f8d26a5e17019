"""Rows of the audit trail, written inside the transaction of the change that they describe.

Refusals are written elsewhere: ``catalog.services.audit.refusals``.
"""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from catalog.access import Principal
from catalog.models import AuditEvent, Table
from catalog.services.engine.statements import Record, insert_together

MASK = "***"
"""The text that replaces a secret in the trail."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_WORDS = frozenset(
    (
        *("passwd", "passphrase", "pwd", "token", "tokens", "credential", "credentials"),
        *("authorization", "cookie", "signature", "sig", "apikey", "accesskey", "bearer"),
    )
)
_SECRET_PARTS = ("secret", "password")
_KINDS_OF_KEYS = frozenset(
    ("access", "account", "api", "encryption", "private", "shared", "signing", "sas")
)
_LONGEST_CACHED = 200
_IN_URL = re.compile(
    r"(?<=://)[^/@\s?#]+(?=@)"
    r"|(?<=[?&])((?:[a-z_-]*(?:signature|sig|token|secret|credential|password|key)))=[^&\s#]+",
    re.IGNORECASE,
)


@dataclass(kw_only=True)
class NewEvent(Record):
    """An audit row to be written."""

    model = AuditEvent

    actor: str
    action: str
    target: str
    table_uuid: uuid.UUID | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    context: Mapping[str, str] | None
    request_id: str
    transaction_id: uuid.UUID | None
    interface: str
    key: str


def event(
    actor: Principal,
    action: str,
    target: str,
    *,
    table: Table | None = None,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    transaction_id: uuid.UUID | None = None,
) -> NewEvent:
    """An audit row that is not written yet: the commit engine writes those of a batch together.

    Secrets in its values are masked.
    """
    return NewEvent(
        actor=actor.name,
        action=action,
        target=target,
        table_uuid=table.uuid if table else None,
        before=masked(before),
        after=masked(after),
        context=masked(dict(actor.context)) or None,
        request_id=actor.request_id,
        transaction_id=transaction_id,
        interface=actor.interface,
        key=actor.key,
    )


def record(actor: Principal, action: str, target: str, **details: Any) -> None:
    """Write one audit row; the keyword arguments are those of ``event``."""
    insert_together([event(actor, action, target, **details)])


# --- secrets -------------------------------------------------------------------------------------


def masked(json: Any) -> Any:
    """A JSON value without its secrets.

    Values whose names denote a secret (``s3.secret-access-key``, ``token``, ``password``) become
    MASK, and so do user, password and signatures in a URL. A value without secrets is returned
    unchanged.
    """
    if isinstance(json, dict):
        for name, value in json.items():
            if isinstance(value, dict | list | str) or is_secret(name):
                break
        else:
            return json
        return {
            name: MASK if _is_masked(name, value) else masked(value) for name, value in json.items()
        }
    if isinstance(json, str):
        return _IN_URL.sub(_mask_in_url, json) if "://" in json else json
    return [masked(value) for value in json] if isinstance(json, list) else json


def _is_masked(name: str, value: Any) -> bool:
    return not (value is None or value is True or value is False) and is_secret(name)


def _mask_in_url(match: re.Match[str]) -> str:
    return f"{match[1]}={MASK}" if match[1] else MASK


def is_secret(name: str) -> bool:
    """True if a property, a header or a parameter of this name holds a secret."""
    # Clients may send long names, which the cache would keep in memory.
    return _is_secret_cached(name) if len(name) <= _LONGEST_CACHED else _is_secret(name)


def _is_secret(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    if not _SECRET_WORDS.isdisjoint(words) or any(word in name.lower() for word in _SECRET_PARTS):
        return True
    return any(
        before in _KINDS_OF_KEYS and word in {"key", "keys"} for before, word in pairwise(words)
    )


_is_secret_cached = lru_cache(maxsize=4096)(_is_secret)
