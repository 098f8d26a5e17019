"""Policies: what they can say, what is said, and what holds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from api.management import messages as m
from api.management.operation import ManagementOperation
from catalog.access import Principal
from catalog.identifiers import Identifier
from catalog.policies import rules
from catalog.services.maintenance import policies


class ListRules(ManagementOperation):
    """What a policy can say, with units, defaults and bounds."""

    response_model = m.Rules

    def handle(self, actor: Principal, body: None) -> m.Rules:
        return m.Rules(rules=[m.RuleModel.of(rule) for rule in rules()])


def _of_namespace(actor: Principal, id: Identifier) -> m.Policy:
    return m.Policy.of(*policies.policy_of_namespace(actor=actor, namespace=id))


def _say_of_namespace(actor: Principal, id: Identifier, values: Mapping[str, Any]) -> None:
    policies.set_namespace_policy(actor=actor, namespace=id, values=values)


def _of_table(actor: Principal, id: Identifier) -> m.Policy:
    return m.Policy.of(*policies.policy_of_table(actor=actor, table=id))


def _say_of_table(actor: Principal, id: Identifier, values: Mapping[str, Any]) -> None:
    policies.set_table_policy(actor=actor, table=id, values=values)


@dataclass(frozen=True)
class _Target:
    """What has a policy, by its name."""

    find: Callable[[Principal, Identifier], m.Policy]
    say: Callable[[Principal, Identifier, Mapping[str, Any]], None]


_NAMESPACE = _Target(_of_namespace, _say_of_namespace)
_TABLE = _Target(_of_table, _say_of_table)


class _PolicyOperation(ManagementOperation):
    target: ClassVar[_Target]


class _GetPolicy(_PolicyOperation):
    response_model = m.Policy

    def handle(self, actor: Principal, body: None, id: Identifier) -> m.Policy:
        return self.target.find(actor, id)


class _SetPolicy(_PolicyOperation):
    verb = "PUT"
    changes = True
    request_model = m.SetPolicyRequest
    response_model = m.Policy

    def handle(self, actor: Principal, body: m.SetPolicyRequest, id: Identifier) -> m.Policy:
        self.target.say(actor, id, body.values)
        return self.target.find(actor, id)


class _DeletePolicy(_PolicyOperation):
    verb = "DELETE"
    changes = True

    def handle(self, actor: Principal, body: None, id: Identifier) -> None:
        self.target.say(actor, id, {})


class GetNamespacePolicy(_GetPolicy):
    """What holds for tables of a namespace, and what is said there."""

    target = _NAMESPACE


class SetNamespacePolicy(_SetPolicy):
    """Replace what is said at a namespace; what is left out is inherited."""

    target = _NAMESPACE


class DeleteNamespacePolicy(_DeletePolicy):
    """Say nothing at a namespace any more: all is inherited."""

    target = _NAMESPACE


class GetTablePolicy(_GetPolicy):
    """What holds for a table, and what is said of it alone."""

    target = _TABLE


class SetTablePolicy(_SetPolicy):
    """Replace what is said of a table alone; what is left out is inherited."""

    target = _TABLE


class DeleteTablePolicy(_DeletePolicy):
    """Say nothing of a table alone any more: all is inherited."""

    target = _TABLE
