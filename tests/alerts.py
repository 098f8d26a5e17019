"""The alert rules of Prometheus, evaluated with values that were scraped."""

import re
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).resolve().parents[1]
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load(
        (PROJECT / "deploy" / "prometheus" / "monodon.rules.yml").read_text()
    )["groups"]
    for rule in group["rules"]
}
_CONFIGURATION = (PROJECT / "docs" / "operations.md").read_text()
SCRAPE, EVALUATION = (
    int(re.search(rf"{name}_interval: (\d+)s", _CONFIGURATION)[1])  # type: ignore[index]
    for name in ("scrape", "evaluation")
)
"""The intervals that the documentation recommends, in seconds."""
_EXPRESSION = re.compile(
    r"(?P<largest>max|min)(?: by \([\w, ]+\))? ?\((?:(?P<extreme>min|max)_over_time\()?(?P<metric>monodon_\w+)"
    r"(?:\{(?P<label>\w+)(?:=~|=)\"(?P<pattern>[\w|]+)\"\})?(?:\[(?P<window>\d+)s\]\))?\)"
    r" (?P<operator>==|>) (?P<number>[\d.]+)"
)
_SAMPLE = re.compile(r"^(monodon_\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_FUNCTIONS = {"max": max, "min": min}


def conditions(alert: str) -> list[re.Match[str]]:
    """The conditions of an alert, of which any is enough; each compares one value with a number."""
    matches = [_EXPRESSION.fullmatch(text) for text in RULES[alert]["expr"].split(" or ")]
    assert None not in matches, RULES[alert]["expr"]
    return [match for match in matches if match is not None]


class Scrapes:
    """The samples of several moments. It knows the expressions of this project only."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, dict[tuple[str, str], float]]] = []

    def add(self, text: str, at: float = 0.0) -> None:
        found = {(name, labels): float(value) for name, labels, value in _SAMPLE.findall(text)}
        self._samples.append((at, found))

    def is_true(self, alert: str) -> bool:
        """Evaluate the expression of an alert at the moment of the last scrape."""
        return any(self._is_true(condition) for condition in conditions(alert))

    def _is_true(self, condition: re.Match[str]) -> bool:
        last = self._samples[-1][0]
        window = float(condition["window"] or 0)
        ranges: dict[str, list[float]] = {}
        for at, samples in self._samples:
            for (name, labels), value in samples.items():
                if at >= last - window and name == condition["metric"]:
                    ranges.setdefault(labels, []).append(value)
        values = []
        for labels, range_ in ranges.items():
            value = dict(re.findall(r'(\w+)="([^"]*)"', labels)).get(condition["label"] or "", "")
            if condition["label"] is None or re.fullmatch(condition["pattern"], value):
                values.append(_FUNCTIONS[condition["extreme"] or "max"](range_))
        if not values:
            return False
        value = _FUNCTIONS[condition["largest"]](values)
        number = float(condition["number"])
        return value == number if condition["operator"] == "==" else value > number
