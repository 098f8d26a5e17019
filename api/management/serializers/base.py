"""What all serializers share: strict input, and fast output."""

from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
from drf_spectacular.utils import OpenApiExample, extend_schema_serializer
from rest_framework import serializers

from api.management import fields
from catalog.errors import InvalidInput

_PLAIN = (
    serializers.CharField,
    serializers.IntegerField,
    serializers.BooleanField,
    serializers.ChoiceField,
    serializers.DateTimeField,
    serializers.UUIDField,
    serializers.JSONField,
    serializers.DictField,
)
"""Fields whose values the renderer writes as they are."""


EXAMPLES = orjson.loads((Path(__file__).parent / "examples.json").read_bytes())
"""Examples of bodies, by the names of their serializers without the suffix, or of their formats."""


class Serializer(serializers.Serializer[Any]):
    """A serializer that refuses unknown fields.

    ``to_representation`` uses a list of getters that is made once per class. REST framework copies and
    binds all fields for each response, which takes longer than most of the queries.
    """

    default_error_messages = {"unknown": "Unknown field."}

    def __init_subclass__(cls) -> None:
        """Add the example of the class to the document."""
        super().__init_subclass__()
        value = EXAMPLES.get(cls.__name__.removesuffix("Serializer"))
        examples = [OpenApiExample("Example", value, status_codes=["200", "201", "202"])]
        extend_schema_serializer(examples=examples if value else [])(cls)

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            for name in data:
                if name not in self.fields:
                    raise serializers.ValidationError(
                        {str(name): self.error_messages["unknown"]}, code="unknown"
                    )
        return super().to_internal_value(data)

    @classmethod
    def represent(cls, instance: Any, **context: Any) -> dict[str, Any]:
        """Return the representation of an instance, or of a dict with its values."""
        representation: dict[str, Any] = cls(context=context).to_representation(instance)
        return representation

    def to_representation(self, instance: Any) -> dict[str, Any]:
        if isinstance(instance, dict):
            instance = SimpleNamespace(**instance)
        return {name: value(self, instance) for name, value in _getters(type(self))}


_Getter = Callable[[Serializer, Any], Any]


@cache
def _getters(kind: type[Serializer]) -> list[tuple[str, _Getter]]:
    return [(name, _getter(kind, field)) for name, field in kind().fields.items()]


def _getter(kind: type[Serializer], field: Any) -> _Getter:
    if isinstance(field, serializers.SerializerMethodField):
        method: _Getter = getattr(kind, field.method_name)
        return method
    read = attrgetter(field.source)
    is_plain = isinstance(field, _PLAIN) or (
        isinstance(field, serializers.ListField)
        and type(field).to_representation is serializers.ListField.to_representation
        and isinstance(field.child, _PLAIN)
    )
    if is_plain and "." not in field.source:
        return lambda _, instance: read(instance)

    def convert(_: Serializer, instance: Any) -> Any:
        try:
            value = read(instance)
        except AttributeError:
            # As ``table.format`` of a row without a table.
            if not (field.allow_null and "." in field.source):
                raise
            return None
        return value if value is None or is_plain else field.to_representation(value)

    return convert


class QuerySerializer(serializers.Serializer[Any]):
    """The parameters of a query. Empty ones count as missing; unknown ones are ignored."""

    @classmethod
    def read(cls, values: Mapping[str, str]) -> dict[str, Any]:
        """Return the parameters. Raises InvalidInput, which names the parameter and the rule."""
        try:
            present = {name: text for name, text in values.items() if text}
            validated: dict[str, Any] = _shared(cls).run_validation(present)
        except serializers.ValidationError as error:
            detail: Any = error.detail
            name, messages = next(iter(detail.items()))
            text = values.get(name)
            problem = "is missing" if text is None else f"is {text!r}"
            raise InvalidInput(f"Query parameter '{name}' {problem}; {messages[0]}") from None
        return validated

    @classmethod
    def parameters(cls) -> dict[str, Any]:
        """Return the fields by name."""
        return dict(_shared(cls).fields)


@cache
def _shared(kind: type[QuerySerializer]) -> QuerySerializer:
    """Return the instance of a class that all requests use; it keeps nothing of them."""
    return kind()


class PageQuery(QuerySerializer):
    """The parameters of a list."""

    limit = fields.CountParameter(
        help_text="The size of a page; larger numbers count as the maximum."
    )
    page_token = fields.TextParameter(help_text="`next_page_token` of the previous page.")


class ProblemSerializer(Serializer):
    """Why a request was refused (RFC 9457)."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    instance = serializers.CharField()
    request_id = serializers.CharField()
