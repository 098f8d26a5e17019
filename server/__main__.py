"""`python -m server up`."""

import argparse
import sys

from server.errors import ServerError
from server.options import Options
from server.output import Output
from server.supervisor import Supervisor


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m server", description="Runs Monodon on this machine."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start everything in the foreground; Ctrl-C stops it")
    up.add_argument(
        "--with-parent", action="store_true", help="also stop when the calling process is gone"
    )
    arguments = parser.parse_args()
    output = Output()
    try:
        Supervisor(Options.from_environment(), output, with_parent=arguments.with_parent).run()
    except ServerError as exc:
        output.lines("monodon", str(exc))
        return 1
    finally:
        output.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
