"""Checks of the connection: the endpoint can be reached, and its clock agrees with the server's."""

import ipaddress
import socket
import ssl
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import urllib3

from catalog.services.storage.profile_checks.results import (
    CheckFailed,
    CheckSkipped,
    CheckWarned,
)
from catalog.services.storage.profile_checks.s3_client import endpoint_url, fetch
from catalog.services.storage.profile_checks.trial import Trial
from catalog.storage import object_clients
from catalog.storage.configuration import StoreKind
from catalog.storage.object_locations import bucket_of

_CONNECT_SECONDS = 5.0
MAX_SKEW_SECONDS = 300
_NOTABLE_SKEW_SECONDS = 60
_FIX_ENDPOINT = "Correct the endpoint of the profile."
_FIX_CLOCK = (
    "Synchronize the clock of the server, for example with chrony or systemd-timesyncd; if the server's"
    " clock is right, synchronize that of the store."
)


def store_url(trial: Trial) -> str:
    """URL of the store, without a slash at its end."""
    configuration = trial.configuration
    if configuration.kind == StoreKind.GCS:
        return object_clients.gcs_endpoint(configuration)
    if configuration.kind == StoreKind.ADLS:
        return object_clients.azure_address(configuration, bucket_of(trial.root))[1]
    return endpoint_url(configuration)


def check_endpoint(trial: Trial) -> str:
    """Connect to the endpoint: name resolution, TCP and TLS. Returns how it is connected."""
    url = urlsplit(store_url(trial))
    try:
        host, port = url.hostname, url.port or (443 if url.scheme == "https" else 80)
    except ValueError as error:
        raise CheckFailed(
            f"The endpoint '{url.geturl()}' is not a URL: {error}", _FIX_ENDPOINT
        ) from None
    if url.scheme not in {"http", "https"} or not host:
        raise CheckFailed(
            f"The endpoint '{url.geturl()}' is not a URL that begins with https:// or http://",
            _FIX_ENDPOINT,
        )
    address = _resolve(host, port)
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS) as connection:
            if url.scheme == "http":
                return _require_private(address)
            with trial.tls.wrap_socket(connection, server_hostname=host) as encrypted:
                return f"{host} ({address}), {encrypted.version()}"
    except ssl.SSLCertVerificationError as error:
        raise CheckFailed(
            f"The certificate of {host} is not accepted: {error.verify_message}",
            "Use the name that the certificate is issued for, or add the certificate of its authority to the"
            " system's trust store on every machine that runs Monodon.",
        ) from error
    except ssl.SSLError as error:
        raise CheckFailed(
            f"{host}:{port} does not answer with TLS: {error.reason or error}",
            "If the store serves plain HTTP, write http:// in the endpoint; otherwise correct its port.",
        ) from error
    except TimeoutError as error:
        raise CheckFailed(
            f"{host}:{port} ({address}) does not answer within {_CONNECT_SECONDS:.0f} seconds",
            "Check the firewall or security group between the server and the store, and the port.",
        ) from error
    except OSError as error:
        raise CheckFailed(
            f"{host}:{port} ({address}) refuses the connection: {error.strerror or error}",
            "Check that the store runs and listens on this port, and correct the endpoint of the profile.",
        ) from error


def check_clock(trial: Trial) -> str:
    """Compare the store's clock, from its Date header, with the server's."""
    pool = urllib3.PoolManager(timeout=_CONNECT_SECONDS, retries=False, ssl_context=trial.tls)
    try:
        answer = fetch(pool, "GET", store_url(trial) + "/", {})
    except urllib3.exceptions.HTTPError as error:
        raise CheckFailed(
            f"The endpoint does not answer an HTTP request: {type(error).__name__}", _FIX_ENDPOINT
        ) from error
    received_at = datetime.now(UTC)
    try:
        stated = parsedate_to_datetime(answer.headers.get("date", ""))
    except ValueError:
        raise CheckSkipped("The store does not state its time") from None
    if stated.tzinfo is None:
        stated = stated.replace(tzinfo=UTC)
    skew = (stated - received_at).total_seconds()
    text = f"The clocks differ by {abs(skew):,.0f} seconds; the store is {'ahead' if skew > 0 else 'behind'}"
    if abs(skew) > MAX_SKEW_SECONDS:
        raise CheckFailed(f"{text}. Stores refuse requests with another time", _FIX_CLOCK)
    if abs(skew) > _NOTABLE_SKEW_SECONDS:
        raise CheckWarned(text, _FIX_CLOCK)
    return f"{abs(skew):.0f} seconds apart"


def _resolve(host: str, port: int) -> str:
    """The first address of a host. Raises CheckFailed."""
    try:
        return str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError) as error:
        raise CheckFailed(
            f"The name '{host}' has no address: {getattr(error, 'strerror', None) or error}",
            "Check the spelling of the endpoint, and name resolution on the machine that runs the server.",
        ) from error


def _require_private(address: str) -> str:
    if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return f"{address}, not encrypted"
    raise CheckWarned(
        "Data and signatures travel unencrypted",
        "Use an https:// endpoint unless the network between server, clients and store is trusted.",
    )
