"""Values of maintenance policies in text form: "7 days", "512 MB", "50 %". No I/O."""

import re
from decimal import Decimal
from typing import Any

from catalog.errors import InvalidInput
from catalog.layouts import Strategy
from catalog.policies import TEXT_UNITS, Mode, Rule, Unit

ANY_TIME = "any time"
TABLE_ORDER = "sort order of the table"
MODE_TEXTS = {Mode.OFF: "Off", Mode.DRY_RUN: "Dry run", Mode.ON: "On"}
_SECONDS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))
_BYTES = (("TB", 1024**4), ("GB", 1024**3), ("MB", 1024**2), ("KB", 1024))
_NUMBER = r"[0-9]{1,16}(?:\.[0-9]{1,9})?"
_SPAN = re.compile(rf"({_NUMBER})\s*((?:day|hour|minute|min|second|sec)s?|[dhms])(?![a-z])[\s,]*")
_SIZE = re.compile(rf"({_NUMBER})\s*([kmgt]?)i?(b?|bytes?)")
_SHARE = re.compile(rf"({_NUMBER})\s*(%?)")
_TIME = re.compile(r"(?:[01]?[0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9])?")
_EXAMPLES = {
    Unit.COUNT: "10,000",
    Unit.BYTES: "512 MB",
    Unit.SECONDS: "7 days",
    Unit.RATIO: "50 %",
    Unit.TIME: f"22:30 (UTC), or {ANY_TIME}",
    Unit.ENGINE: "auto, worker or spark",
    Unit.ENGINE_PROFILE: "default",
    Unit.STRATEGY: ", ".join(Strategy),
    Unit.SORT_ORDER: "country, created_at desc nulls last",
}


def label(rule: Rule) -> str:
    return rule.name.replace("_", " ").capitalize()


def example(rule: Rule) -> str:
    return _EXAMPLES.get(rule.unit, "")


def show(rule: Rule, value: Any) -> str:
    """The value in the form that ``parse`` reads; an invalid value unchanged."""
    try:
        rule.check(value)
    except InvalidInput:
        return str(value)
    match rule.unit:
        case Unit.MODE:
            return MODE_TEXTS[Mode(value)]
        case Unit.COUNT:
            return f"{value:,}"
        case Unit.BYTES:
            return _size(value)
        case Unit.SECONDS:
            return _span(value)
        case Unit.RATIO:
            return f"{(Decimal(str(value)) * 100).normalize():f} %"
        case Unit.TIME:
            return value or ANY_TIME
        case Unit.SORT_ORDER:
            return value or TABLE_ORDER
        case Unit.ENGINE | Unit.ENGINE_PROFILE | Unit.STRATEGY:
            return str(value)


def parse(rule: Rule, text: str) -> Any:
    """The value of a text. Raises InvalidInput, which names the expected form."""
    is_name = rule.unit in {Unit.ENGINE_PROFILE, Unit.SORT_ORDER}
    value = _parse(rule, text.strip() if is_name else text.strip().lower())
    if value is None:
        raise InvalidInput(f"Enter a value such as {example(rule)}.")
    try:
        return rule.check(value)
    except InvalidInput as error:
        if rule.unit in TEXT_UNITS:
            raise
        is_too_large = rule.high is None and value > rule.highest
        text = "The value is too large." if is_too_large else f"The value must be {_bounds(rule)}."
        raise InvalidInput(text) from error


def _parse(rule: Rule, text: str) -> Any:
    match rule.unit:
        case Unit.COUNT:
            digits = re.sub(r"[,_'\s]", "", text)
            return int(digits) if re.fullmatch(r"[0-9]{1,16}", digits) else None
        case Unit.BYTES:
            return _read_size(text)
        case Unit.SECONDS:
            return _read_span(text)
        case Unit.RATIO:
            matched = _SHARE.fullmatch(text)
            if matched is None:
                return None
            return float(Decimal(matched[1]) / (100 if matched[2] else 1))
        case Unit.TIME:
            if text == ANY_TIME:
                return ""
            return text.zfill(5) if _TIME.fullmatch(text) else None
        case Unit.SORT_ORDER:
            return "" if text == TABLE_ORDER else text
        case Unit.MODE | Unit.ENGINE | Unit.ENGINE_PROFILE | Unit.STRATEGY:
            return text


def _read_size(text: str) -> int | None:
    matched = _SIZE.fullmatch(text.replace(",", ""))
    if matched is None or (not matched[2] and "." in matched[1]):
        return None
    return int(Decimal(matched[1]) * 1024 ** " kmgt".index(matched[2] or " "))


def _read_span(text: str) -> int | None:
    seconds, position = Decimal(0), 0
    while position < len(text):
        matched = _SPAN.match(text, position)
        if matched is None:
            return None
        unit = next(size for name, size in _SECONDS if name[0] == matched[2][0])
        seconds += Decimal(matched[1]) * unit
        position = matched.end()
    return int(seconds) if text else None


def _size(value: int) -> str:
    for name, unit in _BYTES:
        exact = Decimal(value) / unit
        if value >= unit and exact == round(exact, 2):
            return f"{exact.normalize():,f} {name}"
    return f"{value:,} {'byte' if value == 1 else 'bytes'}"


def _span(value: int) -> str:
    parts = []
    for name, unit in _SECONDS:
        count, value = divmod(value, unit)
        if count:
            parts.append(f"{count:,} {name}{'' if count == 1 else 's'}")
    return " ".join(parts).replace(",", "") or "0 seconds"


def _bounds(rule: Rule) -> str:
    low = _bound(rule, rule.low)
    if rule.high is None:
        return f"at least {low}"
    return f"from {low} to {_bound(rule, rule.high)}"


def _bound(rule: Rule, value: float) -> str:
    return show(rule, value if rule.unit is Unit.RATIO else int(value))
