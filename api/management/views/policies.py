"""Policies: what they can say, what is said, and what holds."""

from api.management import messages as m
from api.management.operation import ManagementOperation
from catalog.identifiers import Identifier
from catalog.policies import RULES
from catalog.services import policies
from catalog.services.access import Principal


class ListRules(ManagementOperation):
    """What a policy can say, with units, defaults and bounds."""

    response_model = m.Rules

    def handle(self, actor: Principal, body: None) -> m.Rules:
        return m.Rules(rules=[m.RuleModel.of(rule) for rule in RULES])


class GetNamespacePolicy(ManagementOperation):
    """What holds for tables of a namespace, and what is said there."""

    response_model = m.Policy

    def handle(self, actor: Principal, body: None, id: Identifier) -> m.Policy:
        return m.Policy.of(*policies.policy_of_namespace(actor=actor, namespace=id))


class SetNamespacePolicy(ManagementOperation):
    """Replace what is said at a namespace; what is left out is inherited."""

    verb = "PUT"
    changes = True
    request_model = m.SetPolicyRequest
    response_model = m.Policy

    def handle(self, actor: Principal, body: m.SetPolicyRequest, id: Identifier) -> m.Policy:
        policies.set_namespace_policy(actor=actor, namespace=id, values=body.values)
        return m.Policy.of(*policies.policy_of_namespace(actor=actor, namespace=id))


class DeleteNamespacePolicy(ManagementOperation):
    """Say nothing at a namespace any more: all is inherited."""

    verb = "DELETE"
    changes = True

    def handle(self, actor: Principal, body: None, id: Identifier) -> None:
        policies.set_namespace_policy(actor=actor, namespace=id, values={})


class GetTablePolicy(ManagementOperation):
    """What holds for a table, and what is said of it alone."""

    response_model = m.Policy

    def handle(self, actor: Principal, body: None, id: Identifier) -> m.Policy:
        return m.Policy.of(*policies.policy_of_table(actor=actor, table=id))


class SetTablePolicy(ManagementOperation):
    """Replace what is said of a table alone; what is left out is inherited."""

    verb = "PUT"
    changes = True
    request_model = m.SetPolicyRequest
    response_model = m.Policy

    def handle(self, actor: Principal, body: m.SetPolicyRequest, id: Identifier) -> m.Policy:
        policies.set_table_policy(actor=actor, table=id, values=body.values)
        return m.Policy.of(*policies.policy_of_table(actor=actor, table=id))


class DeleteTablePolicy(ManagementOperation):
    """Say nothing of a table alone any more: all is inherited."""

    verb = "DELETE"
    changes = True

    def handle(self, actor: Principal, body: None, id: Identifier) -> None:
        policies.set_table_policy(actor=actor, table=id, values={})
