"""Which host names the server answers to (ALLOWED_HOSTS), at the price of one look-up a request.

Health and figures are answered whatever the host: probes reach a process by its address, which nobody
can list beforehand. The pages of the admin and the documents leave it to Django.
"""

from functools import lru_cache

from django.conf import settings
from django.http import HttpRequest
from django.http.request import split_domain_port, validate_host

from catalog.errors import InvalidInput

_LONGEST = 300


def check_host(request: HttpRequest) -> None:
    """Raises InvalidInput for a Host header that names none of the allowed hosts."""
    host = request.META.get("HTTP_HOST")
    if host is not None and not _is_allowed(host[:_LONGEST], tuple(settings.ALLOWED_HOSTS)):
        raise InvalidInput(
            f"Host {host[:100]!r} is not one of this server",
            detail="MONODON_PUBLIC_URL and MONODON_ALLOWED_HOSTS say which are.",
        )


@lru_cache(maxsize=256)
def _is_allowed(host: str, allowed: tuple[str, ...]) -> bool:
    domain, _port = split_domain_port(host)
    return bool(domain) and validate_host(domain, allowed)
