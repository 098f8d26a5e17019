"""Lines of PostgreSQL and Valkey about every start and stop, which the output leaves out."""

import re

_POSTGRES = re.compile(
    r"""LOG:\ \ (
        starting\ PostgreSQL\ .* | listening\ on\ Unix\ socket\ .*
        | database\ system\ was\ shut\ down\ at\ .* | database\ system\ is\ ready\ to\ accept\ connections
        | received\ (fast|smart)\ shutdown\ request | aborting\ any\ active\ transactions
        | shutting\ down | database\ system\ is\ shut\ down
    )
    # Attempts to connect before the server is ready.
    | FATAL:\ \ the\ database\ system\ is\ (starting\ up|not\ yet\ accepting\ connections|shutting\ down)""",
    re.VERBOSE,
)
_VALKEY = re.compile(
    # Advice on a kernel setting for forks under memory pressure, which a small queue does not need.
    r".*(Memory overcommit must be enabled"
    r"|Received SIGTERM scheduling shutdown|Valkey is now ready to exit)"
)


def of_postgres(line: str) -> bool:
    return _POSTGRES.fullmatch(line) is not None


def of_valkey(line: str) -> bool:
    return _VALKEY.match(line) is not None
