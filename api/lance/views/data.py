"""Data: creating tables from rows, and inserting, updating, merging and deleting rows."""

import re
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

import orjson
from django.http import HttpResponse
from lance_namespace_urllib3_client import models as m
from pydantic import TypeAdapter, ValidationError

from api.lance import storage_options
from api.lance.arrow import ArrowOperation
from api.lance.once import OnceOperation
from api.lance.operation import choose
from api.operation import complaint
from catalog.access import Principal
from catalog.errors import InvalidInput, OutcomeUnknown
from catalog.formats.lance.naming import branch_name
from catalog.identifiers import Identifier
from catalog.services.lance import data as lance_data
from catalog.services.lance.commits import Written

_STRINGS = TypeAdapter(dict[str, str])
_TIMEOUT = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")
_LONGEST_SECONDS = 366 * 24 * 3600.0
_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class CreateTableMode(StrEnum):
    """What to do when a table of this name is there."""

    CREATE = "Create"
    EXIST_OK = "ExistOk"
    OVERWRITE = "Overwrite"


class InsertMode(StrEnum):
    """What an insert does with the rows of the table: keep them, or replace them."""

    APPEND = "Append"
    OVERWRITE = "Overwrite"


class CreateTable(OnceOperation, ArrowOperation):
    """Create a table from an Arrow IPC stream.

    The stream's schema becomes the table's, also if it has no rows. Modes: ``Create`` (default)
    refuses a name that is in use, ``ExistOk`` returns the existing table without reading the
    stream, ``Overwrite`` drops the existing table in the same transaction.
    """

    response_model = m.CreateTableResponse
    query = ("mode", "properties", "storage_options")
    changes = True

    def handle(self, actor: Principal, body: lance_data.Data, *, id: Identifier) -> HttpResponse:
        mode = choose(CreateTableMode, self.query_values.get("mode"), CreateTableMode.CREATE)
        self._strings("storage_options")  # checked only: the server writes with options of its own
        storage_options.require_available(actor, id)
        created = lance_data.create_table(
            actor=actor,
            table=id,
            data=body,
            mode=mode.name.lower(),
            properties=self._strings("properties"),
        )
        options = storage_options.of_new_table(actor, id, created.location)
        answer = m.CreateTableResponse(
            location=created.location,
            version=created.version,
            properties=created.properties,
            transaction_id=created.transaction_id,
            storage_options=options,
        )
        return storage_options.keep_private(self._render(answer), options)

    def kept_content(self, response: HttpResponse) -> bytes:
        """The answer without credentials, which would be old when they are repeated."""
        if "Cache-Control" not in response:
            return response.content
        answer = orjson.loads(response.content)
        del answer["storage_options"]
        return orjson.dumps(answer)

    def renewed(self, actor: Principal, response: HttpResponse) -> HttpResponse:
        """A repeated answer, with new credentials if the actor still may read the table."""
        if response.status_code != HTTPStatus.OK:
            return response
        answer = orjson.loads(response.content)
        table = self.identify(self.kwargs["id"])
        options = storage_options.of_new_table(actor, table, answer["location"])
        if options is not None:
            answer["storage_options"] = options
            response.content = orjson.dumps(answer)
        return storage_options.keep_private(response, options)

    def replay(self, change: Mapping[str, Any], transaction_id: str) -> m.CreateTableResponse:
        return m.CreateTableResponse(
            location=change["location"],
            version=1,
            properties=change["properties"],
            transaction_id=transaction_id,
        )

    def _strings(self, name: str) -> dict[str, str]:
        """A map of strings, which the query contains as JSON."""
        text = self.query_values.get(name)
        if not text:
            return {}
        try:
            return _STRINGS.validate_json(text)
        except ValidationError as error:
            raise InvalidInput(f"Query parameter '{name}': {complaint(error)}") from None


class InsertIntoTable(OnceOperation, ArrowOperation):
    """Insert the rows of an Arrow IPC stream.

    Modes: ``Append`` (default) adds the rows, ``Overwrite`` replaces all rows by them. A declared
    table is created on storage by its first insert.
    """

    response_model = m.InsertIntoTableResponse
    query = ("branch", "mode")
    changes = True

    def handle(
        self, actor: Principal, body: lance_data.Data, *, id: Identifier
    ) -> m.InsertIntoTableResponse:
        mode = choose(InsertMode, self.query_values.get("mode"), InsertMode.APPEND)
        written = lance_data.insert(
            actor=actor,
            table=id,
            data=body,
            overwrite=mode is InsertMode.OVERWRITE,
            branch=branch_name(self.query_values.get("branch")),
        )
        return m.InsertIntoTableResponse(
            transaction_id=written.transaction_id,
            num_inserted_rows=written.result,
            version=written.version,
        )

    def replay(self, change: Mapping[str, Any], transaction_id: str) -> m.InsertIntoTableResponse:
        return m.InsertIntoTableResponse(transaction_id=transaction_id, version=change["version"])


class MergeInsertIntoTable(OnceOperation, ArrowOperation):
    """Update, insert and delete rows by comparing them with an Arrow IPC stream.

    Rows match if the columns that ``on`` names are equal. The other parameters say what happens to
    rows that match and to rows that do not. The answer counts the updated, inserted and deleted
    rows. The data of one request may take MONODON_MAX_MERGE_BYTES in memory.
    """

    needs_data = True
    is_held_in_memory = True
    response_model = m.MergeInsertIntoTableResponse
    query = (
        "branch",
        "on",
        "when_matched_update_all",
        "when_matched_update_all_filt",
        "when_not_matched_insert_all",
        "when_not_matched_by_source_delete",
        "when_not_matched_by_source_delete_filt",
        "timeout",
        "use_index",
    )
    changes = True

    def merge(
        self, actor: Principal, body: lance_data.Data, table: Identifier
    ) -> Written[dict[str, int]]:
        return lance_data.merge_insert(
            actor=actor,
            table=table,
            data=body,
            clauses=self._clauses(),
            branch=branch_name(self.query_values.get("branch")),
        )

    def handle(
        self, actor: Principal, body: lance_data.Data, *, id: Identifier
    ) -> m.MergeInsertIntoTableResponse:
        written = self.merge(actor, body, id)
        counts = written.result
        return m.MergeInsertIntoTableResponse(
            transaction_id=written.transaction_id,
            num_updated_rows=counts["num_updated_rows"],
            num_inserted_rows=counts["num_inserted_rows"],
            num_deleted_rows=counts["num_deleted_rows"],
            version=written.version,
        )

    def replay(
        self, change: Mapping[str, Any], transaction_id: str
    ) -> m.MergeInsertIntoTableResponse:
        return m.MergeInsertIntoTableResponse(
            transaction_id=transaction_id, version=change["version"]
        )

    def _clauses(self) -> lance_data.MergeClauses:
        query = self.query_values
        return lance_data.MergeClauses(
            # The only parameter that may be repeated.
            on=tuple(parse_qs(self.request.META.get("QUERY_STRING", "")).get("on", ())),
            when_matched_update_all=self.flag("when_matched_update_all") is True,
            when_matched_update_all_filt=query.get("when_matched_update_all_filt") or None,
            when_not_matched_insert_all=self.flag("when_not_matched_insert_all") is True,
            when_not_matched_by_source_delete=(
                self.flag("when_not_matched_by_source_delete") is True
            ),
            when_not_matched_by_source_delete_filt=(
                query.get("when_not_matched_by_source_delete_filt") or None
            ),
            use_index=self.flag("use_index"),
            timeout=_timeout(query.get("timeout")),
        )


class UpdateTable(OnceOperation):
    """Update the rows of a table.

    Sets columns to SQL expressions, in all rows or in those that ``predicate`` selects.
    """

    needs_data = True
    request_model = m.UpdateTableRequest
    response_model = m.UpdateTableResponse
    changes = True

    def handle(
        self, actor: Principal, body: m.UpdateTableRequest, *, id: Identifier
    ) -> m.UpdateTableResponse:
        written = lance_data.update(
            actor=actor,
            table=id,
            updates=body.updates,
            predicate=body.predicate,
            properties=body.properties,
            branch=branch_name(body.branch),
        )
        return m.UpdateTableResponse(
            transaction_id=written.transaction_id,
            updated_rows=written.result,
            version=written.version,
        )

    def replay(self, change: Mapping[str, Any], transaction_id: str) -> m.UpdateTableResponse:
        # The specification requires the number of rows, which only the lost answer contained.
        raise OutcomeUnknown(
            f"The update was made before, as version {change['version']} in transaction"
            f" '{transaction_id}'; its answer is gone, and with it the number of updated rows"
        )


class DeleteFromTable(OnceOperation):
    """Delete rows of a table.

    ``predicate`` is an SQL condition that selects the rows. Older versions keep them.
    """

    needs_data = True
    request_model = m.DeleteFromTableRequest
    response_model = m.DeleteFromTableResponse
    changes = True

    def handle(
        self, actor: Principal, body: m.DeleteFromTableRequest, *, id: Identifier
    ) -> m.DeleteFromTableResponse:
        written = lance_data.delete(
            actor=actor, table=id, predicate=body.predicate, branch=branch_name(body.branch)
        )
        return m.DeleteFromTableResponse(
            transaction_id=written.transaction_id, version=written.version
        )

    def replay(self, change: Mapping[str, Any], transaction_id: str) -> m.DeleteFromTableResponse:
        return m.DeleteFromTableResponse(transaction_id=transaction_id, version=change["version"])


def _timeout(text: Any) -> timedelta | None:
    """A duration such as ``500ms``, ``30s``, ``5m`` or ``1h``."""
    if not text:
        return None
    match = _TIMEOUT.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(
            f"Query parameter 'timeout' is {text!r}; use a duration such as 30s or 5m"
        )
    # A longer duration is useless, and exceeds the range of Python's and Lance's clocks.
    return timedelta(seconds=min(float(match[1]) * _UNIT[match[2]], _LONGEST_SECONDS))
