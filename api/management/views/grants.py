"""Grants, who may do what and why, and what would be lost."""

from collections.abc import Mapping
from typing import Any, ClassVar

from api.management import grant_messages as m
from api.management.operation import ManagementOperation
from catalog.access import On, Principal
from catalog.errors import InvalidInput
from catalog.identifiers import Identifier
from catalog.privileges import parse, words
from catalog.services.access import grants

_PRINCIPAL = {"description": "The name of a principal.", "schema": {"type": "string"}}


class _Grants(ManagementOperation):
    is_table: ClassVar[bool]

    def on(self, id: Identifier) -> On:
        return On.table(id) if self.is_table else On.namespace(id)


class _List(_Grants):
    response_model = m.GrantPage
    query = ("limit", "page_token")

    def handle(self, actor: Principal, body: None, id: Identifier) -> m.GrantPage:
        rows, token = grants.list_grants(actor=actor, on=self.on(id), **self.page)
        return m.GrantPage(grants=[m.GrantModel.of(row) for row in rows], next_page_token=token)


class _Set(_Grants):
    verb = "PUT"
    changes = True
    request_model = m.SetGrantRequest
    response_model = m.Granted

    def handle(self, actor: Principal, body: m.SetGrantRequest, id: Identifier) -> m.Granted:
        granted = grants.set_grant(
            actor=actor,
            on=self.on(id),
            principal=body.principal,
            privileges=parse(body.privileges),
        )
        return m.Granted(principal=body.principal, privileges=words(granted))


class _Delete(_Grants):
    verb = "DELETE"
    changes = True
    query = ("principal",)
    described: ClassVar[Mapping[str, dict[str, Any]]] = {
        "principal": _PRINCIPAL | {"required": True}
    }

    def handle(self, actor: Principal, body: None, id: Identifier) -> None:
        principal = self.query_values.get("principal")
        if not principal:
            raise InvalidInput("Query parameter 'principal' says whose grant goes; it is missing")
        grants.set_grant(actor=actor, on=self.on(id), principal=principal, privileges=parse([]))


class _Explain(_Grants):
    response_model = m.AccessPage
    query = ("principal", "limit", "page_token")
    described: ClassVar[Mapping[str, dict[str, Any]]] = {"principal": _PRINCIPAL}

    def handle(self, actor: Principal, body: None, id: Identifier) -> m.AccessPage:
        principal = self.query_values.get("principal") or None
        explanation, token = grants.explain(
            actor=actor, on=self.on(id), principal=principal, **self.page
        )
        return m.AccessPage(
            principals=[m.HolderModel.of(holder) for holder in explanation], next_page_token=token
        )


class _WhatIf(_Grants):
    verb = "POST"
    request_model = m.WhatIfRequest
    response_model = m.LossPage
    query = ("limit", "page_token")

    def handle(self, actor: Principal, body: m.WhatIfRequest, id: Identifier) -> m.LossPage:
        losses, token = grants.what_if(
            actor=actor,
            on=self.on(id),
            principal=body.principal,
            privileges=parse(body.privileges),
            **self.page,
        )
        return m.LossPage(
            principals=[m.LossModel.of(loss) for loss in losses], next_page_token=token
        )


class ListNamespaceGrants(_List):
    """What is granted on this very namespace."""

    is_table = False


class SetNamespaceGrant(_Set):
    """Grant a principal exactly these privileges on a namespace and all below it."""

    is_table = False


class DeleteNamespaceGrant(_Delete):
    """Take away what a principal was granted on a namespace."""

    is_table = False


class ExplainNamespaceAccess(_Explain):
    """Who may do what with a namespace, and why."""

    is_table = False


class WhatIfNamespaceGrant(_WhatIf):
    """Who would lose what without a grant on a namespace; nothing is changed."""

    is_table = False


class ListTableGrants(_List):
    """What is granted on this very table or view."""

    is_table = True


class SetTableGrant(_Set):
    """Grant a principal exactly these privileges on a table or view."""

    is_table = True


class DeleteTableGrant(_Delete):
    """Take away what a principal was granted on a table or view."""

    is_table = True


class ExplainTableAccess(_Explain):
    """Who may do what with a table or view, and why."""

    is_table = True


class WhatIfTableGrant(_WhatIf):
    """Who would lose what without a grant on a table or view; nothing is changed."""

    is_table = True
