"""The principal of a request, and its limits."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from catalog.privileges import NOTHING, Privilege


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """The key of a request that may change the catalog once; the change records the key."""

    key: uuid.UUID
    digest: Callable[[], str]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the request, which detects a key that is used for two different requests.

        Reads a streamed body to its end.
        """
        return self.digest()


@dataclass(slots=True)
class Progress:
    """The progress of a request."""

    committed: bool = False
    """True once the request has committed a change that a later failure does not undo."""
    is_dry_run: bool = False
    """True while changes are made that will be rolled back."""


def _is_current() -> None:
    """A principal that was looked up for this request."""


@dataclass(frozen=True)
class Principal:
    """The principal on whose behalf a request is executed, with details of the request."""

    name: str
    everywhere: Privilege = NOTHING
    """The privileges of its level, which need no grant; with ``within`` they hold only there."""
    request_id: str = ""
    context: Mapping[str, str] = field(default_factory=dict)
    idempotency: IdempotencyKey | None = None
    progress: Progress = field(default_factory=Progress, compare=False, repr=False)
    ids: tuple[int, ...] = ()
    """The rows (``models.Principal``) of itself and its groups."""
    groups: tuple[str, ...] = ()
    """The names of its groups, which may own things."""
    ceiling: Privilege = Privilege.ALL
    """The most that its key permits."""
    within: int | None = None
    """The namespace to which its key is limited, with everything below it."""
    tables: tuple[int, ...] = ()
    """Tables on which it holds all privileges: that of a job."""
    interface: str = ""
    """The interface of the request: lance, iceberg, management, admin, job, command."""
    key: str = ""
    """The name of the presented API key; for an issuer's token, the name of the client."""
    ends_at: datetime | None = None
    """The expiry of the presented key or token; None: it does not expire."""
    is_vouched_for: bool = False
    """True if it presented a token of an issuer."""
    job_kind: str = field(default="", compare=False)
    """The kind of the running job that presented its token; otherwise empty."""
    job_leaves_out: bool = field(default=False, compare=False)
    """True if the process of this job leaves out the files that the catalog names with the table."""
    confirm: Callable[[], None] = field(default=_is_current, compare=False, repr=False)
    """Called before each commit. Raises CatalogError if a job or a long request has lost its rights meanwhile."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which it owns objects; none unless it is an active principal."""
        return (self.name, *self.groups) if self.ids else ()

    @property
    def narrowed_name(self) -> str:
        """Its name with the limits of its key: the same for all keys with the same limits.

        No principal has such a name, since a name contains at most one colon.
        """
        if self.ceiling == Privilege.ALL and self.within is None and not self.tables:
            return self.name
        tables = ",".join(map(str, self.tables))
        return f"{self.name}:{self.ceiling.value}:{self.within or ''}:{tables}"

    def holds_everywhere(self, privilege: Privilege) -> bool:
        return privilege in self.everywhere and self.within is None

    def through(self, **request: Any) -> "Principal":
        """A copy with these fields of a request. A faster ``replace``, as every request needs it."""
        principal = object.__new__(Principal)
        principal.__dict__.update(self.__dict__, **request)
        return principal


SYSTEM = Principal("system", Privilege.ALL, interface="system")
"""The catalog itself: jobs, the scheduler, migrations."""
COMMAND = replace(SYSTEM, interface="command")
"""A person who runs a command in a shell of the server, where nobody signs in."""
