"""The alert rules and the dashboard in deploy/ use metrics that exist and are documented."""

import json
import re
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import yaml
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from api import metrics

PROJECT = Path(__file__).resolve().parents[2]
RULES = yaml.safe_load((PROJECT / "deploy" / "prometheus" / "monodon.rules.yml").read_text())
DASHBOARD = json.loads((PROJECT / "deploy" / "grafana" / "monodon.json").read_text())


def alerts() -> list[dict]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def expressions() -> list[str]:
    targets = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [*(rule["expr"] for rule in alerts()), *targets]


def documented() -> dict[str, set[str]]:
    """The labels of each metric in docs/operations.md."""
    text = (PROJECT / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| `(monodon_\w+)(?:\{([\w,]+)\})?` \|", text, re.MULTILINE)
    return {name: set(filter(None, labels.split(","))) for name, labels in rows}


@pytest.fixture
def exported(db: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """The labels of each exported metric; empty for a metric without samples."""
    broker = MagicMock()
    broker.__enter__.return_value.default_channel.client.llen.return_value = 0
    monkeypatch.setattr("celery.current_app.connection_for_read", lambda **_: broker)
    metrics.forget()
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(Client().get("/metrics").content.decode()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels[name] = {label for sample in family.samples for label in sample.labels} - {"le"}
    return {name: labels[name] for name in labels if name.startswith("monodon_")}


@pytest.mark.filterwarnings("ignore:No directory at")  # the static files are not collected
def test_the_documentation_lists_every_metric(exported: dict[str, set[str]]):
    assert exported.keys() == documented().keys()
    for name, labels in exported.items():
        assert labels in (set(), documented()[name]), name


def test_expressions_use_documented_metrics():
    for expression in expressions():
        selections = re.findall(
            r"\b(up|monodon_\w+?)(?:_bucket|_sum|_count)?\b(?:\{(.*?)\})?", expression
        )
        assert selections, expression
        for name, selector in selections:
            labels = set(re.findall(r"(\w+)=~?\"", selector)) - {"job"}
            assert labels <= (set() if name == "up" else documented()[name]), expression


def test_the_dashboard_has_the_metrics_of_alerts():
    targets = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    for alert in alerts():
        for name in re.findall(r"\b(?:up|monodon_\w+)", alert["expr"]):
            assert re.search(rf"\b{name}\b", "\n".join(targets)), name


def test_alerts_have_a_severity_and_a_description():
    for rule in alerts():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert set(rule["annotations"]) == {"summary", "description"}
    assert len({rule["alert"] for rule in alerts()}) == len(alerts())


def test_panels_do_not_overlap():
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        area = panel["gridPos"]
        own = {
            (x, y)
            for x in range(area["x"], area["x"] + area["w"])
            for y in range(area["y"], area["y"] + area["h"])
        }
        assert area["x"] + area["w"] <= 24
        assert not cells & own, panel["title"]
        cells |= own
