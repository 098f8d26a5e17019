"""What remains when access is withdrawn."""

from catalog.access import Principal
from catalog.services.access.grant_operations import GrantChange
from catalog.services.audit import issued_credentials
from catalog.services.audit.issued_credentials import RemainingAccess


def after_grant(actor: Principal, change: GrantChange) -> RemainingAccess:
    """The access to files that clients of the principal keep after a change of its grant.

    Nothing if the change withdrew no privilege.
    """
    if not change.withdrawn:
        return RemainingAccess()
    return issued_credentials.remaining_access(change.principal, change.target, actor=actor)
