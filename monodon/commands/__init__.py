"""The command line: ``monodon``."""

# Each module adds its commands to the root.
from monodon.commands import (
    access,
    catalog,
    changes,
    governance,
    jobs,
    labels,
    maintenance,
    server,
    session,
    storage,
    trail,
)
from monodon.commands.app import root


def main() -> None:
    root(prog_name="monodon")


__all__ = [
    "access",
    "catalog",
    "changes",
    "governance",
    "jobs",
    "labels",
    "main",
    "maintenance",
    "root",
    "server",
    "session",
    "storage",
    "trail",
]
