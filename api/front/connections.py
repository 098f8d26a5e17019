"""The sockets of this process, which granian owns: lookup, and closing of idle and blocked ones.

granian closes connections that send no complete head in time. This module limits the connections of
one address, and closes those whose clients do not read.
"""

import fcntl
import logging
import os
import resource
import socket
import stat
import struct
import termios
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from api.front.limits import network

log = logging.getLogger(__name__)

_DESCRIPTORS = Path("/dev/fd")
_SCAN_SECONDS = 1.0
_CALM_SECONDS = 3.0
"""Seconds between scans while no limit of connections can be exceeded: only readers are checked then."""
_SCAN_SHARE = 100
"""A scan may use one part in this number of the time."""
OTHER_FILES = 1024
"""The files that a process may open beside its connections."""
_FULL = 0.8
"""Share of the possible connections from which idle ones are closed."""
# Linux, struct tcp_info: tcpi_bytes_acked.
_ACKNOWLEDGED = (120, struct.Struct("=Q"))
_TCP_INFO_BYTES = 128


def find(client: str, server: str) -> socket.socket | None:
    """A duplicate of the socket between two addresses in RSGI's form. None: it is closed.

    Of the server's address only the port counts: its host may be 0.0.0.0.
    """
    port = int(server.rpartition(":")[2])
    for connection, peer in _open_sockets():
        if peer == client and connection.getsockname()[1] == port:
            return connection
        connection.close()
    return None


def abort(connection: socket.socket | None) -> None:
    """Abort a connection, so that its owner closes it."""
    if connection is not None:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _sockets() -> Iterator[socket.socket]:
    """Duplicates of the sockets of this process.

    A duplicate refers to the same socket even if the descriptor is closed and reused. Files are not duplicated: a
    process that closes a duplicate loses its locks of the file, such as those of ``lance.containment.journal``.
    """
    for entry in list(_DESCRIPTORS.iterdir()):
        try:
            if not stat.S_ISSOCK(os.fstat(int(entry.name)).st_mode):
                continue
            descriptor = os.dup(int(entry.name))
        except OSError:
            continue
        try:
            yield socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=descriptor)
        except OSError:  # it is a file by now
            os.close(descriptor)


def _open_sockets() -> Iterator[tuple[socket.socket, str]]:
    """The connections over TCP, each with its peer."""
    for connection in _sockets():
        try:
            peer = connection.getpeername()
        except OSError:  # it is a listening socket, or closed
            connection.close()
            continue
        if isinstance(peer, tuple):
            yield connection, _spell(peer)
        else:
            connection.close()


def _spell(address: tuple[str, int] | tuple[str, int, int, int]) -> str:
    host = address[0]
    return f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"


@dataclass(frozen=True, slots=True)
class _Peer:
    """What a scan sees of a connection."""

    address: str
    progress: int | None


@dataclass(slots=True)
class _Write:
    """An answer that the client has not read yet."""

    since: float
    acknowledged: int


class Guard:
    """Checks the connections periodically, in its own thread.

    Without `ports`, the connections to all ports on which the process listens are checked.
    """

    def __init__(self, ports: Iterable[int] = ()) -> None:
        self._active = Counter[str]()
        """The number of requests in progress by peer. The end of a request may be counted after the next one's beginning."""
        self._writes: dict[str, _Write] = {}
        self._ports = set(ports)

    def enter(self, peer: str) -> None:
        """Keep the connection open while a request is in progress."""
        self._active[peer] += 1

    def leave(self, peer: str) -> None:
        """End a request; in the same thread as ``enter``."""
        self._active[peer] -= 1
        if not self._active[peer]:
            del self._active[peer]

    def start(self) -> None:
        threading.Thread(target=self._run, name="connections", daemon=True).start()

    def _run(self) -> None:
        scanned_at = float("-inf")
        while True:
            began = time.monotonic()
            try:
                if began - scanned_at >= _CALM_SECONDS or _is_crowded():
                    scanned_at = began
                    self.scan(began)
            except OSError:
                log.exception("The connections cannot be looked at")
            taken = time.monotonic() - began
            time.sleep(max(_SCAN_SECONDS, taken * _SCAN_SHARE))

    def scan(self, now: float) -> None:
        """Close excess and slow connections."""
        if not self._ports:  # they do not change while the process runs
            self._ports = _listening_ports()
        peers: dict[str, _Peer] = {}
        # One duplicate at a time: many more could take the last descriptors from those who open files meanwhile.
        for connection, peer in _open_sockets():
            with connection:
                # The descriptor of the directory may have become one of our duplicates.
                if connection.getsockname()[1] in self._ports and peer not in peers:
                    address = network(peer.rpartition(":")[0].strip("[]"))
                    peers[peer] = _Peer(address, _progress(connection))
        slow = self._slow_readers(peers, now)
        idle = self._excess(peers)
        if slow or idle:
            for connection, peer in _open_sockets():
                with connection:
                    is_ours = connection.getsockname()[1] in self._ports
                    if is_ours and (peer in slow or (peer in idle and peer not in self._active)):
                        abort(connection)
        for peer in slow:
            log.warning(
                "closed a connection of %s, which did not read its answer", peers[peer].address
            )
        for address, count in Counter(peers[peer].address for peer in idle).items():
            log.warning("closed %d idle connections of %s", count, address)

    def _excess(self, peers: dict[str, "_Peer"]) -> set[str]:
        """The idle connections of addresses over the limit, or of all addresses if few connections are left."""
        counts = Counter(peer.address for peer in peers.values())
        most = settings.MONODON_CONNECTIONS_PER_ADDRESS
        # Behind proxies, these are the addresses of the proxies.
        if not most or settings.MONODON_PROXIES:
            most = len(peers)
        excess = len(peers) - int(_most_connections() * _FULL)
        idle = set()
        for name, peer in sorted(
            peers.items(), key=lambda item: counts[item[1].address], reverse=True
        ):
            if counts[peer.address] <= most and excess <= 0:
                continue
            if name not in self._active:
                idle.add(name)
                counts[peer.address] -= 1
                excess -= 1
        return idle

    def _slow_readers(self, peers: dict[str, "_Peer"], now: float) -> set[str]:
        """The connections whose clients do not read their answers."""
        writes: dict[str, _Write] = {}
        slow = set()
        for name, peer in peers.items():
            if peer.progress is None:
                continue
            write = writes[name] = self._writes.get(name) or _Write(now, peer.progress)
            seconds = now - write.since - settings.MONODON_ANSWER_SECONDS
            if seconds * settings.MONODON_BODY_MIN_RATE > peer.progress - write.acknowledged:
                slow.add(name)
        self._writes = writes
        return slow


def _most_connections() -> int:
    """The connections that the process may have: fewer than the setting if it may not open so many files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return settings.MONODON_MAX_CONNECTIONS
    return min(settings.MONODON_MAX_CONNECTIONS, max(files - OTHER_FILES, files // 2))


def _is_crowded() -> bool:
    """True if so many files are open that the connections may exceed a limit."""
    limit = int(_most_connections() * _FULL)
    most = settings.MONODON_CONNECTIONS_PER_ADDRESS
    if most and not settings.MONODON_PROXIES:
        limit = min(limit, most)
    return sum(1 for _ in _DESCRIPTORS.iterdir()) > limit


def _progress(connection: socket.socket) -> int | None:
    """Number of bytes that the peer has acknowledged; None if nothing is unsent or the number is
    unknown."""
    if not hasattr(socket, "TCP_INFO") or not _has_unsent(connection):
        return None
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    offset, number = _ACKNOWLEDGED
    if len(info) < offset + number.size:
        return None
    return int(number.unpack_from(info, offset)[0])


def _has_unsent(connection: socket.socket) -> bool:
    queued = fcntl.ioctl(connection, termios.TIOCOUTQ, b"\0\0\0\0")
    return any(queued)


def _listening_ports() -> set[int]:
    ports = set()
    for candidate in _sockets():
        with candidate:
            if candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                address = candidate.getsockname()
                if isinstance(address, tuple):
                    ports.add(address[1])
    return ports
