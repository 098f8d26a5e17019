"""The user that runs PostgreSQL, which refuses to run as root.

If root starts it, it runs as a separate user, not as `nobody`, whose files any program that runs as `nobody`
can access. That user needs no entry in the password file. initdb requires one, so only initdb runs as
`nobody`, in a separate group that alone may enter the directory.
"""

import hashlib
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
    """`owner` is the user (outside of user namespaces) that must own the data directory.

    `initdb` is another user that creates the cluster, if `owner` has no name.
    """

    owner: tuple[int, int]
    arguments: tuple[str, ...] = ()
    initdb: "Identity | None" = None

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

    def client_name(self) -> str:
        """The name of the connecting user, as the server's user sees it."""
        name = "nobody" if "--namespace" in self.arguments else None
        return name or pwd.getpwuid(os.geteuid()).pw_name

    def can_reach(self, paths: Sequence[Path]) -> bool:
        reach = [argument for path in paths for argument in ("--reach", str(path))]
        probe = self.launch([], *reach)
        result = subprocess.run(probe, capture_output=True, start_new_session=True, check=False)  # noqa: S603
        return result.returncode == 0


def choose(program: Path, directories: Sequence[Path]) -> Identity:
    """Choose the identity: an ordinary user runs the server itself. root uses a separate user or, if that user
    cannot access the files (for example below a 0700 /root), a user namespace in which root has another name.

    Raises DatabaseUnusable if neither works.
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
        own = _own_id(directories[0])
        maker = Identity(owner=(nobody.pw_uid, own), arguments=("--user", f"{nobody.pw_uid}:{own}"))
        dropped = Identity(owner=(own, own), arguments=("--user", f"{own}:{own}"), initdb=maker)
        candidates.insert(0, dropped)
    for identity in candidates:
        if identity.can_reach([program, *directories]):
            return identity
    raise DatabaseUnusable(
        "PostgreSQL does not run as root, and no other user can reach "
        f"{program.parent} and {' and '.join(str(d) for d in directories)}. "
        "Set MONODON_HOME (and keep the project) outside private directories such as /root, "
        "start Monodon as an ordinary user, or set DATABASE_URL to a server of your own."
    )


# A range of user ids that neither distributions nor systemd assign (UIDS-GIDS of systemd).
_FIRST_ID, _IDS = 60578, 600


def _own_id(home: Path) -> int:
    """A user id without an account. It is the same at each start, and usually differs between homes."""
    start = int.from_bytes(hashlib.sha256(os.fsencode(home.resolve())).digest()[:4])
    for step in range(_IDS):
        number = _FIRST_ID + (start + step) % _IDS
        if not _has_name(number):
            return number
    raise DatabaseUnusable(
        f"The user ids {_FIRST_ID} to {_FIRST_ID + _IDS - 1} are all taken: "
        "start Monodon as an ordinary user, or set DATABASE_URL."
    )


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:  # a container started with an arbitrary uid: initdb would refuse
        return False
    return True
