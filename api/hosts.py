"""Check of the host name (ALLOWED_HOSTS), which takes one lookup per request.

Health and metrics accept any host, because probes use the address of a process, which is not known in
advance. For the pages of the admin and the documents, Django checks the host.
"""

from functools import lru_cache

from django.conf import settings
from django.http import HttpRequest
from django.http.request import split_domain_port, validate_host

from catalog.errors import InvalidInput

_LONGEST = 300


def check_host(request: HttpRequest) -> None:
    """Raise InvalidInput for a Host header that names no allowed host."""
    host = request.META.get("HTTP_HOST")
    if host is not None and not is_allowed(host):
        raise InvalidInput(
            f"Host {host[:100]!r} is not one of this server",
            detail="MONODON_PUBLIC_URL and MONODON_ALLOWED_HOSTS say which are.",
        )


def is_allowed(host: str | None) -> bool:
    """True for a Host header that names an allowed host, and without one."""
    return host is None or _is_allowed(host[:_LONGEST], tuple(settings.ALLOWED_HOSTS))


@lru_cache(maxsize=256)
def _is_allowed(host: str, allowed: tuple[str, ...]) -> bool:
    domain, _port = split_domain_port(host)
    return bool(domain) and validate_host(domain, allowed)
