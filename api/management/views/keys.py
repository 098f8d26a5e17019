"""API keys: administrators manage all of them, everybody else their own."""

from datetime import timedelta
from http import HTTPStatus

from api.management import principal_messages as m
from api.management.operation import ManagementOperation, SecretOperation
from catalog import identifiers
from catalog.access import Principal
from catalog.services.access import api_keys

_PRINCIPAL = {"description": "Whose keys.", "schema": {"type": "string"}}


class ListKeys(ManagementOperation):
    """Keys by name, without the keys themselves: all for administrators, else one's own."""

    response_model = m.KeyPage
    query = ("principal", "limit", "page_token")
    described = {"principal": _PRINCIPAL}

    def handle(self, actor: Principal, body: None) -> m.KeyPage:
        whose = self.query_values.get("principal") or None
        rows, token = api_keys.list_api_keys(actor=actor, principal=whose, **self.page)
        return m.KeyPage(keys=[m.KeyModel.of(row) for row in rows], next_page_token=token)


class CreateKey(SecretOperation):
    """Make a key, told in this answer and never again; one's own does no more than the asking one."""

    verb = "POST"
    changes = True
    request_model = m.CreateKeyRequest
    response_model = m.NewKey
    status = HTTPStatus.CREATED

    def handle(self, actor: Principal, body: m.CreateKeyRequest) -> m.NewKey:
        # Null says "never"; a request without an end gets the default.
        says_never = "expires_at" in body.model_fields_set and body.expires_at is None
        options = dict(body) | {"never_expires": says_never}
        if body.namespace is not None:
            options["namespace"] = identifiers.check(body.namespace)
        row, secret = api_keys.add_key(actor=actor, **options)
        return m.NewKey(key=secret, details=m.KeyModel.of(row))


class GetKey(ManagementOperation):
    """What a key may do, when it ends, and when it was used; never the key itself."""

    response_model = m.KeyModel

    def handle(self, actor: Principal, body: None, key: str) -> m.KeyModel:
        return m.KeyModel.of(api_keys.find_api_key(actor=actor, name=key))


class RotateKey(SecretOperation):
    """Make a key that takes the place of this one, which goes on for the overlap."""

    verb = "POST"
    changes = True
    request_model = m.RotateKeyRequest
    response_model = m.NewKey
    status = HTTPStatus.CREATED

    def handle(self, actor: Principal, body: m.RotateKeyRequest, key: str) -> m.NewKey:
        row, secret = api_keys.rotate(
            actor=actor,
            key=api_keys.find_api_key(actor=actor, name=key),
            overlap=timedelta(seconds=body.overlap_seconds),
            name=body.name,
            expires_at=body.expires_at,
        )
        return m.NewKey(key=secret, details=m.KeyModel.of(row))


class RevokeKey(ManagementOperation):
    """End a key at once; other servers take it for five more seconds at most."""

    verb = "POST"
    changes = True
    response_model = m.KeyModel

    def handle(self, actor: Principal, body: None, key: str) -> m.KeyModel:
        row = api_keys.find_api_key(actor=actor, name=key)
        api_keys.revoke_api_key(actor=actor, key=row)
        row.refresh_from_db(fields=["revoked_at"])
        return m.KeyModel.of(row)
