"""Lists of objects, as directories of a table.

A prefix always ends with a slash, so that ``orders`` does not list ``orders2``. Names that obstore
cannot represent are foreign: they are skipped, never read as another name. Since one of them makes
obstore's list fail, the rest of such a list comes from botocore (S3 only).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import obstore

from catalog.storage import role_sessions
from catalog.storage.configuration import StoreKind
from catalog.storage.object_clients import ObjectClient, is_addressable
from catalog.storage.object_errors import Unlistable
from catalog.storage.stores import StorageUnavailable, StoredFile, is_missing

if TYPE_CHECKING:
    from obstore import ObjectMeta

PAGE = 1000
# Directories of a branch itself, in which no other branch lies.
_NOT_BRANCHES = {"_deletions", "_indices", "_refs", "_transactions", "_versions", "data"}


@dataclass(frozen=True, slots=True)
class Entry:
    """An object in a list."""

    key: str
    size: int
    modified_at: datetime


def prefix_of(client: ObjectClient, directory: str) -> str:
    """The prefix of all keys below a directory. Raises OSError for a name that no request can have."""
    key = client.key(directory)
    return f"{key}/" if key else ""


def pages(client: ObjectClient, prefix: str) -> Iterator[list[Entry]]:
    """All objects with a prefix, in pages. Raises Unlistable after the pages before a foreign name.

    Entries of size 0 may be marks of directories, whose keys end with a slash that obstore drops:
    see ``is_mark``.
    """
    stream: Any = client.call(
        lambda: obstore.list(client.store, prefix or None, chunk_size=PAGE), of_file=False
    )
    while True:
        # Without repeating: a stream ends after an error, as if the list were complete.
        page = client.call_once(lambda: next(stream, None), of_file=False)
        if page is None:
            return
        yield [_entry(item) for item in page]


def is_mark(client: ObjectClient, entry: Entry) -> bool:
    """True if an entry is the mark of a directory, which some tools create, and not a file."""
    if entry.size:
        return False
    try:
        client.call(lambda: obstore.head(client.store, entry.key), entry.key)
    except OSError as error:
        if is_missing(error):
            return True
        raise
    return False


def list_tree(
    client: ObjectClient, directory: str, *, with_foreign: bool = False
) -> Iterator[StoredFile]:
    """All files below a directory, with names relative to it; also foreign ones on request."""
    prefix = prefix_of(client, directory)
    last = ""
    try:
        for page in pages(client, prefix):
            for entry in page:
                last = entry.key
                if entry.key.startswith(prefix) and not is_mark(client, entry):
                    yield _file(entry, prefix)
    except Unlistable:
        for entry in raw_entries(client, prefix, start_after=last):
            is_foreign = with_foreign and not (entry.size == 0 and entry.key.endswith("/"))
            if is_foreign or is_addressable(entry.key):
                yield _file(entry, prefix)


def list_files(client: ObjectClient, directory: str) -> Iterator[StoredFile]:
    """The files directly in a directory.

    Most directories of tables are flat and are read page by page. As soon as there is a directory in
    the directory, the store leaves out what is below: then obstore returns all files at once.
    """
    prefix = prefix_of(client, directory)
    last = ""
    try:
        for page in pages(client, prefix):
            for entry in page:
                if not entry.key.startswith(prefix):
                    continue
                if "/" in entry.key.removeprefix(prefix):
                    yield from _files_after(client, prefix, last)
                    return
                last = entry.key
                if not is_mark(client, entry):
                    yield _file(entry, prefix)
    except Unlistable:
        for entry in raw_entries(client, prefix, start_after=last, delimiter="/"):
            if is_addressable(entry.key):
                yield _file(entry, prefix)


def _files_after(client: ObjectClient, prefix: str, last: str) -> Iterator[StoredFile]:
    """The files directly below a prefix whose keys are behind ``last`` in the order of keys."""
    try:
        result = client.call_once(
            lambda: obstore.list_with_delimiter(client.store, prefix or None), of_file=False
        )
    except Unlistable:
        entries = list(raw_entries(client, prefix, start_after=last, delimiter="/"))
        yield from (_file(entry, prefix) for entry in entries if is_addressable(entry.key))
        return
    # UTF-8 has the order of code points, which is that of Python's strings.
    for item in result["objects"]:
        entry = _entry(item)
        if entry.key.startswith(prefix) and entry.key > last and not is_mark(client, entry):
            yield _file(entry, prefix)


def list_directories(client: ObjectClient, directory: str) -> list[str]:
    """The names of the directories directly in a directory, sorted."""
    prefix = prefix_of(client, directory)
    try:
        result = client.call_once(
            lambda: obstore.list_with_delimiter(client.store, prefix or None), of_file=False
        )
    except Unlistable:
        keys = [key.removesuffix("/") for key in _raw_prefixes(client, prefix)]
    else:
        keys = list(result["common_prefixes"])
    return sorted(
        key.removeprefix(prefix)
        for key in keys
        if key.startswith(prefix) and key != prefix and is_addressable(key)
    )


def list_branches(client: ObjectClient, location: str) -> list[str]:
    """The branches of a Lance table: every path below ``tree`` with a directory ``_versions``."""
    branches = []
    waiting = [""]
    while waiting:
        parent = waiting.pop()
        names = list_directories(client, f"{location}/tree/{parent}".removesuffix("/"))
        is_branch = parent != "" and "_versions" in names
        if is_branch and parent.isprintable():
            branches.append(parent.removesuffix("/"))
        waiting.extend(
            f"{parent}{name}/" for name in names if not (is_branch and name in _NOT_BRANCHES)
        )
    return sorted(branches)


def has_objects(client: ObjectClient, directory: str) -> bool:
    """True if there is an object below a directory. Raises OSError also if the bucket is missing."""
    prefix = prefix_of(client, directory)
    try:
        return any(page for page in pages(client, prefix))
    except Unlistable:
        return True


def raw_entries(
    client: ObjectClient, prefix: str, *, start_after: str = "", delimiter: str = ""
) -> Iterator[Entry]:
    """All objects with a prefix by their exact keys, of S3. Raises StorageUnavailable for others."""
    for page in _raw_pages(client, prefix, start_after, delimiter):
        for item in page.get("Contents", ()):
            yield Entry(item["Key"], item["Size"], item["LastModified"])


def _raw_prefixes(client: ObjectClient, prefix: str) -> Iterator[str]:
    for page in _raw_pages(client, prefix, "", "/"):
        for item in page.get("CommonPrefixes", ()):
            yield item["Prefix"]


def _raw_pages(
    client: ObjectClient, prefix: str, start_after: str, delimiter: str
) -> Iterator[dict[str, Any]]:
    options = {"StartAfter": start_after} if start_after else {}
    if delimiter:
        options["Delimiter"] = delimiter
    raw = raw_client(client)
    paginator = raw.get_paginator("list_objects_v2")
    iterator = iter(
        paginator.paginate(Bucket=client.bucket.partition("://")[2], Prefix=prefix, **options)
    )
    while (page := role_sessions.call(client.profile, lambda: next(iterator, None))) is not None:
        yield page


def raw_client(client: ObjectClient) -> Any:
    """A client of botocore, for names that obstore cannot represent. Raises OSError if not S3."""
    credentials = client.credentials
    if client.configuration.kind != StoreKind.S3 or credentials is None:
        raise StorageUnavailable(
            client.profile,
            "an object has an empty segment, '.' or a control character in its name; rename it",
        )
    return role_sessions.s3_client(client.configuration, credentials.current())


def _entry(item: "ObjectMeta") -> Entry:
    return Entry(item["path"], item["size"], item["last_modified"])


def _file(entry: Entry, prefix: str) -> StoredFile:
    return StoredFile(entry.key.removeprefix(prefix), entry.size, entry.modified_at.timestamp())
