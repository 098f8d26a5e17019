"""What explanations and previews of grants consist of: holders with their sources, and losses."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from catalog.models import Principal
from catalog.privileges import Privilege

Because = Literal["level", "superuser", "owner", "grant"]


@dataclass(frozen=True, slots=True)
class Source:
    """One source of privileges."""

    because: Because
    privileges: Privilege
    on: str = ""
    """The namespace or table that is owned or granted on; empty for a level, which holds everywhere."""
    is_here: bool = False
    """True if that is the requested namespace or table, False if it is a namespace above it."""
    through: str = ""
    """The group that holds the privileges; empty: the principal itself."""
    expires_at: datetime | None = None
    """The end of a grant; None: no end."""

    def __str__(self) -> str:
        where = f" of {self.on}" if self.because == "owner" else f" on {self.on}" if self.on else ""
        through = f", through {self.through}" if self.through else ""
        until = f", until {self.expires_at:%Y-%m-%d %H:%M} UTC" if self.expires_at else ""
        return f"{self.because}{where}{through}{until}"


@dataclass(frozen=True, slots=True)
class KeyLimit:
    """The privileges that one of a principal's keys permits on a namespace or table."""

    name: str
    privileges: Privilege
    scopes: Privilege
    """The most that the key permits."""
    within: str | None
    """The namespace to which it is limited; None: no limit."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The privileges of a principal on a namespace or table, with their sources."""

    principal: Principal
    held: Privilege
    is_active: bool
    """False: the principal holds no privileges, regardless of the sources."""
    sources: list[Source] = field(default_factory=list)
    keys: list[KeyLimit] = field(default_factory=list)
    """Of others, only keys that permit something here, unless the actor manages everything."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The privileges that a principal would lose by a change of a grant, given its other sources."""

    principal: Principal
    before: Privilege
    """The privileges that it holds now."""
    after: Privilege
    namespaces: int
    """The number of namespaces that it would no longer see: here, below and above."""
    tables: int
    """The number of tables and views that it would no longer see."""

    @property
    def lost(self) -> Privilege:
        return self.before & ~self.after
