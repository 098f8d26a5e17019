"""The errors of obstore as those of the interface to files.

obstore's messages hold URLs, which may be signed, and what the store answered. Therefore only the
status and the code of an answer reach a message of this server.
"""

import errno
import re
from collections.abc import Mapping

from obstore import exceptions

from catalog.storage.stores import AccessDenied, StorageUnavailable

RANGE_NOT_SATISFIABLE = 416
_STATUS = re.compile(r"status code: (\d{3})\b")
_LIBRARY_STATUS = re.compile(r"status(?: code)?: (\d{3})\b")
_LIBRARY_DENIAL = re.compile(
    r".{0,200}The operation lacked (?:the necessary privileges|valid authentication credentials)",
    re.DOTALL,
)
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,64})</Code>|\(code: ([A-Za-z0-9]{1,64})\)")
_DENIED = {401, 403}
_MISSING_BUCKETS = {"NoSuchBucket", "ContainerNotFound", "FilesystemNotFound"}
_DENIALS = {
    "AccessDenied",
    "ExpiredToken",
    "InvalidToken",
    "InvalidAccessKeyId",
    "TokenRefreshRequired",
}
# What obstore says about a request without an answer, and the cause that a message names.
_TRANSPORT: Mapping[str, str] = {
    "without location": "the bucket is in another region, or the endpoint is wrong",
    "certificate": "its certificate is not trusted",
    "tls handshake": "it does not speak TLS",
    "dns error": "its host name is unknown",
    "connectionrefused": "it refuses connections",
    "kind: timeout": "it does not answer in time",
    "kind: connect": "no connection",
    "kind: interrupted": "it closed the connection",
    "kind: request": "it closed the connection",
    "kind: decode": "its answer is incomplete",
    # What Lance says; it does not say more.
    "error sending request": "no connection, or no answer in time",
    "error decoding response body": "its answer is incomplete",
}
_ANSWERED = "without location"
"""A redirect that names no location: the store answered, although no status is in the message."""
_OUTAGES = {429, 500, 502, 503, 504}
_NOT_PARTIAL = re.compile(
    r"source: (?:NotPartial|NoContentRange|ParseContentRange|UnexpectedRange)\b"
)
_LOST = re.compile(r"HttpError \{\s*kind: (?:Interrupted|Timeout|Request|Decode)\b")


class Unlistable(OSError):
    """A list contains a name that obstore cannot represent, such as one with an empty segment."""


def status_of(error: Exception, key: str) -> int | None:
    """The HTTP status in an error of obstore; None if the store did not answer."""
    # The message quotes the key, which a client may have chosen.
    match = _STATUS.search(_text(error, key))
    return int(match[1]) if match else None


def is_lost(error: Exception, key: str) -> bool:
    """True if a request was sent and got no answer, so that it may have been executed."""
    return status_of(error, key) is None and _LOST.search(_text(error, key)) is not None


def is_not_partial(error: Exception, key: str) -> bool:
    """True if a store answered a request for a range with something else, such as the whole object."""
    return status_of(error, key) is None and _NOT_PARTIAL.search(_text(error, key)) is not None


def is_outage(error: Exception, key: str) -> bool:
    """True if a request failed because the store does not answer, or not as it should (429, 5xx)."""
    status = status_of(error, key)
    if status is not None:
        return status in _OUTAGES
    text = _text(error, key).lower()
    return any(words in text for words in _TRANSPORT if words != _ANSWERED)


def translate(error: Exception, profile: str, key: str, *, of_file: bool = True) -> OSError:
    """The error of the interface for an error of obstore.

    ``of_file``: the request was for one file that may be missing. Other requests find nothing only
    if the bucket is missing.
    """
    text = _text(error, key)
    status = status_of(error, key)
    code = _code(text)
    name = f"HTTP {status}{f' {code}' if code else ''}" if status else code
    if code in _MISSING_BUCKETS or (isinstance(error, FileNotFoundError) and not of_file):
        return StorageUnavailable(profile, f"the bucket does not exist ({name})")
    match error:
        case FileNotFoundError():
            return FileNotFoundError(errno.ENOENT, "No such object", key)
        case exceptions.AlreadyExistsError():
            return FileExistsError(errno.EEXIST, "Object exists", key)
        case exceptions.InvalidPathError():
            return Unlistable(errno.EINVAL, "a name in the list is not canonical")
        case exceptions.PermissionDeniedError() | exceptions.UnauthenticatedError():
            return AccessDenied(profile, name or "the credentials are refused")
    # Errors of lists have no class of their own.
    if status in _DENIED or code in _DENIALS:
        return AccessDenied(profile, name)
    return StorageUnavailable(profile, name or _transport_cause(text))


def outage_cause(error: Exception, key: str) -> str:
    """Why a store is unavailable, for messages, by an error that ``is_outage``."""
    status = status_of(error, key)
    return f"HTTP {status}" if status is not None else _transport_cause(_text(error, key))


def denial_and_cause(text: str) -> tuple[bool, str]:
    """Whether a store refuses access, and the cause for messages, by an error that Lance reports.

    Lance uses the same library, and gives its errors only as text.
    """
    statuses, codes = _LIBRARY_STATUS.findall(text), _CODE.findall(text)
    # The last ones: the text begins with the key, which a client may have chosen.
    status = int(statuses[-1]) if statuses else None
    code = "".join(codes[-1]) if codes else ""
    is_denial = status in _DENIED or code in _DENIALS or _LIBRARY_DENIAL.match(text) is not None
    name = f"HTTP {status}{f' {code}' if code else ''}" if status else code
    if name or is_denial:
        return is_denial, name or "the credentials are refused"
    return False, _transport_cause(text)


def _transport_cause(text: str) -> str:
    lower = text.lower()
    return next(
        (cause for words, cause in _TRANSPORT.items() if words in lower), "it cannot be used"
    )


def _code(text: str) -> str:
    match = _CODE.search(text)
    return (match[1] or match[2]) if match else ""


def _text(error: Exception, key: str) -> str:
    text = str(error)
    return text.replace(key, "") if key else text
