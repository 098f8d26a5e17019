"""The distributions: the wheel, installed into an empty environment, has the command line, and the server in a package."""

import os
import re
import resource
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from monodon import __version__
from tests.ports import free_port

pytestmark = pytest.mark.xdist_group("wheel")  # it is built once

PROJECT = Path(__file__).resolve().parents[2]
CLIENT = {"click", "httpx", "pyyaml", "rich"}


def python(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, **options
    )


@pytest.fixture(scope="session")
def distributions(tmp_path_factory) -> Path:
    """A directory with the wheel and the source distribution."""
    directory = tmp_path_factory.mktemp("dist")
    python(".ci/docs", cwd=PROJECT)  # `make wheel` builds the documentation first
    python("-m", "hatchling", "build", "-d", str(directory), cwd=PROJECT)
    return directory


@pytest.fixture(scope="session")
def wheel(distributions) -> Path:
    (path,) = distributions.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def environment(wheel, tmp_path_factory) -> Path:
    """A virtual environment with the wheel, and with the packages of this one that are not the project's."""
    directory = tmp_path_factory.mktemp("installed")
    directory.chmod(0o755)
    python("-m", "venv", "--without-pip", str(directory))
    interpreter = directory / "bin" / "python"
    python(
        *("-m", "pip", "--python", str(interpreter), "install", "--quiet", "--no-index"),
        *("--no-deps", "--no-compile", "--disable-pip-version-check", str(wheel)),
    )
    (site_packages,) = directory.glob("lib/*/site-packages")
    (site_packages / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return directory


def run(environment: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("MONODON_")}
    own |= {"MONODON_CONFIG": str(environment / "profiles.json")}
    return subprocess.run(
        [environment / "bin" / arguments[0], *arguments[1:]],
        cwd=environment,
        env=own | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_wheel_installs_one_package(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names} == {
        "monodon",
        f"monodon-{__version__}.dist-info",
    }
    application = {name.split("/")[2] for name in names if name.startswith("monodon/_app/")}
    assert application == {
        *("api", "catalog", "config", "docs", "server", "site", "tasks", "templates"),
        *("manage.py", "requirements.txt"),
    }
    assert "monodon/_app/api/lance/examples.json" in names
    assert "monodon/_app/templates/admin/index.html" in names
    assert "monodon/py.typed" in names
    pages = {path.stem for path in (PROJECT / "docs").glob("*.md")} | {"changelog", "security"}
    assert {f"monodon/_app/site/{page}.html" for page in pages} <= set(names)
    assert "monodon/_app/site/search/search_index.json" in names
    # Every file of the packages is in the wheel.
    tracked = python_files(PROJECT / "catalog")
    assert {f"monodon/_app/catalog/{name}" for name in tracked} <= set(names)


def test_the_source_distribution_builds_the_same_wheel(distributions, wheel, tmp_path):
    (source,) = distributions.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    directory = tmp_path / source.name.removesuffix(".tar.gz")
    python("-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist"), cwd=directory)
    (rebuilt,) = (tmp_path / "dist").iterdir()
    assert contents(rebuilt) == contents(wheel)


def contents(wheel: Path) -> dict[str, int]:
    """The checksums of the files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {file.filename: file.CRC for file in archive.infolist()}


def python_files(package: Path) -> set[str]:
    return {str(path.relative_to(package)) for path in package.rglob("*.py")}


def test_the_requirements_of_the_client_and_the_server(wheel):
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"monodon-{__version__}.dist-info/METADATA").decode()
    requirements = [
        Requirement(value) for value in HeaderParser().parsestr(text).get_all("Requires-Dist")
    ]
    client = {item.name for item in requirements if item.marker is None}
    server = {item.name.lower() for item in requirements if item.marker is not None}
    assert client == CLIENT
    lines = (PROJECT / "requirements.txt").read_text().splitlines()
    pinned = {
        match[1].lower() for line in lines if (match := re.match(r"([\w.-]+)(\[.*\])?==", line))
    }
    assert server == pinned
    assert server >= CLIENT


def test_the_command_line_starts_quickly_without_the_server(environment):
    assert run(environment, "monodon", "--version").stdout == f"monodon, version {__version__}\n"
    help_text = run(environment, "monodon", "--help").stdout
    for command in ("ls", "describe", "grant", "maintain", "events", "up", "backup"):
        assert re.search(rf"^  {command} ", help_text, re.MULTILINE), command
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(environment, "monodon", "--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.3
    report = "import sys, monodon.commands; print(monodon.__file__, *sys.modules)"
    path, *modules = run(environment, "python", "-c", report).stdout.split()
    assert path.startswith(str(environment))
    assert not {"django", "httpx", "rich", "yaml", "api", "server"} & set(modules)


def test_without_the_server_its_commands_name_the_remedy(environment):
    code = (
        "import importlib.util as u, sys; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'django' else find(name, *a)\n"
        "from monodon.commands import main; sys.argv = ['monodon', 'up']; main()"
    )
    completed = run(environment, "python", "-c", code)
    assert (completed.returncode, completed.stdout) == (1, "")
    assert completed.stderr.startswith("monodon: The server is not installed here")
    assert "pip install 'monodon[server]'" in completed.stderr


def test_manage_runs_with_the_files_of_the_wheel(environment, tmp_path):
    completed = run(
        environment, "monodon", "manage", "version", MONODON_HOME=str(tmp_path / "home")
    )
    assert (completed.returncode, completed.stdout) == (0, "5.2.19\n"), completed.stderr


@pytest.mark.engines
def test_up_serves_the_first_row(environment, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    home.chmod(0o711)
    port = str(free_port())
    own = {name: value for name, value in os.environ.items() if not name.startswith("MONODON_")}
    for name in ("DATABASE_URL", "REDIS_URL"):
        own.pop(name, None)
    own |= {"MONODON_HOME": str(home), "MONODON_PORT": port, "MONODON_WEB_WORKERS": "1"}
    server = subprocess.Popen(
        [environment / "bin" / "monodon", "up"],
        cwd=environment,
        env=own,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        for line in server.stdout:
            if "Monodon is ready" in line:
                break
        else:
            raise AssertionError(f"the server ended with {server.wait()}")
        client = {"MONODON_URL": f"http://127.0.0.1:{port}"}
        client["MONODON_API_KEY"] = (home / "admin_api_key").read_text().strip()
        write = (
            "import lance, os, pyarrow as pa\n"
            "from lance.namespace import RestNamespace\n"
            "from lance_namespace_urllib3_client.models import CreateNamespaceRequest\n"
            "key = {'header.x-api-key': os.environ['MONODON_API_KEY']}\n"
            "catalog = RestNamespace(uri=os.environ['MONODON_URL'], **key)\n"
            "catalog.create_namespace(CreateNamespaceRequest(id=['prod']))\n"
            "lance.write_dataset(pa.table({'id': [1]}), namespace_client=catalog,"
            " table_id=['prod', 'users'])\n"
        )
        written = run(environment, "python", "-c", write, **client)
        assert written.returncode == 0, written.stderr
        listed = run(environment, "monodon", "ls", "prod", **client)
        assert listed.stdout == "table\tlance\tprod.users\n", listed.stderr
        history = run(environment, "monodon", "history", "prod.users", **client)
        assert history.stdout.startswith("1\t"), history.stderr
    finally:
        server.terminate()
        server.communicate(timeout=60)
