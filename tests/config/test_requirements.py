"""The server starts with the packages of requirements.txt alone, without those of the tests."""

import os
import re
import subprocess
import sys
import textwrap
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.config.programs import BEAT, WEB, WORKER

pytestmark = pytest.mark.xdist_group("requirements")  # the packages are linked once

PROJECT = Path(__file__).resolve().parents[2]
_CHECK = """
    import runpy
    sys.argv = ["manage.py", "check"]
    try:
        runpy.run_path("manage.py", run_name="__main__")
    except SystemExit as end:
        assert not end.code, end.code
"""
# The transport checks the version of the broker's client when it is imported.
_BROKER = """
    from tasks import celery_app
    assert celery_app.connection_for_write().transport.driver_type == "redis"
"""
_SUPERVISOR = "import granian.cli, server.supervisor, server.__main__"


def requirements(file: str) -> list[Requirement]:
    lines = (PROJECT / file).read_text().splitlines()
    texts = [re.sub(r"(^|\s)#.*", "", line).strip() for line in lines]
    return [Requirement(text) for text in texts if text]


def installation() -> tuple[dict[str, Distribution], list[str]]:
    """The distributions that pip installs for requirements.txt, by name, and the version conflicts."""
    distributions: dict[str, Distribution] = {}
    conflicts: list[str] = []
    remaining = [
        ("requirements.txt", requirement) for requirement in requirements("requirements.txt")
    ]
    visited = set()
    while remaining:
        parent, requirement = remaining.pop()
        name = canonicalize_name(requirement.name)
        distributions[name] = dependency = distribution(name)
        if not requirement.specifier.contains(dependency.version, prereleases=True):
            conflicts.append(f"{parent} requires {requirement}, not {dependency.version}")
        for extra in ("", *requirement.extras):
            if (name, extra) in visited:
                continue
            visited.add((name, extra))
            for text in dependency.requires or []:
                child = Requirement(text)
                if child.marker is None or child.marker.evaluate({"extra": extra}):
                    remaining.append((name, child))
    return distributions, conflicts


@pytest.fixture(scope="module")
def site_packages(tmp_path_factory) -> Path:
    """A directory with links to the files of these distributions only."""
    directory = tmp_path_factory.mktemp("site-packages")
    distributions, _ = installation()
    for package in distributions.values():
        for file in package.files or ():
            if ".." in file.parts:
                continue
            link = directory / file
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(package.locate_file(file))
    return directory


def run(program: str, site_packages: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter without other packages (-S, -I)."""
    paths = f"import sys; sys.path[:0] = [{str(PROJECT)!r}, {str(site_packages)!r}]"
    return subprocess.run(
        [sys.executable, "-S", "-I", "-c", f"{paths}\n{textwrap.dedent(program)}"],
        cwd=PROJECT,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "config.settings"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_requirements_have_no_version_conflict():
    _, conflicts = installation()
    assert conflicts == []


def test_the_constraints_pin_every_required_package():
    distributions, _ = installation()
    pinned = {
        canonicalize_name(requirement.name): str(requirement.specifier)
        for requirement in requirements("constraints.txt")
    }
    installed = {name: f"=={package.version}" for name, package in distributions.items()}
    assert (
        installed.items()
        <= (
            pinned
            | {
                canonicalize_name(requirement.name): str(requirement.specifier)
                for requirement in requirements("requirements.txt")
            }
        ).items()
    )


def test_packages_of_the_tests_are_not_importable(site_packages):
    completed = run("import pytest", site_packages)
    assert "No module named 'pytest'" in completed.stderr


@pytest.mark.parametrize(
    "program",
    [_CHECK, WEB, WORKER, BEAT, _BROKER, _SUPERVISOR],
    ids=["manage.py check", "web", "worker", "beat", "broker", "supervisor"],
)
def test_the_server_needs_only_its_requirements(site_packages, program):
    completed = run(program, site_packages)
    assert completed.returncode == 0, completed.stderr


def test_the_pinned_versions_support_the_python_of_debian_12():
    """Some versions require a later patch release of Python 3.11, and pip would refuse them there."""
    pins = {canonicalize_name(requirement.name) for requirement in requirements("constraints.txt")}
    required = {
        canonicalize_name(installed.name): installed.metadata["Requires-Python"]
        for installed in distributions()
    }
    checked = {name: text for name, text in required.items() if text and name in pins}
    assert len(checked) > 100
    refused = {name: text for name, text in checked.items() if "3.11.2" not in SpecifierSet(text)}
    assert refused == {}
