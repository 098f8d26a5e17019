"""The alert rules and the dashboard in deploy/ use metrics that exist and are documented."""

import json
import re
from pathlib import Path

import pytest
import yaml
from django.test import Client

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


@pytest.mark.django_db
@pytest.mark.filterwarnings("ignore:No directory at")  # the static files are not collected
def test_the_documentation_lists_every_metric():
    text = Client().get("/metrics").content.decode()
    types = set(re.findall(r"^# TYPE (monodon_\w+) \w+$", text, re.MULTILINE))
    assert types >= {"monodon_database_up", "monodon_commits_total", "monodon_jobs"}
    assert types - documented().keys() == set()


def test_every_documented_metric_is_in_the_code():
    files = [file for package in ("api", "catalog") for file in (PROJECT / package).rglob("*.py")]
    code = "\n".join(file.read_text() for file in files)
    for name in documented():
        assert f'"{name.removesuffix("_total")}"' in code, name


def test_every_metric_of_an_expression_is_documented():
    names = set()
    for expression in expressions():
        for name, _, selector in re.findall(
            r"(monodon_\w+?)(_bucket|_sum|_count)?\b(?:\{(.*?)\})?", expression
        ):
            names.add(name)
            assert name in documented(), expression
            labels = set(re.findall(r"(\w+)=~?\"", selector)) - {"job"}
            assert labels <= documented()[name], expression
    assert len(names) > 10


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
