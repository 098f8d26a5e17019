"""The sign-in of a person with a code (RFC 8628)."""

import time
from dataclasses import dataclass, field

from monodon.sign_on.errors import SignOnFailed, SignOnRefused, SignOnUnavailable
from monodon.sign_on.issuer import DeviceClient, Issuer, is_text, reason, seconds
from monodon.sign_on.requests import require_safe
from monodon.sign_on.tokens import Tokens, tokens_of

_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_DEFAULT_INTERVAL, _SLOWER = 5.0, 5.0
_LEAST_INTERVAL, _MOST_INTERVAL = 1.0, 60.0
_LONGEST_SECONDS = 1800.0
"""The longest time to wait for a person, whatever the issuer allows."""
_LONGEST_CODE = 100
_DENIED = {"access_denied", "authorization_declined"}  # the latter is Entra's


@dataclass(frozen=True)
class Authorization:
    """A started sign-in. Times are in seconds."""

    device_code: str = field(repr=False)
    user_code: str
    verification_uri: str
    verification_uri_complete: str | None
    """The address with the code in it, if the issuer has one."""
    expires_in: float
    interval: float


def start(issuer: Issuer, client: DeviceClient) -> Authorization:
    """Start a sign-in. Raises SignOnFailed, SignOnUnavailable."""
    endpoint = "device_authorization_endpoint"
    if issuer.endpoint(endpoint) is None:
        raise SignOnFailed(
            f"Your identity provider, {issuer.url}, offers no device sign-in; use a key: monodon login"
            " --ask-key"
        )
    status, content = issuer.post(endpoint, {"client_id": client.client_id, "scope": client.scope})
    if status != 200:
        raise SignOnFailed(f"{issuer.url} refused to start a sign-in: {reason(status, content)}")
    device_code, user_code = content.get("device_code"), content.get("user_code")
    expires_in = seconds(content.get("expires_in"))
    if not (isinstance(device_code, str) and device_code and is_text(user_code) and expires_in):
        raise SignOnFailed(f"{issuer.url} answered without a valid code")
    if len(str(user_code)) > _LONGEST_CODE:
        raise SignOnFailed(f"{issuer.url} answered with a code that is too long")
    uri, complete = content.get("verification_uri"), content.get("verification_uri_complete")
    interval = seconds(content.get("interval")) or _DEFAULT_INTERVAL
    return Authorization(
        device_code=device_code,
        user_code=str(user_code),
        verification_uri=require_safe(uri, "The address for the sign-in"),
        verification_uri_complete=(
            None if complete is None else require_safe(complete, "The address for the sign-in")
        ),
        expires_in=min(expires_in, _LONGEST_SECONDS),
        interval=min(max(interval, _LEAST_INTERVAL), _MOST_INTERVAL),
    )


def wait(issuer: Issuer, client: DeviceClient, authorization: Authorization) -> Tokens:
    """Wait until the person has signed in.

    Raises SignOnRefused if the person refuses or the code expires, and SignOnFailed.
    """
    deadline = time.monotonic() + authorization.expires_in
    interval = authorization.interval
    form = {
        "grant_type": _GRANT,
        "device_code": authorization.device_code,
        "client_id": client.client_id,
    }
    while (remaining := deadline - time.monotonic()) > 0:
        time.sleep(min(interval, remaining))
        try:
            status, content = issuer.post("token_endpoint", form)
        except SignOnUnavailable:  # section 3.5: repeat the request, less often
            status, content = 503, {}
        error = content.get("error")
        if status == 200:
            return tokens_of(issuer.url, content)
        if error in _DENIED:
            raise SignOnRefused("The sign-in was refused")
        if error == "expired_token":
            break
        if error == "slow_down":
            interval = min(interval + _SLOWER, _MOST_INTERVAL)
        elif status == 429 or status >= 500:
            interval = min(interval * 2, _MOST_INTERVAL)
        elif error != "authorization_pending":
            raise SignOnFailed(f"{issuer.url} refused the sign-in: {reason(status, content)}")
    raise SignOnRefused("The code expired before the sign-in was completed: repeat the command")
