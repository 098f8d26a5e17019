"""Principals, members of groups, API keys, and the sign-on of the command line."""

from datetime import timedelta
from functools import partial

from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from api.management.serializers import access as s
from api.management.viewsets import ManagementViewSet
from catalog import identifiers
from catalog.models import ApiKey
from catalog.services.access import api_keys, principals, sign_on
from catalog.services.audit.issued_credentials import remaining_access

_SIGN_ON_SECONDS = 300
"""How long caches may keep the sign-on document."""


class PrincipalViewSet(ManagementViewSet):
    lookup_field = "principal"
    lookup_value_regex = "[^/]+"
    results_field = "principals"
    resource = "Principal"
    query_classes = {"list": s.PrincipalQuery}

    @extend_schema(responses=s.PrincipalSerializer(many=True))
    def list(self, request: Request) -> Response:
        """List principals by name.

        For administrators.
        """
        kinds = self.query()["kind"]
        return self.page(
            partial(principals.list_principals, actor=self.principal, kinds=kinds),
            s.PrincipalSerializer,
        )

    @extend_schema(request=s.CreatePrincipalSerializer, responses={201: s.PrincipalSerializer})
    def create(self, request: Request) -> Response:
        """Create a person, a group or a service account.

        For administrators.
        """
        body = self.read_body(s.CreatePrincipalSerializer)
        row = principals.create_principal(actor=self.principal, **body)
        return Response(s.PrincipalSerializer.represent(row), status=201)

    @extend_schema(responses=s.PrincipalSerializer)
    def retrieve(self, request: Request, principal: str) -> Response:
        """Get a principal with its groups.

        For administrators and the principal itself.
        """
        row = principals.find_principal(actor=self.principal, name=principal)
        return Response(s.PrincipalSerializer.represent(row))

    @extend_schema(request=s.UpdatePrincipalSerializer, responses=s.PrincipalSerializer)
    def partial_update(self, request: Request, principal: str) -> Response:
        """Change a principal.

        For administrators. Omitted fields keep their values.
        """
        body = self.read_body(s.UpdatePrincipalSerializer)
        row = principals.update_principal(actor=self.principal, name=principal, **body)
        return Response(s.PrincipalSerializer.represent(row))


class MembersViewSet(ManagementViewSet):
    results_field = "principals"
    resource = "Member"
    query_classes = {"list": s.MemberQuery}

    @extend_schema(responses=s.PrincipalSerializer(many=True))
    def list(self, request: Request, principal: str) -> Response:
        """List the members of a group by name.

        For administrators.
        """
        rows = partial(
            principals.list_members, actor=self.principal, group=principal, **self.query()
        )
        return self.page(rows, s.PrincipalSerializer)


class MemberViewSet(ManagementViewSet):
    operation_ids = {"update": "AddMember", "destroy": "RemoveMember"}

    @extend_schema(request=None, responses={204: None})
    def update(self, request: Request, principal: str, member: str) -> Response:
        """Add a person or a service account to a group.

        For administrators.
        """
        principals.add_member(actor=self.principal, group=principal, member=member)
        return Response(status=204)

    def destroy(self, request: Request, principal: str, member: str) -> Response:
        """Remove a member from a group.

        For administrators.
        """
        principals.remove_member(actor=self.principal, group=principal, member=member)
        return Response(status=204)


class KeyViewSet(ManagementViewSet):
    lookup_field = "key"
    lookup_value_regex = "[^/]+"
    results_field = "keys"
    secret_actions = frozenset({"create", "rotate"})
    resource = "Key"
    query_classes = {"list": s.KeyQuery}

    @extend_schema(responses=s.KeySerializer(many=True))
    def list(self, request: Request) -> Response:
        """List API keys by name.

        All keys for administrators, otherwise those of the caller. Without their secrets.
        """
        return self.page(
            partial(api_keys.list_api_keys, actor=self.principal, **self.query()), s.KeySerializer
        )

    @extend_schema(request=s.CreateKeySerializer, responses={201: s.NewKeySerializer})
    def create(self, request: Request) -> Response:
        """Create an API key.

        The response has the secret, which cannot be retrieved later. A principal's own key permits at
        most what the key of the request permits.
        """
        body = self.read_body(s.CreateKeySerializer)
        # Null means that the key never expires; without the field, the default applies.
        never_expires = "expires_at" in body and body["expires_at"] is None
        if body["namespace"] is not None:
            body["namespace"] = identifiers.check(body["namespace"])
        is_dry_run = body["dry_run"]
        with self.rehearsal(body):
            options = {"expires_at": None, **body, "never_expires": never_expires}
            row, secret = api_keys.add_key(actor=self.principal, **options)
        return self._created(row, secret, is_dry_run=is_dry_run)

    @extend_schema(responses=s.KeySerializer)
    def retrieve(self, request: Request, key: str) -> Response:
        """Get an API key.

        Its limits, its end and its last use, without its secret.
        """
        row = api_keys.find_api_key(actor=self.principal, name=key)
        return Response(s.KeySerializer.represent(row))

    @extend_schema(request=s.RotateKeySerializer, responses={201: s.NewKeySerializer})
    @action(detail=True, methods=["post"])
    def rotate(self, request: Request, key: str) -> Response:
        """Replace an API key by a new one.

        The old key stays valid for the overlap. The response has the new secret.
        """
        body = self.read_body(s.RotateKeySerializer)
        is_dry_run = body["dry_run"]
        with self.rehearsal(body):
            row, secret = api_keys.rotate(
                actor=self.principal,
                key=api_keys.find_api_key(actor=self.principal, name=key),
                overlap=timedelta(seconds=body["overlap_seconds"]),
                name=body["name"],
                expires_at=body["expires_at"],
            )
        return self._created(row, secret, is_dry_run=is_dry_run)

    @extend_schema(request=None, responses=s.RevokedKeySerializer)
    @action(detail=True, methods=["post"])
    def revoke(self, request: Request, key: str) -> Response:
        """Revoke an API key at once.

        Other servers may accept it for at most five more seconds.
        """
        row = api_keys.find_api_key(actor=self.principal, name=key)
        api_keys.revoke_api_key(actor=self.principal, key=row)
        row.refresh_from_db(fields=["revoked_at"])
        remaining = remaining_access(row.principal.name, actor=self.principal)
        return Response(s.RevokedKeySerializer.represent(row, remaining=remaining))

    def _created(self, row: ApiKey, secret: str, *, is_dry_run: bool) -> Response:
        if is_dry_run:  # nobody gets the secret of a key that does not exist
            row.prefix = secret = ""
        return Response(s.NewKeySerializer.represent({"key": secret, "details": row}), status=201)


class SignOnViewSet(ManagementViewSet):
    """The operation that clients send before they have credentials."""

    resource = "SignOn"
    authentication_classes = []
    permission_classes = []

    def perform_authentication(self, request: Request) -> None:
        """Leave the request without a principal."""

    @extend_schema(responses=s.SignOnSerializer)
    def retrieve(self, request: Request) -> Response:
        """Get the client with which the command line signs people in.

        Needs no credentials. `device` has the issuer, the public client and the scopes of the device
        authorization grant (RFC 8628); null: single sign-on is not configured for the command line.
        """
        content = s.SignOnSerializer.represent({"device": sign_on.device_client()})
        headers = {"Cache-Control": f"public, max-age={_SIGN_ON_SECONDS}"}
        return Response(content, headers=headers)
