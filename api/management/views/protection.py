"""What nobody may drop, and the rules of namespaces: retention, and what needs a second person."""

from api.management import recovery_messages as m
from api.management.operation import ManagementOperation
from catalog.access import Principal
from catalog.identifiers import Identifier
from catalog.services.recovery import undrop


class GetNamespaceProtection(ManagementOperation):
    """Whether a namespace is protected."""

    response_model = m.Protection

    def handle(self, actor: Principal, body: None, id: Identifier) -> m.Protection:
        return m.Protection.of(undrop.rules_of(actor=actor, namespace=id).namespace)


class SetNamespaceProtection(ManagementOperation):
    """Protect a namespace, or take its protection off, which may need a second person."""

    verb = "PUT"
    changes = True
    request_model = m.SetProtectionRequest
    response_model = m.Protection

    def handle(
        self, actor: Principal, body: m.SetProtectionRequest, id: Identifier
    ) -> m.Protection:
        row = undrop.set_namespace_protection(
            actor=actor, namespace=id, is_protected=body.protected, reason=body.reason
        )
        return m.Protection.of(row)


class GetTableProtection(ManagementOperation):
    """Whether a table or view is protected."""

    response_model = m.Protection

    def handle(self, actor: Principal, body: None, id: Identifier) -> m.Protection:
        return m.Protection.of(undrop.table_protection(actor=actor, table=id))


class SetTableProtection(ManagementOperation):
    """Protect a table or view, or take its protection off."""

    verb = "PUT"
    changes = True
    request_model = m.SetProtectionRequest
    response_model = m.Protection

    def handle(
        self, actor: Principal, body: m.SetProtectionRequest, id: Identifier
    ) -> m.Protection:
        row = undrop.set_table_protection(actor=actor, table=id, is_protected=body.protected)
        return m.Protection.of(row)


class GetRetention(ManagementOperation):
    """How long what is dropped in a namespace can be brought back."""

    response_model = m.Retention

    def handle(self, actor: Principal, body: None, id: Identifier) -> m.Retention:
        return m.Retention.of(undrop.rules_of(actor=actor, namespace=id))


class SetRetention(ManagementOperation):
    """Say how long what is dropped in a namespace can be brought back, or inherit it."""

    verb = "PUT"
    changes = True
    request_model = m.SetRetentionRequest
    response_model = m.Retention

    def handle(self, actor: Principal, body: m.SetRetentionRequest, id: Identifier) -> m.Retention:
        return m.Retention.of(undrop.set_retention(actor=actor, namespace=id, seconds=body.seconds))


class GetApprovalRule(ManagementOperation):
    """What needs a second person in a namespace, and what is said there."""

    response_model = m.ApprovalRule

    def handle(self, actor: Principal, body: None, id: Identifier) -> m.ApprovalRule:
        return m.ApprovalRule.of(undrop.rules_of(actor=actor, namespace=id))


class SetApprovalRule(ManagementOperation):
    """Say what needs a second person in a namespace. To ask for less needs one by itself."""

    verb = "PUT"
    changes = True
    request_model = m.SetApprovalRuleRequest
    response_model = m.ApprovalRule

    def handle(
        self, actor: Principal, body: m.SetApprovalRuleRequest, id: Identifier
    ) -> m.ApprovalRule:
        return m.ApprovalRule.of(
            undrop.set_approval_rule(
                actor=actor, namespace=id, actions=body.actions, reason=body.reason
            )
        )
