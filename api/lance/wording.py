"""The wording of refusals in the Lance protocol.

Clients decide by the code. This module has the few messages that the reference's own tests match. All
other refusals have the plain message of ``catalog.errors``.
"""

from catalog import errors
from catalog.errors import LocationFault

_PLAIN = "Location {location!r} {cause}."

LOCATIONS: dict[LocationFault, str] = {
    LocationFault.SCHEME: f"{_PLAIN} Absolute URIs are not allowed, except file:///",
    LocationFault.OUTSIDE: f"{_PLAIN} Absolute paths are not allowed, except below these directories",
    LocationFault.OUTSIDE_PROFILES: (
        f"{_PLAIN} Absolute URIs are not allowed, except below the location of the namespace"
    ),
    LocationFault.TRAVERSAL: f"{_PLAIN} Path traversal is not allowed",
}
"""The reference server accepts only relative locations. Its tests match the words in the middle."""


def message(error: errors.CatalogError) -> str:
    """The message of a refusal.

    Clients show the message only. So it ends with the detail if that names the object which was meant.
    """
    template = LOCATIONS.get(error.fault) if isinstance(error, errors.InvalidLocation) else None
    text = error.worded(errors.label, template)
    if isinstance(error, (errors.NamespaceNotFound, errors.TableNotFound)) and error.detail:
        return f"{text}. {error.detail}"
    return text
