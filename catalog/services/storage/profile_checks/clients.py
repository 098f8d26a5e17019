"""Checks of the access that clients get: credentials for one table work there, and nowhere else.

The test lays out four directories as if they were tables: ``A``, its sibling ``B``, and ``A2``, whose name
begins as that of ``A``, next to an object in their parent. The credentials are for ``A``.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

import urllib3

from catalog.errors import CatalogError
from catalog.services.storage.profile_checks import signatures
from catalog.services.storage.profile_checks.results import (
    CheckFailed,
    CheckSkipped,
    CheckWarned,
)
from catalog.services.storage.profile_checks.s3_client import Answer, S3Client
from catalog.services.storage.profile_checks.token_clients import TokenClient
from catalog.services.storage.profile_checks.trial import Trial
from catalog.storage.configuration import Key, StoreKind
from catalog.storage.object_locations import key_of

T = TypeVar("T")
Mint = Callable[[str, bool], Key]
"""``mint(location, write)``: credentials of a client for one table. Raises CatalogError, OSError."""

_OWN, _SIBLING, _TWIN, _PARENT = "A/object", "B/object", "A2/object", "object-beside"
NAMES = (
    *(_OWN, _SIBLING, _TWIN, _PARENT),
    *("A/written", "B/written", "A2/written", "written-beside", "A/read-only"),
)
"""The objects that the checks of this module write, or try to."""
_NOT_ISSUED = {
    StoreKind.S3: "Check the role, its trust policy and external ID, and the endpoint of the token service."
    " The server's key needs sts:AssumeRole for the role.",
    StoreKind.GCS: "Check the service account and its key, and that the server reaches sts.googleapis.com.",
    StoreKind.ADLS: "Check the account key. If the server uses an identity of its environment, give it the role"
    " 'Storage Blob Data Contributor', which includes user delegation keys.",
}
_S3_TOO_WIDE = (
    "Do not let clients use “sts” with this store: it does not limit credentials to the session policy, so each"
    " client can reach all that the role can. Use “signing” instead, or a role of a store that evaluates"
    " session policies."
)
_TOO_WIDE = {
    StoreKind.S3: _S3_TOO_WIDE,
    StoreKind.GCS: "Do not let clients use “sts” with this store: it does not limit tokens to their access boundary.",
    StoreKind.ADLS: "Do not let clients use “sts” with this account: it does not limit signatures to their directory.",
}
_S3_TOO_NARROW = (
    "Grant the role s3:GetObject, s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload below the roots, and"
    " s3:ListBucket on the bucket. A bucket policy or a permissions boundary must not deny them."
)
_TOO_NARROW = {
    StoreKind.S3: _S3_TOO_NARROW,
    StoreKind.GCS: "Grant the service account 'Storage Object User' on the bucket, and switch on the bucket's uniform"
    " bucket-level access: conditions apply only there.",
    StoreKind.ADLS: "Switch on the hierarchical namespace of the account: Azure limits signatures to a directory only"
    " there.",
}


def prepare(trial: Trial, mint: Mint) -> str:
    """Write the objects, and get credentials for ``A``: one to write, one to read."""
    _write(trial, _OWN, _SIBLING, _TWIN, _PARENT)
    for access, write in (("write", True), ("read", False)):
        try:
            key = mint(trial.path("A"), write)
        except CatalogError as error:
            raise CheckFailed(error.message, _NOT_ISSUED[trial.configuration.kind]) from error
        except OSError as error:
            raise CheckFailed(
                str(error.strerror or error), "Check the endpoint of the token service."
            ) from error
        if trial.is_s3:
            trial.clients[access] = S3Client(
                trial.configuration,
                trial.bucket,
                key,
                path_style=trial.configuration.path_style != trial.is_other_style,
            )
        else:
            trial.clients[access] = TokenClient(trial.configuration, trial.root, key)
    return "two credentials, to write and to read"


def check_own(trial: Trial) -> str:
    client = _client(trial, "write")
    _require_allowed(
        trial,
        {
            "read an object of its table": _get(client, trial, _OWN),
            "write an object of its table": _put(client, trial, "A/written"),
            "list its table": _list(client, trial.object_key("A") + "/"),
            "delete an object of its table": _delete(client, trial, "A/written"),
        },
    )
    return "read, write, list, delete"


def check_sibling(trial: Trial) -> str:
    client = _client(trial, "write")
    _require_refused(
        trial,
        {
            "read another table": _get(client, trial, _SIBLING),
            "write to another table": _put(client, trial, "B/written"),
            "delete from another table": _delete(client, trial, _SIBLING),
        },
    )
    return "refused"


def check_twin(trial: Trial) -> str:
    client = _client(trial, "write")
    _require_refused(
        trial,
        {
            "read table 'A2' with credentials for 'A'": _get(client, trial, _TWIN),
            "write to table 'A2' with credentials for 'A'": _put(client, trial, "A2/written"),
        },
    )
    return "refused"


def check_foreign_list(trial: Trial) -> str:
    client = _client(trial, "write")
    _require_refused(
        trial,
        {
            "list another table": _list(client, trial.object_key("B") + "/"),
            "list names that begin as its table's": _list(client, trial.object_key("A")),
            "list the root": _list(client, key_of(trial.root)),
            "list the bucket": _list(client, ""),
        },
    )
    return "refused"


def check_parent(trial: Trial) -> str:
    client = _client(trial, "write")
    _require_refused(
        trial,
        {
            "read an object beside its table": _get(client, trial, _PARENT),
            "write an object beside its table": _put(client, trial, "written-beside"),
            "list the directory of its table": _list(client, key_of(trial.directory) + "/"),
        },
    )
    return "refused"


def check_read_only(trial: Trial) -> str:
    client = _client(trial, "read")
    _require_allowed(
        trial,
        {
            "read an object of its table": _get(client, trial, _OWN),
            "list its table": _list(client, trial.object_key("A") + "/"),
        },
    )
    _require_refused(
        trial,
        {
            "write with read-only credentials": _put(client, trial, "A/read-only"),
            "delete with read-only credentials": _delete(client, trial, _OWN),
        },
    )
    return "reads, and is refused to write and to delete"


def check_signing(trial: Trial) -> str:
    """Check that a signature opens the object that it was made for, and no other."""
    if trial.requests is None:
        raise CheckSkipped("No request reached the store")
    requests = trial.requests
    _write(trial, _OWN, _SIBLING)
    own, sibling = trial.object_key(_OWN), trial.object_key(_SIBLING)
    answer = _send(lambda: requests.send_with_signature_of(own, own))
    if not answer.is_success:
        raise CheckFailed(
            f"The store refuses a request that the server signed ({answer.summary})",
            "Grant the server's key s3:GetObject below the root; proxies must not change the host of requests.",
        )
    if _send(lambda: requests.send_with_signature_of(own, sibling)).is_success:
        raise CheckFailed(
            "The store answers a request for another object than the signature is for",
            "Do not use this store: it does not check signatures, so that everybody can read everything.",
        )
    source = f"{trial.bucket}/{sibling}"
    if _send(lambda: signatures.obeys_unsigned_copy(requests, own, source)):
        raise CheckFailed(
            "The store obeys a header of S3 that the signature does not cover: it copies an object of another table",
            "Requests that write are not signed. Use “sts” with this store, or another store: a client that may"
            " write to one table could read all others.",
        )
    is_deleted = _send(lambda: signatures.deletes_unsigned(requests, own, sibling))
    if is_deleted is None:
        raise CheckFailed(
            "The store does not delete an object that DeleteObjects names",
            "Grant the server's key s3:DeleteObject below the root, and clear object lock and retention.",
        )
    if is_deleted:
        raise CheckFailed(
            "The store deletes an object of another table than the signature is for: it does not compare the"
            " body of a request with its signed hash",
            "Such requests are not signed. Use “sts” with this store, or another store, if clients delete many"
            " files at once, as engines do that expire snapshots.",
        )
    return "a signed request works, and its signature is refused for another table"


def warn_static(_trial: Trial) -> str:
    raise CheckWarned(
        "Every client that may read one table gets the server's own key, and with it all tables below the"
        " roots of this profile",
        "Choose “sts”, or “signing” for stores without a token service, unless all clients are trusted.",
    )


def skip_own_credentials(_trial: Trial) -> str:
    raise CheckSkipped("Clients have credentials of their own; the catalog gives them none")


def _write(trial: Trial, *names: str) -> None:
    for name in names:
        try:
            trial.store.write_new(trial.path(name), name.encode())
        except OSError as error:
            raise CheckSkipped(f"The server cannot write: {error.strerror or error}") from error


def _client(trial: Trial, access: str) -> S3Client | TokenClient:
    if access not in trial.clients:
        raise CheckSkipped("There are no credentials to check")
    return trial.clients[access]


def _require_allowed(trial: Trial, attempts: Mapping[str, Callable[[], Answer]]) -> None:
    for action, request in attempts.items():
        answer = _send(request)
        if answer.is_refusal:
            raise CheckFailed(
                f"A client cannot {action} ({answer.summary})",
                _TOO_NARROW[trial.configuration.kind],
            )
        if not answer.is_success:
            raise CheckFailed(
                f"The store fails when a client tries to {action} ({answer.summary})",
                "Look into the log of the store, and test again.",
            )


def _require_refused(trial: Trial, attempts: Mapping[str, Callable[[], Answer]]) -> None:
    allowed = []
    for action, request in attempts.items():
        answer = _send(request)
        if answer.is_success:
            allowed.append(action)
        elif not answer.is_refusal:
            raise CheckFailed(
                f"The store neither allows nor denies a client to {action} ({answer.summary})",
                "Look into the log of the store, and test again.",
            )
    if allowed:
        raise CheckFailed(f"A client can {', '.join(allowed)}", _TOO_WIDE[trial.configuration.kind])


def _get(client: S3Client | TokenClient, trial: Trial, name: str) -> Callable[[], Answer]:
    return lambda: client.send("GET", trial.object_key(name))


def _put(client: S3Client | TokenClient, trial: Trial, name: str) -> Callable[[], Answer]:
    return lambda: client.put(trial.object_key(name), b"client")


def _delete(client: S3Client | TokenClient, trial: Trial, name: str) -> Callable[[], Answer]:
    return lambda: client.send("DELETE", trial.object_key(name))


def _list(client: S3Client | TokenClient, prefix: str) -> Callable[[], Answer]:
    return lambda: client.list_keys(prefix)


def _send(request: Callable[[], T]) -> T:
    try:
        return request()
    except urllib3.exceptions.HTTPError as error:
        raise CheckFailed(
            f"The store broke the connection: {type(error).__name__}", "Test again."
        ) from error
