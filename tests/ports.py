"""Ports for the servers of the tests."""

import random
import socket

# Linux gives the ports above these to clients and to servers that bind to port 0.
_PORTS = range(20_000, 32_000)
_dice = random.SystemRandom()  # tests that seed the shared generator would get the same ports


def free_port() -> int:
    """A port that no socket uses, and that a connection of another process does not get by chance."""
    while True:
        port = _dice.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
        return port
