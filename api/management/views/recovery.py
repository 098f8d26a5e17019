"""The trash, undropping and purging its objects, and the repair of Lance tables."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from api.management.serializers import recovery as s
from api.management.viewsets import ManagementViewSet
from catalog import access
from catalog.errors import TrashItemNotFound
from catalog.services.recovery import lance_repair, undrop
from catalog.services.storage import file_references


class TrashViewSet(ManagementViewSet):
    lookup_field = "item"
    lookup_value_regex = "[^/]+"
    results_field = "items"
    resource = "TrashItem"
    operation_ids = {"list": "ListTrash"}
    query_classes = {"list": s.TrashQuery}

    @extend_schema(responses=s.TrashItemSerializer(many=True))
    def list(self, request: Request) -> Response:
        """List dropped objects, newest first."""
        query = self.query()
        namespace = self.identify(query["namespace"]) if query["namespace"] else None
        rows = self.paginate_queryset(
            partial(  # type: ignore[arg-type]
                undrop.list_trash,
                actor=self.principal,
                namespace=namespace,
                dropped_by=query["dropped_by"],
            )
        )
        return self.get_paginated_response(self._represent(rows or []))

    @extend_schema(responses=s.TrashItemSerializer)
    def retrieve(self, request: Request, item: str) -> Response:
        """Get a dropped object."""
        row = undrop.find_item(actor=self.principal, item=self._item)
        return Response(self._represent([row])[0])

    @extend_schema(request=s.UndropSerializer, responses=s.UndroppedSerializer)
    @action(detail=True, methods=["post"])
    def undrop(self, request: Request, item: str) -> Response:
        """Undrop a table, a view, or a namespace with everything dropped with it."""
        body = self.read_body(s.UndropSerializer)
        new = None if body["new"] is None else tuple(body["new"])
        with self.rehearsal(body):
            row = undrop.undrop(actor=self.principal, item=self._item, **{**body, "new": new})
            return Response(s.UndroppedSerializer.represent(row))

    @extend_schema(request=s.PurgeSerializer, responses={202: s.PurgeJobsSerializer})
    @action(detail=True, methods=["post"])
    def purge(self, request: Request, item: str) -> Response:
        """Purge an object before its retention time ends.

        The purge can be stopped for a short time before it begins. It may require approval.
        """
        body = self.read_body(s.PurgeSerializer)
        jobs = undrop.purge_now(actor=self.principal, item=self._item, **body)
        return Response(s.PurgeJobsSerializer.represent(jobs), status=202)

    @extend_schema(request=None, responses=s.TrashItemSerializer)
    @action(detail=True, methods=["post"])
    def keep(self, request: Request, item: str) -> Response:
        """Stop a purge that has not begun.

        The object is then kept until it is purged on request.
        """
        row = undrop.stop_purge(actor=self.principal, item=self._item)
        return Response(self._represent([row])[0])

    @property
    def _item(self) -> int:
        return self.number("item", TrashItemNotFound)

    def _represent(self, rows: Sequence[Any]) -> Any:
        tables = [row.table_id for row in rows if row.table_id is not None]
        readable = access.readable_tables(self.principal, tables)
        dependents = file_references.dependents_of(self.principal, readable)
        context = {"readable": readable, "dependents": dependents}
        return s.TrashItemSerializer(rows, many=True, context=context).data


class RepairViewSet(ManagementViewSet):
    operation_ids = {"create": "RepairTable"}

    @extend_schema(request=s.RepairTableSerializer, responses={200: s.RepairReportSerializer})
    def create(self, request: Request, id: str) -> Response:
        """Repair a Lance table.

        Compares the ledger with the storage, and publishes a complete version if the newest one is
        incomplete. With ``dry_run``, it only reports.
        """
        body = self.read_body(s.RepairTableSerializer)
        report = lance_repair.repair(
            actor=self.principal, table=self.identifier, is_dry_run=body["dry_run"]
        )
        return Response(s.RepairReportSerializer.represent(report))
