"""The next version of a view's metadata while the updates of one request are applied to it.

Follows Java's ``ViewMetadata.Builder`` with two differences. An equal existing schema or version
counts as added, so that -1 refers to it: if two engines make the same change at the same time, both
succeed. A version that was current only between two updates of a request has no entry in the version
log.
"""

import re

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.reading import INT_MAX, Document, at, shown
from catalog.formats.iceberg.schema import schemas
from catalog.formats.iceberg.views.checking import check_version, dialects

LAST_ADDED = -1
_HISTORY_SIZE = "version.history.num-entries"
_HISTORY_SIZE_DEFAULT = 10
_DROP_DIALECT = "replace.drop-dialect.allowed"
_INTEGER = re.compile(r"[+-]?[0-9]{1,10}")


class ViewDraft:
    """A view's metadata while a request changes it."""

    def __init__(self, base: Document, *, now_ms: int) -> None:
        self.base = base
        self.now_ms = now_ms
        self.document = {
            **base,
            "properties": dict(base.get("properties") or {}),
            "schemas": list(base["schemas"]),
            "versions": list(base["versions"]),
            "version-log": list(base["version-log"]),
        }
        self.last_schema: int | None = None
        self.last_version: int | None = None
        self.added_versions: set[int] = set()
        self._before = next(
            (v for v in base["versions"] if v["version-id"] == base.get("current-version-id")), None
        )

    def version(self, id_: int) -> Document | None:
        return next((v for v in self.document["versions"] if v["version-id"] == id_), None)

    def add_schema(self, schema: Document, path: str) -> None:
        schema = schemas.plain(schema)
        schemas.index(schema, path)
        schema = schemas.completed(schema)
        next_id = 0
        for existing in self.document["schemas"]:
            id_: int = existing.get("schema-id") or 0
            if schemas.same(existing, schema):
                self.last_schema = id_
                return
            next_id = max(next_id, id_ + 1)
        _check_id(next_id, path)
        added = {"type": "struct", **schema, "schema-id": next_id}
        self.document["schemas"].append(added)
        self.last_schema = next_id

    def add_version(self, version: Document, path: str) -> None:
        check_version(version, path)
        if version["schema-id"] == LAST_ADDED:
            if self.last_schema is None:
                raise InvalidMetadata(f"{at(path, 'schema-id')} is -1, but no schema was added")
            version = {**version, "schema-id": self.last_schema}
        # Clients send -1 for a version without an id; the first id is 1.
        next_id = 1 if version["version-id"] == LAST_ADDED else version["version-id"]
        for existing in self.document["versions"]:
            if _is_same(existing, version):
                self.last_version = existing["version-id"]
                return
            next_id = max(next_id, existing["version-id"] + 1)
        _check_id(next_id, path)
        schema_ids = {schema.get("schema-id") or 0 for schema in self.document["schemas"]}
        if version["schema-id"] not in schema_ids:
            raise InvalidMetadata(
                f"{path}: cannot add version with unknown schema: {version['schema-id']}"
            )
        self.document["versions"].append({**version, "version-id": next_id})
        self.added_versions.add(next_id)
        self.last_version = next_id

    def set_current_version(self, id_: int, path: str) -> None:
        if id_ == LAST_ADDED:
            if self.last_version is None:
                raise InvalidMetadata(f"{path} is -1, but no version was added")
            id_ = self.last_version
        if self.version(id_) is None:
            raise InvalidMetadata(f"{path}: cannot set current version to unknown version: {id_}")
        self.document["current-version-id"] = id_

    def finish(self) -> Document:
        """The document after all updates; the base itself if nothing changed."""
        if self.document == {**self.base, "properties": self.base.get("properties") or {}}:
            return self.base
        current = self.version(self.document.get("current-version-id", LAST_ADDED))
        if current is None:
            raise InvalidMetadata("A view needs a current version: set-current-view-version")
        if self._before is None or current["version-id"] != self._before["version-id"]:
            self._log(current)
        self._check_dialects(current)
        self._expire_versions(current["version-id"])
        return self.document

    def _log(self, current: Document) -> None:
        """Log the current version, with its own time if it is new, otherwise with the present."""
        is_new = current["version-id"] in self.added_versions
        timestamp = current["timestamp-ms"] if is_new else self.now_ms
        entry = {"timestamp-ms": timestamp, "version-id": current["version-id"]}
        self.document["version-log"].append(entry)

    def _check_dialects(self, current: Document) -> None:
        allowed = self.document["properties"].get(_DROP_DIALECT, "false").lower() == "true"
        if allowed or self._before is None or dialects(self._before) <= dialects(current):
            return
        raise InvalidMetadata(
            f"Cannot replace view due to loss of view dialects ({_DROP_DIALECT}=false):\n"
            f"Previous dialects: {_listed(dialects(self._before))}\n"
            f"New dialects: {_listed(dialects(current))}"
        )

    def _expire_versions(self, current: int) -> None:
        """Keep the newest versions by id, always including the current one and all added ones.

        The log loses all entries before that of a removed version: with a gap it would say that the
        previous version was current for longer than it was.
        """
        versions = self.document["versions"]
        keep = max(len(self.added_versions | {current}), self._history_size())
        if len(versions) <= keep:
            return
        others = sorted((v["version-id"] for v in versions), reverse=True)
        others.remove(current)
        retained = {current, *others[: keep - 1]}
        self.document["versions"] = [v for v in versions if v["version-id"] in retained]
        log: list[Document] = []
        for entry in self.document["version-log"]:
            if entry["version-id"] in retained:
                log.append(entry)
            else:
                log.clear()
        self.document["version-log"] = log

    def _history_size(self) -> int:
        text = self.document["properties"].get(_HISTORY_SIZE)
        if text is None:
            return _HISTORY_SIZE_DEFAULT
        if _INTEGER.fullmatch(text) is None or not 0 < int(text) <= INT_MAX:
            raise InvalidMetadata(f"{_HISTORY_SIZE} must be positive but was {shown(text)}")
        return int(text)


def _check_id(id_: int, path: str) -> None:
    if id_ > INT_MAX:
        raise InvalidMetadata(f"{path}: there is no id left above {INT_MAX}")


def _is_same(first: Document, second: Document) -> bool:
    """True if two versions are equal except for their ids and times."""
    return _meaning(first) == _meaning(second)


def _meaning(version: Document) -> Document:
    return {
        key: value
        for key, value in version.items()
        if value is not None and key not in {"version-id", "timestamp-ms"}
    }


def _listed(names: set[str]) -> str:
    text = ", ".join(sorted(names))
    return f"[{text if len(text) <= 150 else text[:147] + '...'}]"
