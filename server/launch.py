"""Becomes another program: drops root, asks to die with the parent, then executes the command.

Run as a script (`python -I -S launch.py …`), not imported: a fresh single-threaded process may change its
user and create a user namespace safely, which a fork of the threaded supervisor may not.
"""

import argparse
import contextlib
import ctypes
import os
import sys
from pathlib import Path

UNREACHABLE = 121
"""Exit status of `--reach` when the chosen user cannot get at one of the paths."""

PR_SET_PDEATHSIG = 1
CLONE_NEWUSER = 0x10000000


def enter_user_namespace(inner_uid: int) -> None:
    """Keep the outer user's files but be `inner_uid` inside, so that PostgreSQL does not see root."""
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWUSER)")
    with contextlib.suppress(FileNotFoundError):  # kernels before 3.19
        Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{inner_uid} {outer_uid} 1")
    Path("/proc/self/gid_map").write_text(f"{inner_uid} {outer_gid} 1")


def become(uid: int, gid: int) -> None:
    os.setgroups([gid])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def die_with(parent: int, signal_number: int) -> None:
    """The kernel forgets this on a change of user, so call it after `become`."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != parent:  # it died before the request was in place
        sys.exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="launch")
    parser.add_argument("--user", help="uid:gid to become")
    parser.add_argument("--namespace", type=int, help="uid to be inside a new user namespace")
    parser.add_argument("--parent", type=int, help="pid to die with")
    parser.add_argument("--death-signal", type=int, default=15)
    parser.add_argument("--reach", action="append", default=[], help="only test access to a path")
    parser.add_argument("command", nargs="*")
    options = parser.parse_args()

    if options.namespace is not None:
        enter_user_namespace(options.namespace)
    if options.user:
        uid, gid = options.user.split(":")
        become(int(uid), int(gid))
    if options.reach:
        reachable = all(os.access(path, os.X_OK) for path in options.reach)
        sys.exit(0 if reachable else UNREACHABLE)
    if options.parent:
        die_with(options.parent, options.death_signal)
    os.umask(0o077)
    os.execvp(options.command[0], options.command)  # noqa: S606  (becoming the program is the point)


if __name__ == "__main__":
    main()
