"""Protection of objects, and rules of namespaces: retention times and required approvals."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api.management.serializers import recovery as s
from api.management.viewsets import ManagementViewSet
from catalog.models import Namespace, Table
from catalog.services.recovery import undrop


class NamespaceProtectionViewSet(ManagementViewSet):
    resource = "NamespaceProtection"

    @extend_schema(responses=s.ProtectionSerializer)
    def retrieve(self, request: Request, id: str) -> Response:
        """Get the protection of an object."""
        return Response(s.ProtectionSerializer.represent(self._read()))

    @extend_schema(request=s.SetProtectionSerializer, responses=s.ProtectionSerializer)
    def update(self, request: Request, id: str) -> Response:
        """Set or remove the protection of an object.

        Removing that of a namespace may require approval.
        """
        body = self.read_body(s.SetProtectionSerializer)
        with self.rehearsal(body):
            return Response(s.ProtectionSerializer.represent(self._write(**body)))

    def _read(self) -> Namespace | Table:
        rules = undrop.rules_of(actor=self.principal, namespace=self.identifier)
        return rules.namespace

    def _write(self, protected: bool, reason: str) -> Namespace | Table:
        return undrop.set_namespace_protection(
            actor=self.principal,
            namespace=self.identifier,
            is_protected=protected,
            reason=reason,
        )


class TableProtectionViewSet(NamespaceProtectionViewSet):
    resource = "TableProtection"

    def _read(self) -> Namespace | Table:
        return undrop.table_protection(actor=self.principal, table=self.identifier)

    def _write(self, protected: bool, reason: str) -> Namespace | Table:
        return undrop.set_table_protection(
            actor=self.principal, table=self.identifier, is_protected=protected
        )


class RetentionViewSet(ManagementViewSet):
    resource = "Retention"

    @extend_schema(responses=s.RetentionSerializer)
    def retrieve(self, request: Request, id: str) -> Response:
        """Get the retention time of dropped objects."""
        rules = undrop.rules_of(actor=self.principal, namespace=self.identifier)
        return Response(s.RetentionSerializer.represent(rules))

    @extend_schema(request=s.SetRetentionSerializer, responses=s.RetentionSerializer)
    def update(self, request: Request, id: str) -> Response:
        """Set the retention time of dropped objects, or inherit it."""
        body = self.read_body(s.SetRetentionSerializer)
        rules = undrop.set_retention(
            actor=self.principal, namespace=self.identifier, seconds=body["seconds"]
        )
        return Response(s.RetentionSerializer.represent(rules))


class ApprovalRuleViewSet(ManagementViewSet):
    resource = "ApprovalRule"

    @extend_schema(responses=s.ApprovalRuleSerializer)
    def retrieve(self, request: Request, id: str) -> Response:
        """Get the actions that require approval in a namespace."""
        rules = undrop.rules_of(actor=self.principal, namespace=self.identifier)
        return Response(s.ApprovalRuleSerializer.represent(rules))

    @extend_schema(request=s.SetApprovalRuleSerializer, responses=s.ApprovalRuleSerializer)
    def update(self, request: Request, id: str) -> Response:
        """Set the actions that require approval in a namespace.

        Removing an action requires approval itself.
        """
        body = self.read_body(s.SetApprovalRuleSerializer)
        rules = undrop.set_approval_rule(actor=self.principal, namespace=self.identifier, **body)
        return Response(s.ApprovalRuleSerializer.represent(rules))
