"""One request and its answer: reads the body, and passes the request to a thread."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from django.conf import settings
from granian._granian import RSGIProtocolClosed as ProtocolClosed

from api.errors import BodyTooLarge
from api.front import bodies, environ, marker
from api.front.answer import Answer
from api.front.bodies import Feed, Stream
from api.front.limits import Owner
from api.front.sending import send_stream
from api.front.shares import Turns
from api.front.threads import Threads
from api.management import event_slots
from catalog.errors import CatalogError, ServiceUnavailable

if TYPE_CHECKING:
    from api.front.application import Front
    from api.front.frequent import Read

log = logging.getLogger(__name__)

OPERATIONS = ("/v1/", "/management/")
"""Paths of operations, which check the credentials before the body is read."""
TOKEN_PATHS = frozenset({"/oauth/token", "/v1/oauth/tokens"})
"""Paths whose credentials are in the body, which is therefore read without them."""
_SMALL_FORM_BYTES, _ADMIN_FORM_BYTES = 64 << 10, 1 << 20
"""Limits of bodies that are read without valid credentials: of tokens and other forms, and of the admin."""
_ADMIN, _LOGIN = "/admin/", "/admin/login/"
_PASSWORDS = frozenset({_LOGIN, "/admin/password_change/"})
"""Paths whose forms have a password. Checking one takes as much processor time as hundreds of other requests."""
_MONITORING = frozenset({"/health/ready", "/metrics"})
_DOCUMENTS = ("/schema/", "/help/")
"""Paths of static documents, which need no database and have a thread of their own."""
_ARROW_STREAM = "application/vnd.apache.arrow.stream"
_EVENT_STREAM = "text/event-stream"
_PROMPT_SECONDS = 0.25
"""Seconds for a small body, after which the credentials are checked without it."""
_PROCEED = marker.Proceed.status_code
_UNAUTHENTICATED = frozenset({401, 419})
"""The statuses of refused credentials; 419 is the Iceberg protocol's for expired tokens."""


class _Answered(Exception):
    """The answer has been sent already."""


class Exchange:
    """A request after its admission. A small request uses a thread once."""

    def __init__(
        self,
        front: "Front",
        scope: Any,
        protocol: Any,
        request: dict[str, Any],
        credential: int | None,
        *,
        address: str = "",
        principal: Owner = None,
    ) -> None:
        self._front = front
        self._address = address
        # Credentials that were not valid recently may be invented: then the address counts.
        self._owner = principal if isinstance(principal, str) else address
        self._scope = scope
        self._protocol = protocol
        self._request = request
        self._credential = credential
        self._path: str = request["PATH_INFO"]
        is_token_path = self._path in TOKEN_PATHS
        self._is_operation = self._path.startswith(OPERATIONS) and not is_token_path
        self._interruption: CatalogError | _Answered | None = None
        self._task: asyncio.Task[Any] | None = None
        self._watch: asyncio.Task[None] | None = None

    async def run(self) -> None:
        request = self._request
        declared = request.get("CONTENT_LENGTH")
        is_chunked = "HTTP_TRANSFER_ENCODING" in request
        try:
            if not is_chunked and (declared is None or declared == "0"):
                await self._answer(b"", may_wait=True)
                return
            length = None if is_chunked or declared is None else int(declared)
            is_anonymous = self._credential is None and settings.MONODON_ANONYMOUS == "none"
            if (
                length is None
                or length > bodies.SMALL_BYTES
                or (is_anonymous and self._is_operation)
            ):
                await self._read_large(length)
            else:
                await self._answer(await self._read_small(length), may_wait=True)
        except _Answered:
            pass
        except CatalogError as error:
            await self._front.refuse(self._protocol, request, error)
        self._release()

    def _release(self) -> None:
        """Release the connection, although an exception may still refer to this exchange.

        granian keeps a connection open while the remaining body can still be read, and the garbage
        collector runs rarely.
        """
        self._protocol = self._interruption = self._task = self._watch = None

    # -- small bodies

    async def _read_small(self, length: int) -> bytes:
        """Return the body, which usually arrives with the head. Raises InvalidInput and BodyTooSlow."""
        self._task = asyncio.current_task()
        timer = self._front.loop.call_later(_PROMPT_SECONDS, self._start_watch)
        try:
            body: bytes = await self._protocol()
        except ProtocolClosed:
            raise bodies.broken(length) from None
        except asyncio.CancelledError:
            if self._interruption is None or self._task is None:
                raise
            self._task.uncancel()
            raise self._interruption from None
        finally:
            timer.cancel()
            self._stop_watch()
        if len(body) != length:
            raise bodies.broken(length)
        return body

    def _start_watch(self) -> None:
        self._watch = self._front.loop.create_task(self._interrupt())

    def _stop_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def _interrupt(self) -> None:
        """End the wait for a body if the credentials are invalid, or at the time limit."""
        try:
            if self._is_operation:
                await self._check_credentials()
            await asyncio.sleep(settings.MONODON_BODY_SECONDS - _PROMPT_SECONDS)
            self._interruption = bodies.too_slow()
        except (CatalogError, _Answered) as reason:
            self._interruption = reason
        if self._task is not None:
            self._task.cancel()

    # -- other bodies

    async def _read_large(self, length: int | None) -> None:
        """Check the credentials, read the body, and answer; also for small bodies without
        credentials."""
        is_rows = self._is_operation and self._request.get("CONTENT_TYPE") == _ARROW_STREAM
        stream = Stream(self._protocol, length, may_pause=is_rows)
        try:
            if self._is_operation:
                await self._check_credentials()
            if is_rows:
                await self._answer_from_stream(stream)
            else:
                await self._answer_from_memory(stream, length)
        except CatalogError as error:
            await self._front.refuse(self._protocol, self._request, error)
        except _Answered:
            pass
        is_slow = False
        try:
            if not stream.has_ended:
                is_slow = await stream.drain()
        finally:
            if is_slow:
                self._front.lingering.add(stream)
            else:
                stream.close()

    async def _check_credentials(self) -> None:
        """Let the operation check the credentials without the body. Raises _Answered after a
        refusal."""
        if self._is_proven():
            return
        request = environ.set_body({**self._request, marker.KEY: marker.BodyState.AWAITED}, b"")
        answer: Answer | None = await self._in_thread(
            self._front.ordinary, partial(self._guarded, partial(self._front.handler, request))
        )
        self._note_credentials(answer)
        if answer is None or answer.status != _PROCEED:
            if answer is not None:
                answer.send(self._protocol)
            raise _Answered

    def _note_credentials(self, answer: Answer | None) -> None:
        """Note to which principal the credentials of an operation belong, or that they were refused."""
        if answer is None or self._credential is None or not self._is_operation:
            return
        if answer.principal:
            self._front.limits.prove(self._credential, answer.principal)
        elif answer.status in _UNAUTHENTICATED:
            self._front.limits.forget(self._credential)

    def _is_proven(self) -> bool:
        return self._credential is not None and self._front.limits.is_proven(self._credential)

    async def _answer_from_memory(self, stream: Stream, length: int | None) -> None:
        limit = self._body_limit()
        # Elsewhere than in operations, nobody has checked the credentials.
        owner = None
        if self._is_operation:
            owner = self._front.limits.principal(self._credential)
        if length is not None and length > limit:
            raise self._too_large(limit)
        chunks = []
        taken = 0
        try:
            while chunk := await stream.next():
                if stream.received > limit:
                    raise self._too_large(limit)
                self._front.budget.take(len(chunk), owner)
                taken += len(chunk)
                chunks.append(chunk)
            body = b"".join(chunks)
            chunks.clear()
            await self._answer(body)
        finally:
            self._front.budget.give(taken, owner)

    def _too_large(self, limit: int) -> BodyTooLarge:
        return BodyTooLarge(limit, is_setting=limit == settings.MONODON_MAX_BODY_BYTES)

    def _body_limit(self) -> int:
        limit = settings.MONODON_MAX_BODY_BYTES
        if self._is_operation:
            return limit
        is_admin = self._path.startswith(_ADMIN) and self._path != _LOGIN
        return min(limit, _ADMIN_FORM_BYTES if is_admin else _SMALL_FORM_BYTES)

    async def _answer_from_stream(self, stream: Stream) -> None:
        """Answer in a thread for data, which reads the body while it is received. Raises
        ServiceUnavailable and TooManyRequests if too many requests wait for these threads."""
        async with self._front.turns.turn(self._front.limits.principal(self._credential)):
            feed = Feed(self._front.loop)
            self._request["wsgi.input"] = feed
            pump = self._front.loop.create_task(feed.pump(stream))
            try:
                self._note_credentials(await self._in_thread(self._front.data, self._work))
            finally:
                feed.discard()
                pump.cancel()
                await asyncio.gather(pump, return_exceptions=True)
                feed.close()

    # -- threads

    async def _answer(self, body: bytes, *, may_wait: bool = False) -> None:
        """Answer a request with a complete body, in a thread unless it needs none.

        ``may_wait``: nothing scarce is released afterwards, so the event loop need not hear of the end at once.
        """
        environ.set_body(self._request, body)
        front, path = self._front, self._path
        read, answer = await self._read_in_loop(body)
        if answer is not None:
            front.draining.closing(answer).send(self._protocol)
            self._note_credentials(answer)
            return
        is_stream = path == event_slots.PATH and self._request["REQUEST_METHOD"] == "GET"
        if is_stream and self._is_proven():
            principal = front.limits.principal(self._credential)
            event_slots.require_free(str(principal))  # a refusal needs no thread
        threads = front.ordinary
        if path in _MONITORING:
            threads = front.monitoring
        elif path.startswith(_DOCUMENTS):
            threads = front.documents
        elif path in _PASSWORDS and self._request["REQUEST_METHOD"] == "POST":
            await self._answer_in_turn(front.password_turns, front.passwords)
            return
        elif path.startswith(_ADMIN):
            await self._answer_in_turn(front.page_turns, front.ordinary)
            return
        job = partial(self._work, threads)
        answer = await self._in_thread(threads, job, may_wait=may_wait)
        self._note_credentials(answer)
        if read is not None and answer is not None and read.learn is not None:
            read.learn(answer)

    async def _read_in_loop(self, body: bytes) -> "tuple[Read | None, Answer | None]":
        """The request as a frequent read, and its answer. Without an answer it takes the ordinary way."""
        front, read = self._front, None
        if front.frequent_reads is None:
            return None, None
        try:
            read = front.frequent_reads.find(self._request, body)
            if read is None or not self._may_be_immediate(read.principal.name):
                return read, None
            return read, await front.frequent_reads.answer(self._request, read)
        except Exception:
            log.exception("%s %s takes the ordinary way", self._scope.method, self._scope.path)
            return read, None

    def _may_be_immediate(self, principal: str) -> bool:
        """Count a request that could be answered in the event loop. False if the principal had its share of this second,
        and others wait for threads: then it takes turns with them."""
        front = self._front
        has_share = front.limits.has_immediate_share(principal)
        return has_share or not front.ordinary.others_wait(self._owner)

    async def _answer_in_turn(self, turns: Turns, threads: Threads) -> None:
        """Answer when it is the turn of the client's address. Raises ServiceUnavailable and TooManyRequests if too
        many requests wait."""
        async with turns.turn(self._address):
            await self._in_thread(threads, partial(self._work, threads))

    async def _in_thread(
        self, threads: Threads, job: Callable[[], Any], *, may_wait: bool = False
    ) -> Any:
        """Return the result of a job. Raises ServiceUnavailable if too many jobs wait for these
        threads. ``may_wait``: the result may come later (``Results``)."""
        future = threads.submit(job, self._front.results, owner=self._owner, may_wait=may_wait)
        if future is None:
            raise ServiceUnavailable("The server has too many requests to work on")
        return await future

    def _work(self, threads: Threads | None = None) -> Answer | None:
        """Answer the request. Returns the answer if it was complete."""
        answer = self._guarded(partial(self._front.handler, self._request))
        if answer is None:
            return None
        stream: Any = answer.stream
        if stream is None or answer.file:
            answer.send(self._protocol)
            if stream is not None:
                stream.close()
            return answer
        try:
            self._guarded(partial(self._stream, answer, threads or self._front.data))
        finally:
            if not stream.closed:  # the sending has not begun
                stream.close()
        return None

    def _stream(self, answer: Answer, threads: Threads) -> None:
        """Send an answer in pieces, while another thread replaces this one."""
        streams = self._front.streams
        media = dict(answer.headers).get("Content-Type", "")
        is_counted = not media.startswith(_EVENT_STREAM)  # the operation limits their number
        if is_counted:
            try:
                streams.acquire(answer.principal)
            except CatalogError as error:
                answer.stream.close()  # type: ignore[union-attr]
                refusal = self._front.refusals.render(self._request, error)
                self._front.draining.closing(refusal).send(self._protocol)
                bodies.release(error)
                return
        try:
            with threads.replaced():
                send_stream(self._protocol, self._scope, answer)
        finally:
            if is_counted:
                streams.release(answer.principal)

    def _guarded(self, work: Callable[[], Answer | None]) -> Answer | None:
        """Return the result of ``work``. An exception, which would end the thread, becomes a plain
        500."""
        try:
            return work()
        except Exception:
            log.exception("%s %s failed", self._scope.method, self._scope.path)
            answer = Answer(500, [("Content-Type", "text/plain")], b"Server error")
            self._front.draining.closing(answer).send(self._protocol)
            return None
