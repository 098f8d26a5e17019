"""Files that repeat the version of the product."""

import re
from pathlib import Path

import pytest

from monodon import __version__

PROJECT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("file", "pattern", "count"),
    [
        ("config/settings.py", r'"VERSION": "(.+?)"', 1),
        ("deploy/helm/monodon/Chart.yaml", r'(?:version|appVersion): "?([0-9.]+)"?', 2),
        ("deploy/terraform/provider/main.go", r'const version = "(.+)"', 1),
        ("deploy/terraform/example/main.tf", r'\n +version = "([0-9.]+)"', 1),
        ("docs/terraform.md", r"(?:monodon/monodon/|monodon_v)([0-9.]+[0-9])", 2),
        ("docs/kubernetes.md", r"monodon-(?:web|worker):([0-9.]+[0-9])", 2),
    ],
)
def test_the_version_is_that_of_the_product(file, pattern, count):
    versions = re.findall(pattern, (PROJECT / file).read_text())
    assert versions == [__version__] * count
