"""The base of all views of the management API."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, ClassVar, cast

from django.http import HttpRequest
from rest_framework import serializers
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSetMixin

from api import request_facts
from api.front import marker
from api.hosts import check_host
from api.management import exceptions
from api.management.authentication import IsPrincipal, KeyAuthentication
from api.management.pagination import List, TokenPagination
from api.management.parsers import IgnoreClientNegotiation, JSONRenderer, ObjectParser
from api.management.serializers.base import QuerySerializer
from api.operation import parse_query
from catalog import identifiers
from catalog.access import Principal
from catalog.errors import CatalogError, InvalidInput
from catalog.identifiers import Identifier
from catalog.models.audit import Interface
from catalog.services.engine.transactions import rehearsal


class ManagementView(GenericAPIView[Any]):
    """A view that authenticates by key, reads JSON objects, and answers failures with problems.

    Views call one service each. Privileges, transactions and locks are the services' concern.
    """

    authentication_classes = [KeyAuthentication]
    permission_classes = [IsPrincipal]
    parser_classes = [ObjectParser]
    renderer_classes = [JSONRenderer]
    content_negotiation_class = IgnoreClientNegotiation
    pagination_class: type[TokenPagination] | None = TokenPagination
    results_field = ""
    """The field of the rows of a list."""
    serializer_class = serializers.Serializer
    # HEAD and OPTIONS are refused: a HEAD would do the work of a GET.
    http_method_names = ["get", "post", "put", "patch", "delete"]

    interface = Interface.MANAGEMENT
    operation: str = "other"
    """The operationId of the request; metrics, logs and the audit trail of refusals name it."""
    changes: bool = False
    """True if the operation writes."""
    actor: Principal | None = None
    """The principal, after authentication."""
    query_values: Mapping[str, str] = MappingProxyType({})

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Check the head of the request. Raises BodyAwaited if the body is to be read first."""
        plain = request._request  # noqa: SLF001 -- Django's request
        plain.operation = self.operation  # type: ignore[attr-defined]
        front = plain.META.get(marker.KEY)
        check_host(plain)
        if isinstance(front, CatalogError):
            raise front
        self.query_values = parse_query(plain.META.get("QUERY_STRING", ""))
        super().initial(request, *args, **kwargs)
        if front is marker.BodyState.AWAITED:
            raise exceptions.BodyAwaited

    def perform_authentication(self, request: Request) -> None:
        self.actor = self.principal

    @property
    def default_response_headers(self) -> dict[str, str]:
        return {}

    def get_exception_handler(self) -> Any:
        return exceptions.handle

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Render here, so that a failure to render is handled as any other."""
        plain = request._request  # noqa: SLF001 -- Django's request
        plain.target = self.kwargs, self.query_values.get("delimiter")  # type: ignore[attr-defined]
        response = super().finalize_response(request, response, *args, **kwargs)
        if isinstance(response, Response):
            try:
                response.render()
            except Exception as error:  # noqa: BLE001 -- the outermost frame
                return self.handle_exception(error)
        return response

    # -- the request

    @property
    def principal(self) -> Principal:
        """The user of the request, for the services."""
        user: Any = self.request.user
        return cast(Principal, user)

    def read_object(self) -> dict[str, Any]:
        """Return the JSON object of the body. Raises InvalidInput, and as ObjectParser."""
        if self.request.stream is None:
            raise InvalidInput("The request body is not valid JSON: it is empty")
        return cast(dict[str, Any], self.request.data)

    def read_body(self, serializer_class: type[serializers.Serializer[Any]]) -> Any:
        """Return the validated body. Raises InvalidInput, which names the field and the rule."""
        serializer = serializer_class(data=self.read_object())
        serializer.is_valid(raise_exception=True)
        return serializer.validated_data

    def read_query(self, query_class: type[QuerySerializer]) -> dict[str, Any]:
        """Return the validated query parameters. Raises InvalidInput."""
        return query_class.read(self.query_values)

    @property
    def identifier(self) -> Identifier:
        """The namespace or table of the path. Raises InvalidIdentifier."""
        return self.identify(self.kwargs["id"])

    def identify(self, text: str) -> Identifier:
        """Return the identifier that a path or a parameter names. The delimiter alone is the root."""
        delimiter = self.query_values.get("delimiter", identifiers.DEFAULT_DELIMITER)
        return identifiers.parse(text, delimiter)

    def number(self, name: str, error: type[CatalogError]) -> int:
        """Return a number of the path. Raises ``error`` for other text."""
        text: str = self.kwargs[name]
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise error(text)
        return int(text)

    @property
    def audit_target(self) -> str:
        """The object of the request, as refusals in the audit trail name it."""
        return request_facts.name(self.kwargs, self.query_values.get("delimiter"))

    def rehearsal(self, body: dict[str, Any]) -> AbstractContextManager[None]:
        """Take ``dry_run`` from the body; if it is true, the changes of the block are rolled back."""
        return rehearsal(self.principal, is_dry_run=body.pop("dry_run"))

    # -- the response

    def page(self, rows: List, serializer_class: type[serializers.Serializer[Any]]) -> Response:
        """Return the requested page of a service's list."""
        page = self.paginate_queryset(rows)  # type: ignore[arg-type]
        return self.get_paginated_response(serializer_class(page, many=True).data)


_VERBS = {"retrieve": "Get", "update": "Set", "partial_update": "Update", "destroy": "Delete"}


class ManagementViewSet(ViewSetMixin, ManagementView):
    """The operations on a resource."""

    resource: ClassVar[str] = ""
    """The name of the resource in the operationIds of its actions: ``Key`` in ``ListKeys``."""
    operation_ids: ClassVar[Mapping[str, str]] = {}
    """The operationIds of actions that ``resource`` does not name."""
    dry_actions: ClassVar[frozenset[str]] = frozenset()
    """Actions whose method is not GET, and which change nothing."""
    secret_actions: ClassVar[frozenset[str]] = frozenset()
    """Actions whose responses have a secret, which no cache may store."""
    query_classes: ClassVar[Mapping[str, type[QuerySerializer]]] = {}
    """The query parameters of actions, beside those of pages and the delimiter."""

    @classmethod
    def operation_id(cls, action: str) -> str:
        """Return the operationId of an action."""
        verb = _VERBS.get(action, action.capitalize())
        return cls.operation_ids.get(action) or f"{verb}{cls.resource}{'s' * (action == 'list')}"

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        initialized: Request = super().initialize_request(request, *args, **kwargs)
        # DRF adds HEAD to the routes of GET, although it is refused.
        method = (request.method or "").lower()
        action = self.action if method in self.http_method_names else None
        if action is not None:
            self.operation = self.operation_id(action)
            self.changes = method != "get" and action not in self.dry_actions
        else:
            self.operation = "WrongMethod"
        return initialized

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        if self.action in self.secret_actions:
            response.headers["Cache-Control"] = "no-store"
        return response

    def query(self) -> dict[str, Any]:
        """Return the validated query parameters of the action. Raises InvalidInput."""
        return self.read_query(self.query_classes[self.action])
