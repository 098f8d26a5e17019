"""Principals: people, groups and service accounts, and who is in which group."""

from http import HTTPStatus

from api.management import principal_messages as m
from api.management.operation import ManagementOperation
from catalog.access import Principal
from catalog.models import PrincipalKind
from catalog.services.access import principals

_KIND = {
    "description": f"Some of {', '.join(PrincipalKind.values)}, between commas.",
    "schema": {"type": "string"},
}


class ListPrincipals(ManagementOperation):
    """All principals by name; for administrators."""

    response_model = m.PrincipalPage
    query = ("kind", "limit", "page_token")
    described = {"kind": _KIND}

    def handle(self, actor: Principal, body: None) -> m.PrincipalPage:
        rows, token = principals.list_principals(
            actor=actor, kinds=self.chosen("kind", PrincipalKind), **self.page
        )
        items = [m.PrincipalModel.of(row) for row in rows]
        return m.PrincipalPage(principals=items, next_page_token=token)


class CreatePrincipal(ManagementOperation):
    """Make a person, a group or a service account; for administrators."""

    verb = "POST"
    changes = True
    request_model = m.CreatePrincipalRequest
    response_model = m.PrincipalModel
    status = HTTPStatus.CREATED

    def handle(self, actor: Principal, body: m.CreatePrincipalRequest) -> m.PrincipalModel:
        row = principals.create_principal(actor=actor, **dict(body))
        return m.PrincipalModel.of(row)


class GetPrincipal(ManagementOperation):
    """A principal with its groups; for administrators and itself."""

    response_model = m.PrincipalModel

    def handle(self, actor: Principal, body: None, principal: str) -> m.PrincipalModel:
        return m.PrincipalModel.of(principals.find_principal(actor=actor, name=principal))


class UpdatePrincipal(ManagementOperation):
    """Change its level, who vouches for it, or whether it is active; for administrators."""

    verb = "PATCH"
    changes = True
    request_model = m.UpdatePrincipalRequest
    response_model = m.PrincipalModel

    def handle(
        self, actor: Principal, body: m.UpdatePrincipalRequest, principal: str
    ) -> m.PrincipalModel:
        row = principals.update_principal(actor=actor, name=principal, **dict(body))
        return m.PrincipalModel.of(row)


class AddMember(ManagementOperation):
    """Put a person or a service account into a group; for administrators."""

    verb = "PUT"
    changes = True

    def handle(self, actor: Principal, body: None, principal: str, member: str) -> None:
        principals.add_member(actor=actor, group=principal, member=member)


class RemoveMember(ManagementOperation):
    """Take it out of the group; for administrators."""

    verb = "DELETE"
    changes = True

    def handle(self, actor: Principal, body: None, principal: str, member: str) -> None:
        principals.remove_member(actor=actor, group=principal, member=member)
