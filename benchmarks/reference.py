"""Lance's reference server in a process of its own: `python -m benchmarks.reference ROOT PORT`.

Its best configuration for this load: the manifest table alone knows the tables, directories are not listed.
"""

import os
import signal
import sys

import lance.namespace


def main() -> None:
    root, port = sys.argv[1], int(sys.argv[2])
    properties = {
        "root": root,
        "manifest_enabled": "true",
        "dir_listing_enabled": "false",
        "table_version_tracking_enabled": "true",
    }
    adapter = lance.namespace.RestAdapter("dir", properties, host="127.0.0.1", port=port)
    adapter.start()  # type: ignore[no-untyped-call]
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    os._exit(0)  # its destructor may wait for connections that stay open


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main()
