"""Reading Iceberg tables and views, and changes to tables that do not touch their metadata."""

import hashlib
import json
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from django.db.models import QuerySet
from psycopg.pq import Format

from catalog import access
from catalog.access import On, Principal
from catalog.errors import (
    CannotRename,
    NamespaceNotFound,
    TableAlreadyExists,
    TableNotFound,
    ViewAlreadyExists,
    ViewNotFound,
)
from catalog.formats.iceberg.job_properties import (
    with_left_out_files,
    without_settings_of_libraries,
)
from catalog.formats.iceberg.metadata import documents as metadata_documents
from catalog.identifiers import Identifier, digest
from catalog.models import Namespace, Table, TableFormat, TableKind, TableState
from catalog.postgresql.cursors import hot_cursor
from catalog.privileges import NOTHING, Privilege
from catalog.services.engine.commit import commit
from catalog.services.iceberg import metadata_files
from catalog.services.iceberg.jobs import files as job_files
from catalog.services.iceberg.metadata_files import Document
from catalog.services.tables import tables, usage
from catalog.services.tables.table_operations import (
    DeregisterTable,
    DropTable,
    RenameTable,
    not_found_but,
)
from catalog.services.tables.usage import Read


@dataclass(frozen=True)
class LoadedTable:
    """The current holder of a name. Only Iceberg tables and views have metadata."""

    identifier: Identifier
    pk: int
    format: TableFormat
    kind: TableKind
    location: str
    """Canonical."""
    metadata_location: str
    sequence: int
    etag: str
    answer: bytes | None
    """The compressed answer to loadTable; None if the caller has it already."""
    held: Privilege = field(default=NOTHING, compare=False)
    """The privileges that the check of access found (``access.require``)."""

    @property
    def is_table(self) -> bool:
        return self.format == TableFormat.ICEBERG and self.kind == TableKind.TABLE

    @cached_property
    def document(self) -> Document:
        if self.answer is None:
            raise TypeError("the answer was not read")
        return metadata_files.read_answer(self.answer)


_COLUMNS = """
    t.digest, t.id, t.format, t.kind, t.location, coalesce(m.metadata_location, ''),
    coalesce(m.sequence, 0), coalesce(m.etag, ''),
    CASE WHEN ARRAY['*', m.etag] && string_to_array(%(etags)s, ',') THEN NULL ELSE m.answer END
"""
_METADATA = "LEFT JOIN catalog_icebergmetadata m ON m.table_id = t.id"
# As bytes: PostgreSQL's text form of them is twice as long, and has to be decoded.
_LOAD = access.TableRead(_COLUMNS, join=_METADATA, is_binary=True)
_FIND = (
    f"SELECT {_COLUMNS} FROM catalog_table t {_METADATA} WHERE t.state <> 'dropped' AND t.digest"  # noqa: S608 -- no input
)
# For a list of unknown length PostgreSQL would plan each execution, which takes longer than running it.
_FIND_ONE = f"{_FIND} = %(digests)s::uuid"
_FIND_ALL = f"{_FIND} = ANY(string_to_array(%(digests)s, ',')::uuid[])"


def on(table: Identifier, kind: TableKind = TableKind.TABLE) -> On:
    """The target for access checks: this protocol reports a missing namespace as a missing table."""
    missing = ViewNotFound if kind == TableKind.VIEW else TableNotFound
    return On.table(table, missing, tells_namespace=False)


def load_table(
    *,
    actor: Principal,
    table: Identifier,
    etags: Collection[str] = (),
    kind: TableKind = TableKind.TABLE,
) -> LoadedTable:
    """The current state of a table or view. One statement, or two (``access.TableRead``).

    ``etags`` are those of the answers that the caller has, none with a comma, or ``*`` for any: the
    answer is left out if its ETag is one of them. Raises TableNotFound, also where the namespace is
    missing (Spark's ``ns.table.files`` depends on it), or ViewNotFound; ForeignFile for a job that would
    read files that it may not.
    """
    # A job gets no 304 for an answer that it has: its rights on the files may have changed since.
    etags = [etag for etag in etags if etag == "*" or not actor.job_kind]
    values = {"digest": digest(table), "etags": ",".join(etags)}
    held, row = _LOAD.fetch(actor, Privilege.READ, on(table, kind), values)
    loaded = require_kind(table, None if row is None else _loaded(table, row), kind)
    vars(loaded)["held"] = held  # a copy would take as long as a check
    if kind == TableKind.TABLE:
        usage.count(actor, table, Read.LOAD)
    if actor.job_kind and loaded.answer is not None and kind == TableKind.TABLE:
        # The job's process reads the files in this metadata with the rights of the server.
        check = job_files.left_out if actor.job_leaves_out else job_files.require_readable
        left_out = check(loaded, loaded.document, actor.job_kind, loaded.metadata_location)
        return for_job(loaded, left_out or ())
    return loaded


def for_job(loaded: LoadedTable, left_out: Collection[str] = ()) -> LoadedTable:
    """The same table as a job on Spark gets it: without properties that Hadoop would interpret.

    ``left_out`` are files that the job must not open. Such an answer has an ETag of its own, because answers
    are cached by it. It tells the files: they differ by the kind of job, and change with rights.
    """
    document = without_settings_of_libraries(loaded.document)
    document = with_left_out_files(document, left_out)
    if document is loaded.document:
        return loaded
    text = metadata_documents.dump(document)
    answer = metadata_files.answer(loaded.metadata_location, text)
    files = f"-{_digest_of(left_out)}" if left_out else ""
    return replace(loaded, answer=answer, etag=f'{loaded.etag[:-1]}.job{files}"')


def _digest_of(files: Collection[str]) -> str:
    return hashlib.sha256(json.dumps(sorted(files)).encode()).hexdigest()


ETAG = access.TableRead(
    "m.etag",
    name="iceberg load",
    join="JOIN catalog_icebergmetadata m ON m.table_id = t.id",
    condition="t.format = 'iceberg' AND t.kind = 'table' AND t.location ^@ '/'",
)


def find_etag(*, actor: Principal, table: Identifier) -> str | None:
    """The ETag of the current answer to loadTable; None: there is no such table in local files.

    Answers for tables in object stores have credentials, which their ETags include. One statement, or two
    (``access.TableRead``). None for jobs too, which get no 304 (``load_table``).
    """
    if actor.job_kind:
        return None
    _, row = ETAG.fetch(actor, Privilege.READ, on(table), {"digest": digest(table)})
    return None if row is None else row[0]


def table_exists(
    *,
    actor: Principal,
    table: Identifier,
    kind: TableKind = TableKind.TABLE,
    privilege: Privilege = Privilege.BROWSE,
) -> None:
    """Raise TableNotFound or ViewNotFound, or PermissionDenied without the privilege on the table."""
    _, row = tables.KIND.fetch(actor, privilege, on(table, kind), {"digest": digest(table)})
    holder = None if row is None else Holder(*row)
    if holder != (TableFormat.ICEBERG, kind):
        raise not_found_but(table, holder, kind)


_HOLDER = "SELECT format, kind FROM catalog_table WHERE digest = %s AND state <> 'dropped'"


class Holder(NamedTuple):
    """What has a name."""

    format: str
    kind: str


def holder_of(table: Identifier) -> Holder | None:
    """The table or view that has a name. One statement."""
    cursor = hot_cursor()
    cursor.execute(_HOLDER, [digest(table)])
    row = cursor.fetchone()
    return None if row is None else Holder(*row)


_LIST = """
    SELECT ARRAY(
        SELECT name FROM catalog_table
        WHERE namespace_id = n.id AND state <> 'dropped' AND format = 'iceberg' AND kind = %(kind)s
          AND name > %(behind)s
        ORDER BY name LIMIT %(limit)s
    )
    FROM catalog_namespace n
    WHERE n.digest = %(digest)s AND n.dropped_at IS NULL
"""


def list_tables(
    *,
    actor: Principal,
    namespace: Identifier,
    limit: int | None = None,
    page_token: str | None = None,
    kind: TableKind = TableKind.TABLE,
) -> tuple[list[str], str | None]:
    """A page of the names of a namespace's Iceberg tables or views, and the token of the next page.

    Without a limit, all of them. Raises NamespaceNotFound. One statement.
    """
    more = limit + 1 if limit is not None else None
    if not access.sees_all_in(actor, namespace):
        return _page(list(_visible_names(actor, namespace, kind, page_token or "")[:more]), limit)
    cursor = hot_cursor()
    behind = page_token or ""
    cursor.execute(
        _LIST, {"kind": kind, "behind": behind, "limit": more, "digest": digest(namespace)}
    )
    row = cursor.fetchone()
    if row is None:
        raise NamespaceNotFound(namespace)
    return _page(row[0], limit)


def _page(names: list[str], limit: int | None) -> tuple[list[str], str | None]:
    if limit is None or len(names) <= limit:
        return names, None
    return names[:limit], names[limit - 1]


def _visible_names(
    actor: Principal, namespace: Identifier, kind: TableKind, behind: str
) -> QuerySet[Table, str]:
    """The names after ``behind``, for an actor that may browse only some of the tables."""
    rows = Table.objects.present().filter(
        access.visible_tables(actor),
        namespace__digest=digest(namespace),
        namespace__dropped_at=None,
        format=TableFormat.ICEBERG,
        kind=kind,
        name__gt=behind,
    )
    return rows.order_by("name").values_list("name", flat=True)


def find(
    tables: Collection[Identifier], etags: Collection[str] = ()
) -> dict[uuid.UUID, LoadedTable]:
    """The holders of these names, of any format, by digest. One statement.

    The answers with one of these ETags are left out.
    """
    by_digest = {digest(table): table for table in tables}
    cursor = hot_cursor()
    cursor.cursor.format = Format.BINARY
    try:
        # Lists as text, whose items contain no comma: psycopg takes 30 µs to build an array.
        cursor.execute(
            _FIND_ONE if len(by_digest) == 1 else _FIND_ALL,
            {"etags": ",".join(etags), "digests": ",".join(map(str, by_digest))},
        )
        rows = cursor.fetchall()
    finally:
        cursor.cursor.format = Format.TEXT
    return {row[0]: _loaded(by_digest[row[0]], row) for row in rows}


def _loaded(table: Identifier, row: Sequence[Any]) -> LoadedTable:
    _, pk, format_, kind, *columns = row
    return LoadedTable(table, pk, TableFormat(format_), TableKind(kind), *columns)


def require_kind(table: Identifier, holder: LoadedTable | None, kind: TableKind) -> LoadedTable:
    """Return the holder if it is an Iceberg table or view. Raises TableNotFound, ViewNotFound."""
    if holder is None or holder.format != TableFormat.ICEBERG or holder.kind != kind:
        raise not_found_but(table, holder, kind)
    return holder


def drop_table(*, actor: Principal, table: Identifier, purge: bool = False) -> Table:
    """Drop an Iceberg table; with ``purge`` a job removes the files that its metadata names.

    Returns its row. Raises TableNotFound.
    """
    operation = DropTable(table=table, format=TableFormat.ICEBERG, purge=purge)
    row: Table = commit([operation], actor=actor).results[0]
    return row


def unregister_table(*, actor: Principal, table: Identifier) -> LoadedTable:
    """Deregister an Iceberg table, which keeps its files; returns its last state.

    Raises TableNotFound.
    """
    operation = DeregisterTable(table=table, format=TableFormat.ICEBERG)
    row: Table = commit([operation], actor=actor).results[0]
    return _as_dropped(table, row)


def last_dropped(*, actor: Principal, table: Identifier) -> LoadedTable:
    """The Iceberg table that was dropped last under this name. Raises TableNotFound.

    Tables of a former namespace of the same name do not count: the actor may have created the present one.
    """
    access.require(actor, Privilege.MANAGE, On.namespace(table[:-1]))
    dropped = Table.objects.filter(
        digest=digest(table),
        namespace__in=Namespace.objects.named(table[:-1]),
        state=TableState.DROPPED,
        format=TableFormat.ICEBERG,
        kind=TableKind.TABLE,
    )
    row = dropped.select_related("iceberg_metadata").order_by("-dropped_at").first()
    if row is None:
        raise not_found_but(table, None, TableKind.TABLE)
    return _as_dropped(table, row)


def _as_dropped(table: Identifier, row: Table) -> LoadedTable:
    # A dropped table gets no commits, so this is the result of the last commit.
    last = row.iceberg_metadata
    return LoadedTable(
        table,
        row.pk,
        TableFormat.ICEBERG,
        TableKind.TABLE,
        row.location,
        last.metadata_location,
        last.sequence,
        last.etag,
        bytes(last.answer),
    )


def rename_table(*, actor: Principal, table: Identifier, new: Identifier) -> None:
    """Rename an Iceberg table, within its namespace or into another one.

    Raises TableNotFound, NamespaceNotFound, and CannotRename when the new name is taken.
    """
    try:
        commit([RenameTable(table=table, new=new, format=TableFormat.ICEBERG)], actor=actor)
    except TableAlreadyExists:
        raise CannotRename(table, new, "Table") from None
    except ViewAlreadyExists:
        raise CannotRename(table, new, "View") from None
