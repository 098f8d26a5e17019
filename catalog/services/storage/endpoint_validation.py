"""URLs of object stores and token services, which the server sends signed requests to.

Only administrators set them. Nevertheless a URL must not lead to the service that gives machines of a
cloud their credentials, nor be readable in two ways. Loopback and private addresses are allowed, because
stores run beside the server and in private networks. Host names are not resolved here: an
administrator, who may change a profile, could also change the address of a name later.
"""

import ipaddress
import re
import socket
from urllib.parse import urlsplit

from catalog.errors import InvalidInput

_MAX = 500
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_PATH = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]+)*")
_METADATA_NAMES = frozenset(
    {"metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal"}
)  # fmt: skip
_METADATA_ADDRESSES = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "fd00:ec2::254",  # AWS
        "fd20:ce::254",  # Google Cloud
        "100.100.100.200",  # Alibaba Cloud
        "168.63.129.16",  # Azure
        "192.0.0.192",  # Oracle Cloud
    )
)


def checked(field: str, url: str) -> str:
    """The URL without a slash at its end; empty stays empty. Raises InvalidInput."""
    if not url:
        return ""
    if "@" in url:
        # Without the URL, which may hold a password.
        raise InvalidInput(f"{field}: it holds a user or a password; set the key of the profile")
    if (
        len(url) > _MAX
        or not (url.isascii() and url.isprintable())
        or set(url) & set(' "%<>\\^`{|}')
    ):
        raise _invalid(field, url, "has characters that URLs have not, or is too long")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _invalid(field, url, "is not a URL") from None
    if parts.scheme not in {"http", "https"}:
        raise _invalid(field, url, "does not begin with http:// or https://")
    if "?" in url or "#" in url:
        raise _invalid(field, url, "has a query or a fragment")
    path = parts.path.removesuffix("/")
    if not _PATH.fullmatch(path):
        raise _invalid(field, url, "has a path with empty, encoded or dotted parts")
    if port == 0 or parts.netloc.endswith(":"):
        raise _invalid(field, url, "has no valid port")
    _check_host(field, url, parts.hostname or "", is_bracketed="[" in parts.netloc)
    return url.removesuffix("/")


def _check_host(field: str, url: str, host: str, *, is_bracketed: bool) -> None:
    address = _address(host)
    if address is None:
        is_numeric = re.fullmatch(r"[0-9]+|0[xX][0-9a-fA-F]*", host.rpartition(".")[2])
        if is_bracketed or is_numeric or not _HOST.fullmatch(host) or len(host) > 253:
            raise _invalid(field, url, "has no host name or plain address")
        if host.lower() in _METADATA_NAMES:
            raise _refused(field, url)
        return
    if not is_bracketed and str(address) != host:
        raise _invalid(field, url, f"spells the address {address} in another way")
    embedded = _embedded(address)
    for candidate in (address, *embedded):
        if (
            candidate.is_link_local
            or candidate.is_multicast
            or candidate.is_unspecified
            or candidate in _METADATA_ADDRESSES
        ):
            raise _refused(field, url)
    if embedded:
        raise _invalid(field, url, "holds an IPv4 address in an IPv6 address")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        # What C libraries take for an address: 2852039166, 0xa9fea9fe, 0251.0376.0251.0376, 169.254.43518
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        return None


def _embedded(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> list[ipaddress.IPv4Address]:
    """The IPv4 addresses that an IPv6 address stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    addresses = [address.ipv4_mapped, address.sixtofour]
    if address.teredo is not None:
        addresses += address.teredo
    number = int(address)
    is_translated = number >> 32 in {0x0064FF9B << 64, 0}  # 64:ff9b::/96, and ::/96
    if is_translated and number > 1:
        addresses.append(ipaddress.IPv4Address(number & 0xFFFF_FFFF))
    return [one_address for one_address in addresses if one_address is not None]


def _refused(field: str, url: str) -> InvalidInput:
    return _invalid(
        field, url, "leads to an address of metadata services, link-local or without one receiver"
    )


def _invalid(field: str, url: str, rule: str) -> InvalidInput:
    shown = url if len(url) <= 200 else f"{url[:200]}…"
    return InvalidInput(f"{field}: {shown!r} {rule}; use a URL such as https://s3.example.com:9000")
