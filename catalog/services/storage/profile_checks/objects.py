"""Checks of objects, through the store that the server itself uses."""

from collections.abc import Callable, Collection
from typing import TypeVar
from xml.sax.saxutils import escape

import urllib3

from catalog.services.storage.profile_checks.results import (
    CheckFailed,
    CheckSkipped,
    CheckWarned,
)
from catalog.services.storage.profile_checks.s3_client import Answer, S3Client
from catalog.services.storage.profile_checks.trial import Trial, new_directory
from catalog.storage.configuration import StoreKind
from catalog.storage.stores import AccessDenied, StorageUnavailable, is_missing

T = TypeVar("T")

CONTENT = bytes(range(256)) * 16
"""Content of a small test object: 4 KiB, in which every range differs from its neighbors."""
_FIRST_PART, _LAST_PART = 8 * 1024 * 1024, 4 * 1024 * 1024
_BULK = 3
NAMES = (
    "object",
    "conditional",
    "large",
    "aborted",
    *(f"bulk/{number}" for number in range(_BULK)),
)
"""The objects that the checks of this module write."""
_FIX_CONDITIONS = (
    "Clear “conditional writes” in the profile: the catalog then decides between writers. Writers that do not"
    " use the catalog can replace each other's files in such a store."
)
# The rights that a check needs, by the kind of the store.
_RIGHTS = {
    "list": {
        StoreKind.S3: "s3:ListBucket on the bucket, with the root as prefix",
        StoreKind.GCS: "storage.objects.list on the bucket",
        StoreKind.ADLS: "Storage Blob Data Contributor on the container",
    },
    "write": {
        StoreKind.S3: "s3:PutObject below the root (and kms:GenerateDataKey for the KMS key)",
        StoreKind.GCS: "storage.objects.create below the root",
        StoreKind.ADLS: "Storage Blob Data Contributor on the container",
    },
    "read": {
        StoreKind.S3: "s3:GetObject below the root (and kms:Decrypt for the KMS key)",
        StoreKind.GCS: "storage.objects.get below the root",
        StoreKind.ADLS: "Storage Blob Data Contributor on the container",
    },
    "delete": {
        StoreKind.S3: "s3:DeleteObject below the root",
        StoreKind.GCS: "storage.objects.delete below the root",
        StoreKind.ADLS: "Storage Blob Data Contributor on the container",
    },
    "upload": {
        StoreKind.S3: "s3:PutObject and s3:AbortMultipartUpload below the root",
    },
}


def check_list(trial: Trial) -> str:
    names = _do(
        trial, "list", lambda: [file.name for file in trial.store.list_tree(trial.directory)]
    )
    if names:
        raise CheckFailed(
            f"A directory that was just named holds {len(names)} objects",
            "The store does not apply the prefix of a list. Use another store.",
        )
    return f"below {trial.root}"


def check_write(trial: Trial) -> str:
    _do(trial, "write", lambda: trial.store.write_new(trial.path("object"), CONTENT))
    return f"{len(CONTENT):,} bytes"


def check_read(trial: Trial) -> str:
    content, status = _do(
        trial, "read", lambda: trial.store.read(trial.path("object"), len(CONTENT))
    )
    if content != CONTENT or status.size != len(CONTENT):
        raise CheckFailed(
            f"The store returned {len(content):,} bytes that differ from what was written",
            "A proxy or the store alters objects, for example by compression. Switch that off.",
        )
    return f"{len(content):,} bytes, as written"


def check_range(trial: Trial) -> str:
    start, length = 1000, 500
    content = _do(
        trial, "read", lambda: trial.store.read_range(trial.path("object"), start, length)
    )
    if content != CONTENT[start : start + length]:
        raise CheckFailed(
            f"A request for {length} bytes at {start} returned {len(content):,} other bytes",
            "The store or a proxy ignores the Range header, which readers of Lance and Parquet need.",
        )
    return f"{length} bytes at {start:,}"


def check_conditional_write(trial: Trial) -> str:
    """Write an object twice with If-None-Match: the second write must be refused."""
    configured = trial.configuration.conditional_writes
    if trial.is_s3:
        is_honored, details = _conditional_put(trial)
    else:
        is_honored, details = _conditional_write(trial), "the second write was not refused"
    if is_honored and configured:
        return "the second write was refused"
    if is_honored:
        raise CheckWarned(
            "The store honors If-None-Match, but the profile states that it does not",
            "Set “conditional writes” in the profile: no write then replaces an object.",
        )
    if not configured:
        return f"not supported, as the profile states ({details})"
    raise CheckFailed(f"The store does not honor If-None-Match: {details}", _FIX_CONDITIONS)


def _conditional_put(trial: Trial) -> tuple[bool, str]:
    requests, key = _requests(trial), trial.object_key("conditional")
    first = _send(lambda: requests.put(key, b"first", only_if_absent=True))
    if not first.is_success:
        return False, f"it refuses a new object ({first.summary})"
    second = _send(lambda: requests.put(key, b"second", only_if_absent=True))
    content = _send(lambda: requests.send("GET", key))
    if content.body == b"first" and second.status in {409, 412}:
        return True, ""
    if content.body == b"second":
        return False, "the second write replaced the object"
    return False, f"the second write was answered with {second.summary}"


def _conditional_write(trial: Trial) -> bool:
    path = trial.path("conditional")
    _do(trial, "write", lambda: trial.store.write_new(path, b"first"))
    try:
        _do(trial, "write", lambda: trial.store.write_new(path, b"second"))
    except FileExistsError:
        return True
    return False


def check_multipart(trial: Trial) -> str:
    """Upload an object in two parts, then begin another upload and abort it."""
    if not trial.is_s3:
        content = bytes(_FIRST_PART + _LAST_PART)
        _do(trial, "write", lambda: trial.store.write_new(trial.path("large"), content))
        return f"{len(content):,} bytes"
    upload = _Upload(trial, "large")
    upload.add_part(bytes(_FIRST_PART))
    upload.add_part(bytes(_LAST_PART))
    upload.complete()
    size = _do(trial, "read", lambda: trial.store.size(trial.path("large")))
    if size != _FIRST_PART + _LAST_PART:
        raise CheckFailed(
            f"The uploaded object has {size} bytes instead of {_FIRST_PART + _LAST_PART:,}",
            "The store does not implement multipart uploads, which writers of large files need.",
        )
    _abort(trial)
    return f"{size:,} bytes in two parts; an aborted upload left nothing"


def _abort(trial: Trial) -> None:
    upload = _Upload(trial, "aborted")
    upload.add_part(CONTENT)
    upload.abort()
    if upload.has_parts():
        raise CheckFailed(
            "The store keeps the parts of an aborted upload",
            "Set a lifecycle rule that removes incomplete multipart uploads after some days.",
        )
    if _do(trial, "read", lambda: trial.store.size(trial.path("aborted"))) is not None:
        raise CheckFailed(
            "An aborted upload left an object", "The store does not implement multipart uploads."
        )


class _Upload:
    """A multipart upload of an object. Its methods raise CheckFailed."""

    def __init__(self, trial: Trial, name: str) -> None:
        self._trial = trial
        self._key = trial.object_key(name)
        self._requests = _requests(trial)
        self._tags: list[str] = []
        self._id = self._accepted(lambda: self._requests.create_upload(self._key)).text("UploadId")
        trial.uploads.append((self._key, self._id))

    def add_part(self, content: bytes) -> None:
        query = {"partNumber": str(len(self._tags) + 1), "uploadId": self._id}
        answer = self._accepted(
            lambda: self._requests.send("PUT", self._key, query=query, body=content)
        )
        self._tags.append(answer.headers.get("etag", ""))

    def complete(self) -> None:
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(tag)}</ETag></Part>"
            for number, tag in enumerate(self._tags, 1)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        self._accepted(lambda: self._send("POST", body))

    def abort(self) -> None:
        self._accepted(lambda: self._send("DELETE"))

    def has_parts(self) -> bool:
        return _send(lambda: self._send("GET")).is_success

    def _send(self, method: str, body: bytes = b"") -> Answer:
        return self._requests.send(method, self._key, query={"uploadId": self._id}, body=body)

    def _accepted(self, request: Callable[[], Answer]) -> Answer:
        answer = _send(request)
        # A completion that fails late is answered with 200 and an error.
        if answer.is_success and b"<Error>" not in answer.body:
            return answer
        if answer.is_refusal:
            raise CheckFailed(f"Access denied ({answer.summary})", _grant(self._trial, "upload"))
        raise CheckFailed(
            f"The store refuses a multipart upload ({answer.summary})",
            "The store must implement multipart uploads, which writers of large files need.",
        )


def check_delete(trial: Trial) -> str:
    path = trial.path("object")
    is_removed = _do(trial, "delete", lambda: trial.store.remove(path))
    if not is_removed or _do(trial, "read", lambda: trial.store.size(path)) is not None:
        raise CheckFailed(
            "The object is still there after its removal",
            "Clear object lock, retention or legal hold for the root: maintenance must remove files.",
        )
    return "one object"


def check_bulk_delete(trial: Trial) -> str:
    paths = [trial.path(f"bulk/{number}") for number in range(_BULK)]
    for path in paths:
        _do(trial, "write", lambda path=path: trial.store.write_new(path, b"bulk"))  # type: ignore[misc]
    removed = set(_do(trial, "delete", lambda: list(trial.store.remove_many(paths))))
    remaining = [path for path in paths if trial.store.size(path) is not None]
    if removed != set(paths) or remaining:
        raise CheckFailed(
            f"{len(remaining)} of {_BULK} objects are still there after their removal",
            "Clear object lock, retention or legal hold for the root: maintenance must remove files.",
        )
    return f"{_BULK} objects in one request"


def check_other_roots(trial: Trial) -> str:
    """Write, read, list and delete an object below each root but the first."""
    others = trial.configuration.roots[1:]
    for root in others:
        try:
            _use(Trial(trial.configuration, root, new_directory(root)))
        except CheckFailed as failure:
            raise CheckFailed(f"Root {root}: {failure.cause}", failure.remedy) from failure
    return ", ".join(others)


def _use(trial: Trial) -> None:
    check_list(trial)
    try:
        check_write(trial)
        check_read(trial)
    finally:
        _do(trial, "delete", lambda: trial.store.remove(trial.path("object")))


def remove(trial: Trial, names: Collection[str]) -> int:
    """Remove objects of the test, and parts of uploads; returns the number of objects. Raises OSError."""
    for key, upload in trial.uploads:
        if trial.requests is not None:
            trial.requests.send("DELETE", key, query={"uploadId": upload})
    paths = {trial.path(name) for name in names}
    remaining = paths - set(trial.store.remove_many(paths))
    if remaining:
        raise OSError(f"{len(remaining)} objects remain")
    return len(paths)


def _requests(trial: Trial) -> S3Client:
    if trial.requests is None:
        raise CheckSkipped("No request reached the store")
    return trial.requests


def _send(request: Callable[[], Answer]) -> Answer:
    try:
        return request()
    except urllib3.exceptions.HTTPError as error:
        raise CheckFailed(
            f"The store broke the connection: {type(error).__name__}",
            "Check proxies and load balancers between the server and the store: body size and time limits.",
        ) from error


def _do(trial: Trial, right: str, call: Callable[[], T]) -> T:
    """Call the store, and turn its errors into the result of the check.

    FileExistsError is for the caller.
    """
    try:
        return call()
    except FileExistsError:
        raise
    except AccessDenied as error:
        raise CheckFailed(str(error.strerror or error), _grant(trial, right)) from error
    except StorageUnavailable as error:
        raise CheckFailed(
            str(error.strerror or error),
            "Look into the log of the store, or at the provider's status page, and test again.",
        ) from error
    except OSError as error:
        if is_missing(error):
            raise CheckFailed(
                "The store does not have an object that was written before",
                "The store must show an object to every request after the write was answered.",
            ) from error
        raise CheckFailed(
            str(error.strerror or error), "Look into the log of the store, and test again."
        ) from error


def _grant(trial: Trial, right: str) -> str:
    needed = _RIGHTS[right].get(trial.configuration.kind, "access to the root")
    return f"Grant the server's key {needed}."
