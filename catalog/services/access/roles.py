"""Roles: named sets of privileges, for forms that grant privileges."""

from dataclasses import dataclass

from catalog.privileges import Privilege, closure


@dataclass(frozen=True)
class Role:
    key: str
    privileges: Privilege
    """Including the privileges that they imply."""
    description: str

    @property
    def title(self) -> str:
        return self.key.capitalize()


def _role(key: str, privileges: Privilege, description: str) -> Role:
    return Role(key, closure(privileges), description)


BROWSER = _role("browser", Privilege.BROWSE, "see names, descriptions, labels and owners")
ROLES = (
    BROWSER,
    _role("reader", Privilege.READ, "also read schemas and data"),
    _role("editor", Privilege.WRITE | Privilege.CREATE, "also commit changes and create objects"),
    _role("maintainer", Privilege.READ | Privilege.MAINTAIN, "read, and run maintenance"),
    _role(
        "steward",
        Privilege.MANAGE,
        "what editors and maintainers do, and rename, drop, describe and protect",
    ),
    _role("owner", Privilege.ALL, "everything, including granting privileges to others"),
)
"""From the least to the most privileges; an editor and a maintainer differ."""


def find_role(key: str) -> Role | None:
    return next((role for role in ROLES if role.key == key), None)


def name_of(privileges: Privilege) -> str:
    """The name of the role with exactly these privileges; empty if there is none."""
    return next((role.key for role in ROLES if role.privileges == privileges), "")
