"""The RSGI application: admits requests, and passes each to an exchange."""

import asyncio
import contextvars
import resource
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.conf import settings

from api.errors import TooManyRequests
from api.front import bodies, environ
from api.front.answer import Answer
from api.front.connections import OTHER_FILES, Guard
from api.front.draining import Draining
from api.front.exchange import Exchange
from api.front.limits import Limits, network
from api.front.lingering import Lingering
from api.front.refusals import Refusals
from api.front.shares import Slots, Turns
from api.front.threads import Results, Threads
from api.middleware import client_address
from catalog.errors import CatalogError

if TYPE_CHECKING:
    from api.front.frequent import FrequentReads

_LIVE = "/health/live"
_MAX_WAITING = 2048
_MAX_WAITING_FOR_ONE = 32
_WAITING_PER_DATA_THREAD = 4
_WAITING_PASSWORDS, _WAITING_PAGES = 8, 64
"""In each process; of them, half from one address."""
_BETWEEN_REFUSALS_SECONDS = 0.001


class Front:
    """One per process. Everything but the jobs of threads runs in the event loop."""

    loop: asyncio.AbstractEventLoop
    results: Results

    def __init__(
        self,
        handler: Callable[[dict[str, Any]], Answer],
        *,
        on_start: Callable[[], None] = lambda: None,
        on_stop: Callable[[], None] = lambda: None,
        frequent_reads: "FrequentReads | None" = None,
    ) -> None:
        """``on_start`` is called once, when the process begins to serve, and ``on_stop`` when it ends.

        ``frequent_reads`` answers requests that need no thread.
        """
        self._handler = handler
        self.draining = Draining()
        self._on_start = on_start
        self._on_stop = on_stop
        self.frequent_reads = frequent_reads
        data = settings.MONODON_DATA_THREADS
        count = settings.MONODON_WEB_THREADS
        # The last quarter never waits for object stores, so that other requests continue.
        stores = max(1, count - max(1, count // 4))
        self.ordinary = Threads("web", count, max_waiting=_MAX_WAITING, stores=stores)
        # The turns let no job wait for a thread.
        self.data = Threads("data", data, max_waiting=data)
        self.turns = Turns(data, max_waiting=_WAITING_PER_DATA_THREAD * data)
        self.monitoring = Threads("monitoring", 1, max_waiting=_MAX_WAITING_FOR_ONE)
        self.documents = Threads("documents", 1, max_waiting=_MAX_WAITING_FOR_ONE)
        self.passwords = Threads("passwords", 1, max_waiting=1)
        self.password_turns = Turns(1, max_waiting=_WAITING_PASSWORDS, noun="log-ins")
        # A page takes as long as dozens of operations, and anybody may ask for that of the log-in.
        self.page_turns = Turns(max(1, count - 1), max_waiting=_WAITING_PAGES, noun="pages")
        self.limits = Limits()
        self.budget = bodies.Budget(settings.MONODON_BODY_MEMORY_BYTES)
        self.streams = Slots(settings.MONODON_ANSWER_STREAMS)
        self.guard = Guard()
        self.refusals = Refusals(handler)
        self.context = contextvars.copy_context()
        """Of health checks. Django would make a connection for each task."""
        self._turn = asyncio.Lock()
        self._refused_at = float("-inf")

    def __rsgi_init__(self, loop: asyncio.AbstractEventLoop) -> None:
        _raise_file_limit()
        self.loop, self.results = loop, Results(loop)
        self.lingering = Lingering(loop)
        for threads in (
            self.ordinary,
            self.data,
            self.monitoring,
            self.documents,
            self.passwords,
        ):
            threads.start()
        self.guard.start()
        self.draining.start(loop)
        if self.frequent_reads is not None:
            self.frequent_reads.start(loop)
        self._on_start()

    def __rsgi_del__(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.frequent_reads is not None:
            self.frequent_reads.stop()
        self._on_stop()

    def handler(self, request: dict[str, Any]) -> Answer:
        """Return Django's answer to a request."""
        return self.draining.closing(self._handler(request))

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        self.results.deliver()
        request, error = environ.build(scope)
        if scope.path == _LIVE:  # it needs neither a thread nor the database
            self.context.run(self.handler, environ.set_body(request, b"")).send(protocol)
            return
        forwarded = request.get("HTTP_X_FORWARDED_FOR", "")
        address = network(client_address(forwarded, request["REMOTE_ADDR"]))
        text = request.get("HTTP_X_API_KEY") or request.get("HTTP_AUTHORIZATION")
        credential = hash(text) if text else None
        principal = self.limits.principal(credential)
        refusal = error or self.limits.enter(address, principal)
        if isinstance(refusal, TooManyRequests):
            # Requests whose results are set have not left yet: let them, and count again.
            await asyncio.sleep(0)
            refusal = self.limits.enter(address, principal)
        if refusal is not None:
            await self.refuse(protocol, request, refusal)
            return
        client = scope.client
        self.guard.enter(client)
        try:
            await Exchange(
                self, scope, protocol, request, credential, address=address, principal=principal
            ).run()
        finally:
            self.guard.leave(client)
            self.limits.leave(address, principal)

    async def refuse(self, protocol: Any, request: dict[str, Any], error: CatalogError) -> None:
        """Send a refusal, many at the same moment only one per turn of the event loop.

        At the end of an attack, or when its time limits expire, thousands must be sent, and other
        requests must not wait for all of them.
        """
        if self.loop.time() - self._refused_at >= _BETWEEN_REFUSALS_SECONDS:
            self._send_refusal(protocol, request, error)
        else:
            async with self._turn:
                await asyncio.sleep(0)
                self._send_refusal(protocol, request, error)
        bodies.release(error)

    def _send_refusal(self, protocol: Any, request: dict[str, Any], error: CatalogError) -> None:
        self._refused_at = self.loop.time()
        self.draining.closing(self.refusals.answer(request, error)).send(protocol)


def _raise_file_limit() -> None:
    """Every connection is an open file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = settings.MONODON_MAX_CONNECTIONS + OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
