"""As whom PostgreSQL runs: it refuses to run as root."""

import os
import pwd
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from server.errors import DatabaseUnusable

LAUNCHER = Path(__file__).with_name("launch.py")


@dataclass(frozen=True)
class Identity:
    """`owner` is the user (as seen from outside) whom the data directory must belong to."""

    owner: tuple[int, int]
    arguments: tuple[str, ...] = ()

    def launch(self, command: Sequence[str], *options: str) -> list[str]:
        return [
            sys.executable,
            "-I",
            "-S",
            str(LAUNCHER),
            *self.arguments,
            *options,
            "--",
            *command,
        ]

    def can_reach(self, paths: Sequence[Path]) -> bool:
        reach = [argument for path in paths for argument in ("--reach", str(path))]
        probe = self.launch([], *reach)
        result = subprocess.run(probe, capture_output=True, start_new_session=True, check=False)  # noqa: S603
        return result.returncode == 0


def choose(program: Path, directories: Sequence[Path]) -> Identity:
    """An ordinary user runs it as they are; root as `nobody`, or, where nobody cannot get at the files
    (under a 0700 /root, say), as root behind a user namespace in which root has another name.

    Raises DatabaseUnusable when neither works.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0 and _has_name(uid):
        return Identity(owner=(uid, gid))
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise DatabaseUnusable(
            "PostgreSQL does not run as root and there is no user `nobody`: "
            "start Monodon as an ordinary user, or set DATABASE_URL."
        ) from None
    candidates = [
        Identity(owner=(uid, gid), arguments=("--namespace", str(nobody.pw_uid))),
    ]
    if uid == 0:
        dropped = Identity(
            owner=(nobody.pw_uid, nobody.pw_gid),
            arguments=("--user", f"{nobody.pw_uid}:{nobody.pw_gid}"),
        )
        candidates.insert(0, dropped)
    for identity in candidates:
        if identity.can_reach([program, *directories]):
            return identity
    raise DatabaseUnusable(
        "PostgreSQL does not run as root, and the user `nobody` cannot reach "
        f"{program.parent} and {' and '.join(str(d) for d in directories)}. "
        "Set MONODON_HOME (and keep the project) outside private directories such as /root, "
        "start Monodon as an ordinary user, or set DATABASE_URL to a server of your own."
    )


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:  # a container started with an arbitrary uid: initdb would refuse
        return False
    return True
