"""Storage profiles: create, change, describe and delete them, and bind namespaces to them.

Only principals with ALL on the whole catalog manage and read profiles, and bind namespaces: a profile
decides which buckets the server reaches with its own credentials. Others see the name of the profile
of a namespace that they may read (``profile_bindings``).

Secrets are encrypted before they are stored. No function returns them, and the audit trail only records
that the key has changed, with its id. Roots are checked under the lock of locations, which every new
location in an object store takes as well, so no table appears below a root that is being removed.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields
from typing import Any

from django.db import IntegrityError, transaction

from catalog import access
from catalog.access import Principal
from catalog.errors import (
    InvalidInput,
    StorageProfileAlreadyExists,
    StorageProfileInUse,
    StorageProfileNotFound,
)
from catalog.models import Namespace, StorageProfile
from catalog.privileges import Privilege
from catalog.services.engine import audit_records, locks
from catalog.services.storage import profile_usage, profile_validation, profiles
from catalog.services.storage.profile_usage import Impact
from catalog.storage.configuration import ClientAccess, Key, ServerIdentity, StoreKind

PAGE_SIZE, MAX_PAGE = 100, 1000
FIELDS = (
    *("kind", "roots", "region", "endpoint", "sts_endpoint", "path_style", "kms_key", "identity"),
    *("role", "external_id", "client_access", "lifetime_seconds", "conditional_writes"),
)
"""The fields of a profile that requests set, apart from its name and its key."""


@dataclass(frozen=True)
class Changes:
    """Changes of a profile; None: unchanged.

    ``key`` replaces the whole key. With ``identity`` environment, the key is deleted.
    """

    kind: StoreKind | None = None
    roots: Sequence[str] | None = None
    region: str | None = None
    endpoint: str | None = None
    sts_endpoint: str | None = None
    path_style: bool | None = None
    kms_key: str | None = None
    identity: ServerIdentity | None = None
    key: Key | None = None
    role: str | None = None
    external_id: str | None = None
    client_access: ClientAccess | None = None
    lifetime_seconds: int | None = None
    conditional_writes: bool | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The changed fields, apart from the key."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: value for name, value in values.items() if value is not None and name != "key"
        }


def create_profile(
    *,
    actor: Principal,
    name: str,
    kind: StoreKind,
    roots: Sequence[str],
    region: str = "",
    endpoint: str = "",
    sts_endpoint: str = "",
    path_style: bool = False,
    kms_key: str = "",
    identity: ServerIdentity = ServerIdentity.ENVIRONMENT,
    key: Key | None = None,
    role: str = "",
    external_id: str = "",
    client_access: ClientAccess = ClientAccess.NONE,
    lifetime_seconds: int = 3600,
    conditional_writes: bool = True,
) -> StorageProfile:
    """Create a storage profile. Requires ALL on everything. Does not contact the store.

    Raises InvalidInput, and StorageProfileAlreadyExists.
    """
    access.require(actor, Privilege.ALL)
    row = StorageProfile(
        name=name,
        kind=kind,
        roots=_without_slashes(roots),
        region=region,
        endpoint=endpoint,
        sts_endpoint=sts_endpoint,
        path_style=path_style,
        kms_key=kms_key,
        identity=identity,
        role=role,
        external_id=external_id,
        client_access=client_access,
        lifetime_seconds=lifetime_seconds,
        conditional_writes=conditional_writes,
        created_by=actor.name,
    )
    profile_validation.check(row, key)
    _set_key(row, key)
    try:
        with transaction.atomic():
            locks.lock_locations()
            _require_free_roots(row)
            row.save(force_insert=True)
            audit_records.record(actor, "storage_profile.create", name, after=_state(row))
            profiles.discard_cache_and_after_commit()
    except IntegrityError:
        raise StorageProfileAlreadyExists(name) from None
    return row


def update_profile(
    *, actor: Principal, name: str, changes: Changes, confirm: bool = False
) -> StorageProfile:
    """Change a profile; its version increases. Requires ALL on everything.

    Changes that would take the storage of tables away are refused; ``confirm`` permits those that
    only may do so, such as another endpoint (``preview_update``). Raises StorageProfileNotFound,
    InvalidInput, and StorageProfileInUse.
    """
    access.require(actor, Privilege.ALL)
    with transaction.atomic():
        locks.lock_locations()
        before = _locked(name)
        row, key = _changed(before, changes)
        _require_free_roots(row)
        changed = _differences(before, row, changes)
        if not changed:
            return before
        impact = profile_usage.of_change(actor, before, row, changed)
        _require_possible(name, impact, confirm=confirm)
        if key is not None:
            _set_key(row, key)
        row.version = before.version + 1
        row.save()
        audit_records.record(
            actor,
            "storage_profile.update",
            name,
            before=_recorded(changed, 0),
            after=_recorded(changed, 1),
        )
        profiles.discard_cache_and_after_commit()
    return row


def preview_update(*, actor: Principal, name: str, changes: Changes) -> Impact:
    """What a change would mean for tables, namespaces and clients. Changes nothing.

    Raises StorageProfileNotFound, and InvalidInput as ``update_profile``.
    """
    before = find_profile(actor=actor, name=name)
    row, _ = _changed(before, changes)
    _require_free_roots(row)
    return profile_usage.of_change(actor, before, row, _differences(before, row, changes))


def preview_deletion(*, actor: Principal, name: str) -> Impact:
    """What prevents the deletion of a profile. Changes nothing. Raises StorageProfileNotFound."""
    return profile_usage.of_removal(actor, find_profile(actor=actor, name=name))


def rotate_key(*, actor: Principal, name: str, key: Key) -> StorageProfile:
    """Replace the key of a profile that uses one. Requires ALL on everything.

    Raises StorageProfileNotFound and InvalidInput.
    """
    access.require(actor, Privilege.ALL)
    with transaction.atomic():
        row = _locked(name)
        if row.identity == ServerIdentity.ENVIRONMENT:
            raise InvalidInput(
                f"identity: storage profile '{name}' uses the environment and has no key;"
                " set identity key first"
            )
        profile_validation.check_key(key, StoreKind(row.kind), row.roots)
        before = row.key_id
        _set_key(row, key)
        row.version += 1
        row.save(update_fields=["key_id", "secret", "version", "updated_at"])
        changed = {"key": (before, row.key_id)}
        audit_records.record(
            actor,
            "storage_profile.rotate_key",
            name,
            before=_recorded(changed, 0),
            after=_recorded(changed, 1),
        )
        profiles.discard_cache_and_after_commit()
    return row


def delete_profile(*, actor: Principal, name: str) -> None:
    """Delete a profile that no table and no namespace needs. Requires ALL on everything.

    Tables and namespaces in the trash count. Nothing in the store is removed. Raises
    StorageProfileNotFound and StorageProfileInUse.
    """
    access.require(actor, Privilege.ALL)
    with transaction.atomic():
        locks.lock_locations()
        row = _locked(name)
        _require_possible(name, profile_usage.of_removal(actor, row), confirm=True)
        # Rows of namespaces that were dropped for good remain, and still refer to it.
        Namespace.objects.filter(storage_profile=row).update(storage_profile=None)
        audit_records.record(actor, "storage_profile.delete", name, before=_state(row))
        row.delete()
        profiles.discard_cache_and_after_commit()


def find_profile(*, actor: Principal, name: str) -> StorageProfile:
    """The profile of this name. Requires ALL on everything. Raises StorageProfileNotFound."""
    access.require(actor, Privilege.ALL)
    row = StorageProfile.objects.filter(name=name).first()
    if row is None:
        raise StorageProfileNotFound(name)
    return row


def list_profiles(
    *, actor: Principal, limit: int | None = None, page_token: str | None = None
) -> tuple[list[StorageProfile], str | None]:
    """A page of profiles by name, and the token of the next page. Requires ALL on everything."""
    access.require(actor, Privilege.ALL)
    size = min(limit or PAGE_SIZE, MAX_PAGE)
    rows = StorageProfile.objects.filter(name__gt=page_token or "")
    page = list(rows.order_by("name")[: size + 1])
    return page[:size], page[size - 1].name if len(page) > size else None


def list_bound_namespaces(*, actor: Principal, name: str) -> list[Namespace]:
    """The live namespaces that are bound to a profile, by path. Raises StorageProfileNotFound."""
    row = find_profile(actor=actor, name=name)
    return list(Namespace.objects.live().filter(storage_profile=row).order_by("path"))


# --- checks and records ------------------------------------------------------------------------


def _changed(before: StorageProfile, changes: Changes) -> tuple[StorageProfile, Key | None]:
    """A copy of the row with the changes, checked, and the new key, if there is one."""
    if changes == Changes():
        raise InvalidInput("The request changes nothing; set at least one field")
    row = copy(before)
    for name, value in changes.fields.items():
        setattr(row, name, _without_slashes(value) if name == "roots" else value)
    if changes.key is not None:
        profile_validation.check(row, changes.key)
    elif row.identity == ServerIdentity.ENVIRONMENT:
        row.key_id, row.secret = "", None
        profile_validation.check(row, None)
    else:
        profile_validation.check(row, profiles.key_of(row))
    return row, changes.key


def _differences(
    before: StorageProfile, after: StorageProfile, changes: Changes
) -> dict[str, tuple[Any, Any]]:
    """The changed fields with their values before and after. Of a key, only its id."""
    values = {name: (getattr(before, name), getattr(after, name)) for name in FIELDS}
    changed = {name: pair for name, pair in values.items() if pair[0] != pair[1]}
    if changes.key is not None:
        changed["key"] = (before.key_id, changes.key.id)
    elif before.secret is not None and after.secret is None:
        changed["key"] = (before.key_id, "")
    return changed


def _require_free_roots(row: StorageProfile) -> None:
    """Refuse roots that overlap another profile's, which the message does not need to hide."""
    others = StorageProfile.objects.exclude(pk=row.pk).order_by("name")
    for name, roots in others.values_list("name", "roots"):
        for other in roots:
            for root in row.roots:
                if profile_validation.overlaps(root, other):
                    raise InvalidInput(
                        f"roots: '{root}' overlaps root '{other}' of storage profile '{name}';"
                        " use a prefix of its own, or change that profile first"
                    )


def _require_possible(name: str, impact: Impact, *, confirm: bool) -> None:
    if not impact.is_possible:
        raise StorageProfileInUse(
            name,
            "; ".join(impact.obstacles),
            detail="Move, purge or unbind these first. Roots may be added at any time.",
        )
    if impact.needs_confirmation and not confirm:
        raise StorageProfileInUse(
            name,
            "; ".join(impact.warnings),
            detail="Repeat the request with confirm if this is intended.",
        )


def _locked(name: str) -> StorageProfile:
    row = locks.lock_storage_profile(name)
    if row is None:
        raise StorageProfileNotFound(name)
    return row


def _set_key(row: StorageProfile, key: Key | None) -> None:
    row.key_id = key.id if key is not None else ""
    row.secret = profiles.sealed(key.secret, key.token) if key is not None else None


def _without_slashes(roots: Sequence[Any]) -> list[Any]:
    """Roots without one slash at their ends, which people like to write."""
    return [root.removesuffix("/") if isinstance(root, str) else root for root in roots]


def _state(row: StorageProfile) -> dict[str, Any]:
    """The fields of a profile for the audit trail: no secret."""
    values = {name: _plain(getattr(row, name)) for name in FIELDS}
    return {**values, "key_id": row.key_id, "version": row.version}


def _recorded(changed: Mapping[str, tuple[Any, Any]], side: int) -> dict[str, Any]:
    values = {name: _plain(pair[side]) for name, pair in changed.items() if name != "key"}
    if "key" in changed:
        values["key_id"] = changed["key"][side]
        values["has_new_key"] = bool(side)
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return list(value)
    return str(value) if isinstance(value, str) else value
