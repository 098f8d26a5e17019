"""How long clients may still write with credentials that have expired.

Google's sessions of resumable uploads need no token: whoever began one within the lifetime of its credentials
completes it within a week, and gives the object its name at the beginning.
"""

from datetime import timedelta

from catalog.storage.configuration import StoreConfiguration, StoreKind

_AFTER_EXPIRY = {StoreKind.GCS: timedelta(days=7)}


def after_expiry(configuration: StoreConfiguration) -> timedelta:
    """The time after the end of credentials until nothing more is written with them."""
    return _AFTER_EXPIRY.get(configuration.kind, timedelta(0))
