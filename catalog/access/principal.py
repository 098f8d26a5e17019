"""The principal of a request, and what it may use at most."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from catalog.privileges import NOTHING, Privilege


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """The key under which a request may change the catalog once; its change notes it."""

    key: uuid.UUID
    digest: Callable[[], str]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the request, so that a key is not taken for two requests.

        A body that is streamed is read to its end for it.
        """
        return self.digest()


@dataclass(slots=True)
class Progress:
    """How far a request has come."""

    committed: bool = False
    """Whether something stands already that a later failure does not undo."""


@dataclass(frozen=True)
class Principal:
    """Who asks, and through which request."""

    name: str
    everywhere: Privilege = NOTHING
    """What its level, not a grant, lets it do; with ``within`` only there."""
    request_id: str = ""
    context: Mapping[str, str] = field(default_factory=dict)
    idempotency: IdempotencyKey | None = None
    progress: Progress = field(default_factory=Progress, compare=False, repr=False)
    ids: tuple[int, ...] = ()
    """The rows (``models.Principal``) of itself and its groups."""
    groups: tuple[str, ...] = ()
    """The names of its groups, which may own things."""
    ceiling: Privilege = Privilege.ALL
    """What its key lets it use at most."""
    within: int | None = None
    """The namespace that its key is for, with all below."""
    tables: tuple[int, ...] = ()
    """Tables that it may do everything with: a job its own."""
    interface: str = ""
    """Through what it came: lance, iceberg, management, admin, job, command."""
    key: str = ""
    """The name of the API key that it presented; of an issuer's token, the client's."""
    ends_at: datetime | None = None
    """When the key or the token ends that it came in with; None: never."""
    is_vouched_for: bool = False
    """Whether it came in with an issuer's token."""
    job_kind: str = field(default="", compare=False)
    """Of a running job that comes with its token: what it does."""

    @property
    def names(self) -> tuple[str, ...]:
        """What it may be called as an owner: whoever is no principal, or no active one, owns nothing."""
        return (self.name, *self.groups) if self.ids else ()

    @property
    def narrowed_name(self) -> str:
        """Its name with what it came in with: the same for all keys that let it do the same.

        No principal is called so, since a name has one colon at most.
        """
        if self.ceiling == Privilege.ALL and self.within is None and not self.tables:
            return self.name
        tables = ",".join(map(str, self.tables))
        return f"{self.name}:{self.ceiling.value}:{self.within or ''}:{tables}"

    def holds_everywhere(self, privilege: Privilege) -> bool:
        return privilege in self.everywhere and self.within is None

    def through(self, **request: Any) -> "Principal":
        """The same with these facts of a request: as ``replace``, for what every request needs."""
        found = object.__new__(Principal)
        found.__dict__.update(self.__dict__, **request)
        return found


SYSTEM = Principal("system", Privilege.ALL, interface="system")
"""The catalog itself: jobs, the scheduler, migrations."""
COMMAND = replace(SYSTEM, interface="command")
"""Whoever runs a command in a shell of the server: nobody asks for their name there."""
