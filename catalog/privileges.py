"""Privileges on namespaces and tables. Pure functions; grants are ``catalog.models.Grant``."""

from collections.abc import Iterable
from enum import IntFlag

from catalog.errors import InvalidInput


class Privilege(IntFlag):
    """A set of privileges. Each privilege includes those that it depends on; see ``closure``."""

    BROWSE = 1
    """See an object, its annotations and its owner."""
    READ = 2
    """Load a table: its location, schema and rows."""
    WRITE = 4
    """Commit to a table."""
    CREATE = 8
    """Create namespaces, tables and views in a namespace."""
    MANAGE = 16
    """Rename, drop and restore; set owner, description, labels, protection, namespace properties."""
    MAINTAIN = 32
    """Set the maintenance policy, and start and cancel jobs."""
    GRANT = 64
    """Grant privileges to others, and revoke them."""

    ALL = 127

    @property
    def word(self) -> str:
        """The name in requests, forms and files: ``read``."""
        return (self.name or "").lower()


NOTHING = Privilege(0)
_INCLUDES = {
    Privilege.READ: Privilege.BROWSE,
    Privilege.WRITE: Privilege.READ,
    Privilege.CREATE: Privilege.BROWSE,
    Privilege.MANAGE: Privilege.WRITE | Privilege.CREATE | Privilege.MAINTAIN,
    Privilege.MAINTAIN: Privilege.BROWSE,
    Privilege.GRANT: Privilege.BROWSE,
}
SINGLE = tuple(Privilege)
"""The single privileges, weakest first, without ``Privilege.ALL``."""
READ_ONLY = Privilege.BROWSE | Privilege.READ


def closure(privileges: Privilege) -> Privilege:
    """The privileges with all privileges that they include."""
    closed = privileges
    # Repeated, because an included privilege may include others.
    for _ in SINGLE:
        for privilege, included in _INCLUDES.items():
            if privilege in closed:
                closed |= included
    return closed


def words(privileges: Privilege) -> list[str]:
    """The names of the single privileges, weakest first."""
    return [privilege.word for privilege in SINGLE if privilege in privileges]


def essence(privileges: Privilege) -> list[str]:
    """The fewest names that imply the same privileges: ``["write", "create"]``."""
    return [
        word
        for word in words(privileges)
        if not any(
            word != other and Privilege[word.upper()] in closure(Privilege[other.upper()])
            for other in words(privileges)
        )
    ]


def parse(names: Iterable[str]) -> Privilege:
    """The privileges with these names, without included ones; ``all`` stands for all privileges.

    Raises InvalidInput for an unknown name.
    """
    privileges = NOTHING
    for name in names:
        key = name.strip().upper()
        if key not in Privilege.__members__:
            words = ", ".join([privilege.word for privilege in SINGLE] + ["all"])
            raise InvalidInput(f"'{name}' is no privilege; there are {words}")
        privileges |= Privilege[key]
    return privileges
