"""The key with which the server acts at a store of kind S3."""

from botocore.session import get_session

from catalog.storage.configuration import Key, ServerIdentity, StoreConfiguration
from catalog.storage.stores import AccessDenied


def server_key(configuration: StoreConfiguration) -> Key:
    """The key of the profile, or of the server's environment. Raises AccessDenied if there is none."""
    if configuration.identity is ServerIdentity.KEY:
        if configuration.key is None:
            raise AccessDenied(configuration.profile, "the profile has no key")
        return configuration.key
    credentials = get_session().get_credentials()
    if credentials is None:
        raise AccessDenied(configuration.profile, "the server's environment has no credentials")
    frozen = credentials.get_frozen_credentials()
    return Key(frozen.access_key, frozen.secret_key, frozen.token or "")
