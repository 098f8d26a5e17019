"""Fields that refuse values of other types instead of converting them."""

from datetime import UTC, datetime
from enum import Enum
from typing import Any

from django.utils.dateparse import parse_datetime
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

_TRUE, _FALSE = frozenset({"true", "1"}), frozenset({"false", "0"})

OPTIONAL: dict[str, Any] = {"default": None, "allow_null": True}
"""Of a field whose absence, or null, leaves the value as it is."""


class TextField(serializers.CharField):
    """Text as it was sent, which may be empty. Numbers are not text."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"trim_whitespace": False, "allow_blank": True, **options})

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


class WholeNumberField(serializers.IntegerField):
    """An integer. Text, fractions and booleans are not integers."""

    def to_internal_value(self, data: Any) -> int:
        if type(data) is not int:
            self.fail("invalid")
        return super().to_internal_value(data)


class FlagField(serializers.BooleanField):
    """True or false, and no other spelling of them."""

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return data


class DryRunField(FlagField):
    """Whether the change is rolled back."""

    def __init__(self, **options: Any) -> None:
        help_text = "Check the change and answer as if it were made; change nothing."
        super().__init__(**{"default": False, "help_text": help_text, **options})


class EnumField(serializers.ChoiceField):
    """A member of an enumeration."""

    default_error_messages = {"invalid_choice": "Use {choices}."}

    def __init__(self, enum: type[Enum], **options: Any) -> None:
        self.enum = enum
        super().__init__(choices=[(member.value, member.value) for member in enum], **options)

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, str) or data not in self.choices:
            self.fail("invalid_choice", choices=", ".join(self.choices))
        return self.enum(data)


class NamesField(serializers.ListField):
    """The names of an object, from the root down, or another list of texts."""

    child = serializers.CharField()


class ListField(serializers.ListField):
    """A list, by default of texts."""

    child = TextField()


class MomentField(serializers.DateTimeField):
    """A time with a zone, such as 2027-01-31T12:00:00Z."""

    default_error_messages = {"invalid": "Use a time with a zone, such as 2027-01-31T12:00:00Z."}

    def to_internal_value(self, data: Any) -> datetime:
        try:
            moment = parse_datetime(data) if isinstance(data, str) else None
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            self.fail("invalid", format="")
        try:
            return moment.astimezone(UTC)
        except OverflowError:
            self.fail("invalid", format="")


# --- query parameters ------------------------------------------------------------------------------


class Parameter:
    """A parameter that may be missing."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"required": False, "default": None, **options})


class CountParameter(Parameter, serializers.IntegerField):
    """A positive integer of a query, at most ``max_value`` if there is one."""

    def __init__(self, min_value: int = 1, max_value: int | None = None, **options: Any) -> None:
        rule = f"use {min_value} to {max_value}" if max_value else "use a positive integer"
        kinds = ("invalid", "min_value", "max_value", "max_string_length")
        options["error_messages"] = dict.fromkeys(kinds, rule)
        super().__init__(min_value=min_value, max_value=max_value, **options)

    def to_internal_value(self, data: Any) -> int:
        if not (data.isascii() and data.isdigit() and len(data) < 19):
            self.fail("invalid")
        return super().to_internal_value(data)


class TextParameter(Parameter, serializers.CharField):
    """Text of a query."""

    def __init__(self, **options: Any) -> None:
        super().__init__(trim_whitespace=False, **options)


class EnumParameter(Parameter, EnumField):
    """A member of an enumeration."""

    default_error_messages = {"invalid_choice": "use {choices}"}


@extend_schema_field(OpenApiTypes.STR)
class EnumsParameter(Parameter, serializers.Field[Any, Any, Any, Any]):
    """Members of an enumeration, separated by commas."""

    def __init__(self, enum: type[Enum], **options: Any) -> None:
        self.enum = enum
        values = ", ".join(member.value for member in enum)
        options["error_messages"] = {"invalid": f"use {values}, with commas between several"}
        help_text = f"Some of {values}, separated by commas."
        super().__init__(default=list, help_text=help_text, **options)

    def to_internal_value(self, data: str) -> list[Any]:
        try:
            return [self.enum(word) for word in data.split(",")]
        except ValueError:
            self.fail("invalid")


@extend_schema_field(OpenApiTypes.BOOL)
class FlagParameter(Parameter, serializers.Field[Any, Any, Any, Any]):
    """A boolean of a query."""

    default_error_messages = {"invalid": "use true or false"}

    def to_internal_value(self, data: str) -> bool:
        if data.lower() not in _TRUE | _FALSE:
            self.fail("invalid")
        return data.lower() in _TRUE


@extend_schema_field(OpenApiTypes.DATETIME)
class MomentParameter(Parameter, serializers.Field[Any, Any, Any, Any]):
    """A time of a query; without a zone it is in UTC."""

    default_error_messages = {"invalid": "use a time such as 2027-01-31T12:00:00Z"}

    def to_internal_value(self, data: str) -> datetime:
        try:
            # In a query, a plus that is not encoded arrives as a blank.
            moment = datetime.fromisoformat(data.replace(" ", "+") if "T" in data else data)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
        except (ValueError, OverflowError):
            self.fail("invalid")


class UUIDParameter(Parameter, serializers.UUIDField):
    """A UUID of a query."""

    default_error_messages = {"invalid": "use a UUID"}
