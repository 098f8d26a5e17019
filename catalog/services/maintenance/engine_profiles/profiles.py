"""Engine profiles: create, change, describe and delete them.

Only principals with ALL on the whole catalog manage and read profiles: a profile decides on which
cluster jobs run, and how much of it they use. Everyone who may set a policy may choose a profile by its
name.
"""

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, fields
from typing import Any

from django.db import IntegrityError, transaction

from catalog import access, engine_profiles
from catalog.access import Principal
from catalog.engine_profiles import DEFAULT, MAX_PROFILES, EngineKind
from catalog.errors import (
    EngineProfileAlreadyExists,
    EngineProfileInUse,
    EngineProfileNotFound,
    InvalidInput,
)
from catalog.models import EngineProfile
from catalog.privileges import Privilege
from catalog.services.engine import audit_records, locks, processes
from catalog.services.maintenance.engine_profiles import engines, usage
from catalog.services.maintenance.engine_profiles.usage import Usage

PAGE_SIZE, MAX_PAGE = 100, 1000
_FIELDS = ("kind", "master", "cores", "memory", "concurrency", "conf")


@dataclass(frozen=True)
class Changes:
    """Changes of a profile; None: unchanged. ``conf`` replaces all settings."""

    kind: EngineKind | None = None
    master: str | None = None
    cores: int | None = None
    memory: str | None = None
    concurrency: int | None = None
    conf: Mapping[str, str] | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The changed fields."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


def create_profile(
    *,
    actor: Principal,
    name: str,
    kind: EngineKind,
    master: str = "",
    cores: int = 2,
    memory: str = "",
    concurrency: int = 1,
    conf: Mapping[str, str] | None = None,
) -> EngineProfile:
    """Create an engine profile. Requires ALL on everything. Does not contact the cluster.

    Raises InvalidInput, and EngineProfileAlreadyExists.
    """
    access.require(actor, Privilege.ALL)
    engine_profiles.check_name(name)
    row = EngineProfile(
        name=name,
        kind=kind,
        master=master,
        cores=cores,
        memory=memory,
        concurrency=concurrency,
        conf=dict(conf or {}),
        created_by=actor.name,
    )
    engines.check(row)
    if name == DEFAULT:
        raise EngineProfileAlreadyExists(name)
    try:
        with transaction.atomic():
            locks.lock_key("number of engine profiles")
            if EngineProfile.objects.count() >= MAX_PROFILES:
                raise InvalidInput(f"There are {MAX_PROFILES} engine profiles; delete one first")
            row.save(force_insert=True)
            audit_records.record(actor, "engine_profile.create", name, after=_state(row))
    except IntegrityError:
        raise EngineProfileAlreadyExists(name) from None
    return row


def update_profile(*, actor: Principal, name: str, changes: Changes) -> EngineProfile:
    """Change a profile; its version increases. Requires ALL on everything.

    Jobs that wait use the changed profile, and running jobs end on the Spark on which they began. Raises
    EngineProfileNotFound and InvalidInput, also for the built-in profile.
    """
    access.require(actor, Privilege.ALL)
    if not changes.fields:
        raise InvalidInput("The request changes nothing; set at least one field")
    _require_row(name)
    with transaction.atomic():
        before = _locked(name)
        row = copy(before)
        for field, value in changes.fields.items():
            setattr(row, field, dict(value) if field == "conf" else value)
        engines.check(row)
        changed = [field for field in _FIELDS if getattr(before, field) != getattr(row, field)]
        if not changed:
            return before
        row.version = before.version + 1
        row.save()
        audit_records.record(
            actor,
            "engine_profile.update",
            name,
            before={field: getattr(before, field) for field in changed},
            after={field: getattr(row, field) for field in changed},
        )
    return row


def delete_profile(*, actor: Principal, name: str) -> None:
    """Delete a profile that no policy and no active job uses. Requires ALL on everything.

    Policies of tables and namespaces in the trash count. Raises EngineProfileNotFound,
    EngineProfileInUse, and InvalidInput for the built-in profile.
    """
    access.require(actor, Privilege.ALL)
    _require_row(name)
    with transaction.atomic():
        row = _locked(name)
        current = usage.of_profile(actor, name)
        if current.is_used:
            raise EngineProfileInUse(name, current.describe())
        audit_records.record(actor, "engine_profile.delete", name, before=_state(row))
        row.delete()


def find_profile(*, actor: Principal, name: str) -> EngineProfile:
    """The profile of this name, also the built-in one, which has no row.

    Requires ALL on everything. Raises EngineProfileNotFound.
    """
    access.require(actor, Privilege.ALL)
    if name == DEFAULT:
        return built_in()
    row = EngineProfile.objects.filter(name=name).first()
    if row is None:
        raise EngineProfileNotFound(name)
    add_problems([row])
    return row


def list_profiles(
    *, actor: Principal, limit: int | None = None, page_token: str | None = None
) -> tuple[list[EngineProfile], str | None]:
    """A page of profiles by name, and the token of the next page. The first page begins with the
    built-in profile. Requires ALL on everything."""
    access.require(actor, Privilege.ALL)
    size = min(limit or PAGE_SIZE, MAX_PAGE)
    # The built-in profile comes before all names.
    first = [] if page_token else [built_in()]
    after = "" if page_token in {None, "", DEFAULT} else page_token
    rows = EngineProfile.objects.filter(name__gt=after or "").order_by("name")
    page = [*first, *rows[: size + 1]][: size + 1]
    add_problems(page)
    return page[:size], page[size - 1].name if len(page) > size else None


def add_problems(rows: Iterable[EngineProfile]) -> None:
    """Set why no running worker can use each of the profiles. One statement."""
    reasons = processes.missing_for_profiles()
    for row in rows:
        row.problem = reasons.get(row.name, "")


def usage_of(*, actor: Principal, name: str) -> Usage:
    """What uses a profile. Requires ALL on everything. Raises EngineProfileNotFound."""
    find_profile(actor=actor, name=name)
    return usage.of_profile(actor, name)


def names() -> list[str]:
    """The names of all profiles, the built-in one first."""
    return [DEFAULT, *EngineProfile.objects.order_by("name").values_list("name", flat=True)]


def usable_names() -> list[str]:
    """The names of the profiles that running workers can use, the built-in one first."""
    missing = processes.missing_for_profiles()
    return [name for name in names() if name not in missing]


def built_in() -> EngineProfile:
    """The profile that the settings of the server describe, as a row that is not stored."""
    engine = engines.default_engine()
    kind = engine.kind
    row = EngineProfile(
        name=DEFAULT,
        kind=kind.value if kind is not None else "",
        master=engine.master,
        cores=engine.cores,
        memory=engine.memory,
        concurrency=0,
        version=0,
    )
    # Otherwise the default of the database, which applies to stored rows.
    row.created_at = None  # type: ignore[assignment]
    return row


def _require_row(name: str) -> None:
    if name == DEFAULT:
        raise InvalidInput(
            f"Engine profile '{DEFAULT}' is described by the settings of the server; change"
            " SPARK_MASTER and MONODON_SPARK_… there"
        )


def _locked(name: str) -> EngineProfile:
    row = locks.lock_engine_profile(name)
    if row is None:
        raise EngineProfileNotFound(name)
    return row


def _state(row: EngineProfile) -> dict[str, Any]:
    return {**{field: getattr(row, field) for field in _FIELDS}, "version": row.version}
