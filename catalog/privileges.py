"""What somebody may do with a namespace or a table. Pure; grants are ``catalog.models.Grant``."""

from collections.abc import Iterable
from enum import IntFlag

from catalog.errors import InvalidInput


class Privilege(IntFlag):
    """Each includes those that it would be of no use without; see ``closure``."""

    BROWSE = 1
    """See that it exists, what is said of it, and who owns it."""
    READ = 2
    """Load it: its location, schema and rows."""
    WRITE = 4
    """Commit to it."""
    CREATE = 8
    """Make namespaces, tables and views in a namespace."""
    MANAGE = 16
    """Rename, drop and bring back; owner, description, labels, protection; namespace properties."""
    MAINTAIN = 32
    """Say how it is maintained, and start and cancel jobs."""
    GRANT = 64
    """Give privileges to others, and take them."""

    ALL = 127

    @property
    def word(self) -> str:
        """As clients, forms and files spell it: ``read``."""
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
"""Each of them, from the least on; ``Privilege.ALL`` is none of them."""
READ_ONLY = Privilege.BROWSE | Privilege.READ


def closure(privileges: Privilege) -> Privilege:
    """With all that they include."""
    closed = privileges
    # From the strongest down, as what is included comes before what includes it, but for MANAGE.
    for _ in SINGLE:
        for privilege, included in _INCLUDES.items():
            if privilege in closed:
                closed |= included
    return closed


def words(privileges: Privilege) -> list[str]:
    """Each of them, from the least on."""
    return [privilege.word for privilege in SINGLE if privilege in privileges]


def essence(privileges: Privilege) -> list[str]:
    """The fewest words that mean the same: ``["write", "create"]``."""
    return [
        word
        for word in words(privileges)
        if not any(
            word != other and Privilege[word.upper()] in closure(Privilege[other.upper()])
            for other in words(privileges)
        )
    ]


def parse(names: Iterable[str]) -> Privilege:
    """What these words say, without what they include; ``all`` says everything.

    Raises InvalidInput for a word that is none.
    """
    privileges = NOTHING
    for name in names:
        key = name.strip().upper()
        if key not in Privilege.__members__:
            words = ", ".join([privilege.word for privilege in SINGLE] + ["all"])
            raise InvalidInput(f"'{name}' is no privilege; there are {words}")
        privileges |= Privilege[key]
    return privileges
