"""The container images, built from the Dockerfile with Buildah, which needs no daemon.

The base image is made of Debian's packages, because that of the Dockerfile needs a registry.
"""

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from server.options import PROJECT
from tests.engines import toolkit

_BASE = "localhost/monodon-base:bookworm-1"
_PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"
_TOOLS = ("buildah", "mmdebstrap")
_OF_THIS_MACHINE = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
"""Files by which the build reaches the package index that this machine uses."""
_INSTALL_SECONDS = 300
_BUILD_SECONDS = 1800
TARGETS = ("web", "worker")


def prepare() -> None:
    """Install Buildah and make the base image, unless an earlier run has. Raises Missing."""
    _require_tools()
    if not _has_image(_BASE):
        _make_base()


def build(target: str) -> None:
    """Build an image; unchanged layers are taken from the last build. Raises AssertionError."""
    options = ["--layers", "--pull-never", "--build-arg", f"PYTHON={_BASE}", "--target", target]
    try:
        _build("build", *options, "--tag", tag(target), str(PROJECT))
    except toolkit.Missing as error:
        raise AssertionError(str(error)) from None


def tag(target: str) -> str:
    return f"localhost/monodon-{target}"


@contextmanager
def container(target: str) -> Iterator[str]:
    """The name of a new container of an image; its processes are started with ``command``."""
    name = f"monodon-{target}-{uuid.uuid4().hex[:8]}"
    _build("from", "--pull-never", "--name", name, tag(target))
    try:
        yield name
    finally:
        _build("rm", name)


def command(
    name: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    volumes: tuple[Path, ...] = (),
) -> list[str]:
    """The command that runs a program in a container, as the image's user and in its directory.

    Volumes have the same path inside. The network is that of this machine.
    """
    variables = [f"--env={key}={value}" for key, value in (environment or {}).items()]
    mounts = [f"--volume={path}:{path}" for path in volumes]
    return [*_buildah(), "run", *variables, *mounts, name, "--", *arguments]


def inspect(target: str, template: str) -> str:
    """A property of an image, by a template of Go."""
    command = [*_buildah(), "inspect", "--type", "image", "--format", template, tag(target)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def environment() -> dict[str, str]:
    """The environment for Buildah; without a user's settings and without privileged containers."""
    return os.environ | {"BUILDAH_ISOLATION": "chroot"}


def _require_tools() -> None:
    if all(map(shutil.which, _TOOLS)):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise toolkit.Missing(f"The images need {' and '.join(_TOOLS)}: install them")
    toolkit.run("The package lists", ["apt-get", "update", "-qq"], seconds=_INSTALL_SECONDS)
    options = ["-qq", "--yes", "--no-install-recommends"]
    toolkit.run("Buildah", ["apt-get", "install", *options, *_TOOLS], seconds=_INSTALL_SECONDS)


def _make_base() -> None:
    archive = toolkit.cache("images") / "base.tar"
    bootstrap = ["mmdebstrap", "--variant=apt", f"--include={_PACKAGES}", "bookworm", str(archive)]
    toolkit.run("The base image", toolkit.polite(bootstrap), seconds=_BUILD_SECONDS)
    name = f"monodon-base-{uuid.uuid4().hex[:8]}"
    _build("from", "--name", name, "scratch")
    _build("add", "--quiet", name, str(archive), "/")
    for path in filter(os.path.exists, _OF_THIS_MACHINE):
        _build("copy", "--quiet", name, path, path)
    # As in Python's official images.
    _build("run", name, "--", "ln", "-s", "python3", "/usr/bin/python")
    _build("run", name, "--", "sh", "-c", "rm /usr/lib/python3*/EXTERNALLY-MANAGED")
    _build("commit", "--quiet", "--rm", name, _BASE)
    archive.unlink()


def _has_image(name: str) -> bool:
    listing = [*_buildah(), "images", "--quiet", name]
    return subprocess.run(listing, capture_output=True, check=False).returncode == 0


def _build(*arguments: str) -> None:
    """Run Buildah. Raises Missing with the end of its output."""
    variables = ["env", "BUILDAH_ISOLATION=chroot"]
    toolkit.run(
        "The image", toolkit.polite([*variables, *_buildah(), *arguments]), seconds=_BUILD_SECONDS
    )


def _buildah() -> list[str]:
    directory = toolkit.cache("images")
    return ["buildah", "--root", str(directory / "store"), "--runroot", str(directory / "run")]
