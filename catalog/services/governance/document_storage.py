"""Storage profiles in governance documents: without secrets, which come from the environment.

An entry may name an environment variable of the process that applies the document:

    storage_profiles:
    - {name: lake, kind: s3, roots: ["s3://lake/tables"], region: eu-central-1, identity: key,
       key_id: AKIA…, secret_from: env:MONODON_STORAGE_LAKE}

Only variables with the prefix MONODON_STORAGE_ are read: otherwise a document could make a secret of the
server the key of a profile, which may be given to clients.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from catalog import access
from catalog.errors import InvalidInput, StorageProfileNotFound
from catalog.models import StorageProfile
from catalog.services.governance.document_format import NamespacePart, StorageProfilePart
from catalog.services.storage import profile_operations, profiles
from catalog.storage.configuration import Key

_SOURCE = re.compile(r"env:(MONODON_STORAGE_[A-Z0-9_]{1,100})")


class ProfileChange(NamedTuple):
    """One difference between an entry and a profile; never with a secret."""

    target: str
    aspect: str
    before: Any
    after: Any
    call: Callable[[access.Principal], object]


def storage_entry(row: StorageProfile) -> dict[str, Any]:
    """A profile as an entry of a document, without its secret."""
    values = {
        name: list(value) if isinstance(value, list) else value
        for name in profile_operations.FIELDS
        if (value := getattr(row, name)) != ""
    }
    return {"name": row.name, **values} | ({"key_id": row.key_id} if row.key_id else {})


def plan_profiles(entries: Iterable[StorageProfilePart]) -> Iterator[ProfileChange]:
    """The differences between entries and profiles.

    Raises InvalidInput for a key without a source, and for a source that cannot be read.
    """
    for entry in entries:
        row = StorageProfile.objects.filter(name=entry.name).first()
        values = entry.model_dump(
            mode="json", exclude={"name", "key_id", "secret_from", "token_from"}, exclude_none=True
        )
        key = _key(entry, row)
        yield from _creation(entry, values, key) if row is None else _update(row, values, key)


def require_profiles(
    namespaces: Iterable[NamespacePart], entries: Iterable[StorageProfilePart]
) -> None:
    """Refuse bindings to profiles that neither exist nor are in the document.

    Raises StorageProfileNotFound.
    """
    names = {entry.storage_profile for entry in namespaces if entry.storage_profile}
    names -= {entry.name for entry in entries}
    if names:
        names -= set(StorageProfile.objects.filter(name__in=names).values_list("name", flat=True))
    if names:
        raise StorageProfileNotFound(min(names))


def _creation(
    entry: StorageProfilePart, values: dict[str, Any], key: Key | None
) -> Iterator[ProfileChange]:
    for name in ("kind", "roots"):
        if name not in values:
            raise InvalidInput(
                f"Storage profile '{entry.name}' does not exist; set {name} to create it"
            )
    yield ProfileChange(
        entry.name,
        "storage profile",
        None,
        values | ({"key_id": key.id} if key is not None else {}),
        lambda actor: profile_operations.create_profile(
            actor=actor, name=entry.name, key=key, **values
        ),
    )


def _update(
    row: StorageProfile, values: dict[str, Any], key: Key | None
) -> Iterator[ProfileChange]:
    changed = {name: value for name, value in values.items() if getattr(row, name) != value}
    before: dict[str, Any] = {name: getattr(row, name) for name in changed}
    after = dict(changed)
    is_new_key = key is not None and (bool(profiles.key_error(row)) or key != profiles.key_of(row))
    if key is not None and is_new_key:
        before["key_id"], after["key_id"] = row.key_id, f"{key.id} with another secret"
    if not after:
        return
    changes = profile_operations.Changes(**changed, key=key if is_new_key else None)
    yield ProfileChange(
        row.name,
        "storage profile",
        before,
        after,
        lambda actor: profile_operations.update_profile(
            actor=actor, name=row.name, changes=changes
        ),
    )


def _key(entry: StorageProfilePart, row: StorageProfile | None) -> Key | None:
    """The key of an entry; None if it leaves the key as it is."""
    current_id = row.key_id if row is not None else ""
    if entry.secret_from is None:
        if entry.token_from is not None or (entry.key_id or "") not in {"", current_id}:
            raise InvalidInput(
                f"Storage profile '{entry.name}' has a key without its secret;"
                " add secret_from: env:MONODON_STORAGE_..."
            )
        return None
    return Key(
        id=current_id if entry.key_id is None else entry.key_id,
        secret=_read(entry.name, "secret_from", entry.secret_from),
        token=_read(entry.name, "token_from", entry.token_from) if entry.token_from else "",
    )


def _read(profile: str, field: str, source: str) -> str:
    match = _SOURCE.fullmatch(source)
    if match is None:
        # Without the value: somebody may have written the secret itself.
        raise InvalidInput(
            f"Storage profile '{profile}': {field} is no source of a secret;"
            " use env: and a variable whose name begins with MONODON_STORAGE_"
        )
    if match[1] not in os.environ:
        raise InvalidInput(
            f"Storage profile '{profile}': {field} names {match[1]}, which is not set in the"
            " environment of this process"
        )
    return os.environ[match[1]]
