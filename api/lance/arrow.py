"""Data in Arrow's IPC formats: streams in requests and files in answers, batch by batch."""

import hashlib
import io
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from itertools import chain, islice
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse

from api import encodings
from api.front.bodies import Feed
from api.lance.arrow_messages import MOST_EXPANDED, Bomb, Messages
from api.lance.operation import LanceOperation
from catalog.access import Principal
from catalog.errors import CatalogError, DataTooLarge, InvalidInput

STREAM_TYPE = "application/vnd.apache.arrow.stream"
FILE_TYPE = "application/vnd.apache.arrow.file"
_END = b"\xff\xff\xff\xff\0\0\0\0"
"""The end marker of an IPC stream (Arrow columnar format, IPC streaming format)."""
_DRAIN_BYTES, _DRAIN_SECONDS = 256 << 20, 10.0
_SMALL_BYTES = 4 << 20
"""Bodies up to this size are read completely, which saves Lance a call per batch."""
_SMALL_DATA_BYTES = 64 << 20
"""Maximum size of such a body in memory, because its batches may be compressed."""
# Lance panics for values that are not aligned. Senders align to 8 bytes, which is not enough for
# these types; to align all data would take a tenth of the time of a large insert.
_ALIGNED_TO_8 = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.DataTypeSpecific)
_ALIGNED_TO_64 = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.At64Byte)
_WRITE_OPTIONS = pa.ipc.IpcWriteOptions()
_WIDE = ("decimal128", "decimal256", "interval", "string_view", "binary_view")

_VIEWS = (pa.string_view(), pa.binary_view())

_MOST_WEIGHTLESS, _WEIGHTLESS_BY_BYTE = 1 << 24, 256
"""Maximum number of values without bytes, and of further ones for each byte of other values. Lance
needs a second for some millions of them, and a body could declare trillions."""

# Exceptions of Arrow for invalid content.
_SPOILED = (pa.ArrowException, OSError, EOFError, ValueError, TypeError)


class ArrowOperation(LanceOperation):
    """An operation whose body is an Arrow IPC stream. ``handle`` gets a table or a reader."""

    body_type: ClassVar[str] = STREAM_TYPE
    accepts_json: ClassVar[bool] = False
    """True if a body of another content type is JSON, as in other operations."""
    is_held_in_memory: ClassVar[bool] = False
    """True if the data is not processed batch by batch: MONODON_MAX_MERGE_BYTES bounds it."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: str) -> HttpResponse:
        if not self._has_stream(request):
            return super().dispatch(request, *args, **kwargs)
        self._body = _Body(request, is_held_in_memory=self.is_held_in_memory)
        response = super().dispatch(request, *args, **kwargs)
        if response.status_code != HTTPStatus.OK:
            # A client that is still sending would find a closed connection, and not read the reason.
            self._body.drain()
        return response

    def _has_stream(self, request: HttpRequest) -> bool:
        return not self.accepts_json or request.META.get("CONTENT_TYPE") == STREAM_TYPE

    def digested_body(self) -> Callable[[], bytes]:
        return self._body.digested()

    @property
    def is_spoiled(self) -> bool:
        return self._body.failure is not None

    def perform(self, actor: Principal, path: dict[str, str]) -> HttpResponse:
        if not self._has_stream(self.request):
            return super().perform(actor, path)
        body = self._body
        try:
            return self._render(self.handle(actor, body.data(), **self.path_arguments(path, None)))
        except Exception:
            if body.failure is not None:  # Lance reports it only as text
                raise body.failure from None
            raise


class _Body(io.RawIOBase):
    """The body of a request as a file, up to the limit."""

    def __init__(self, request: HttpRequest, *, is_held_in_memory: bool) -> None:
        self._is_held_in_memory = is_held_in_memory
        self.failure: CatalogError | None = None
        self._input = self._source = request.META["wsgi.input"]
        self._allowed = settings.MONODON_MAX_DATA_BYTES
        self._tail = b""
        self._ahead = b""
        """The beginning of a body, which Arrow has not read yet."""
        self._digest: Any = None
        length = request.META.get("CONTENT_LENGTH") or "0"
        is_chunked = "HTTP_TRANSFER_ENCODING" in request.META
        self._unread = None if is_chunked else int(length) if length.isdigit() else 0
        encoding = request.META.get("HTTP_CONTENT_ENCODING", "")
        try:
            if encodings.is_gzip(encoding):
                self._source = encodings.Reader(self._source)
                self._unread = None
        except CatalogError as error:
            self.failure = error

    def digested(self) -> Callable[[], bytes]:
        """A function that returns the SHA-256 of the body, which it reads completely. Call it
        before ``data``."""
        digest = self._digest = hashlib.sha256()

        def whole() -> bytes:
            while self.read(1 << 20):
                pass
            return digest.digest()

        return whole

    def data(self) -> pa.Table | pa.RecordBatchReader:
        """A table if the body is small, otherwise a reader.

        Raises DataTooLarge and InvalidInput, immediately or while batches are read.
        """
        if self.failure is not None:
            raise self.failure
        if self._unread is not None and self._unread > self._allowed:
            raise self._fail(DataTooLarge(settings.MONODON_MAX_DATA_BYTES))
        try:
            is_small, content = self._begin()
            if is_small:
                Messages(io.BytesIO(content)).check()
                stream = pa.ipc.open_stream(content, options=_ALIGNED_TO_8)
                if _has_wide_values(stream.schema):
                    stream = pa.ipc.open_stream(content, options=_ALIGNED_TO_64)
            else:
                messages = Messages(io.BufferedReader(self, 1 << 20))
                source = io.BufferedReader(messages, 1 << 20)
                stream = pa.ipc.open_stream(source, options=_options(source.peek()))
            _look_at(stream.schema)
        except _SPOILED as error:
            raise self._fail(_broken(error)) from None
        batches = self._batches(stream)
        if is_small:
            first, size = [], 0
            for batch in batches:
                first.append(batch)
                size += batch.get_total_buffer_size()
                if size > _SMALL_DATA_BYTES:
                    break
            else:
                return pa.Table.from_batches(first, stream.schema)
            batches = chain(first, batches)
        return pa.RecordBatchReader.from_batches(stream.schema, batches)

    def _begin(self) -> tuple[bool, bytes]:
        """Return whether the body is small, and then all of it.

        The length of a chunked body is unknown, so its beginning is read to find out.
        """
        if self._unread is not None:
            is_small = self._unread <= _SMALL_BYTES
            return is_small, self._read_up_to(self._unread) if is_small else b""
        content = self._read_up_to(_SMALL_BYTES + 1)
        if len(content) <= _SMALL_BYTES:
            return True, content
        self._ahead = content
        return False, b""

    def _read_up_to(self, most: int) -> bytes:
        parts: list[bytes] = []
        while most and (part := self._take(most)):
            parts.append(part)
            most -= len(part)
        return b"".join(parts)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = len(buffer)
        if self._ahead:
            content, self._ahead = self._ahead[:size], self._ahead[size:]
            buffer[: len(content)] = content
            return len(content)
        if self._unread is not None:
            # Not more bytes than declared, for which some servers would wait.
            size = min(size, self._unread)
        content = self._take(size)
        buffer[: len(content)] = content
        return len(content)

    def _take(self, size: int) -> bytes:
        try:
            content: bytes = self._source.read(size) if size and self._unread != 0 else b""
        except CatalogError as error:  # it was incomplete or too slow
            raise self._fail(error) from None
        if self._unread is not None:
            self._unread -= len(content)
            if not content and self._unread:
                raise self._fail(_broken(f"{self._unread} bytes are missing"))
        self._tail = (self._tail + content)[-len(_END) :]
        if self._digest is not None:
            self._digest.update(content)
        self._allowed -= len(content)
        if self._allowed < 0:
            raise self._fail(DataTooLarge(settings.MONODON_MAX_DATA_BYTES))
        return content

    def drain(self) -> None:
        """Read the remaining body, if it is short."""
        if isinstance(self._input, Feed):
            return  # the event loop does this
        deadline = time.monotonic() + _DRAIN_SECONDS
        self._allowed = _DRAIN_BYTES
        with suppress(CatalogError, OSError):
            while self.read(1 << 20) and time.monotonic() < deadline:
                pass

    def _batches(self, stream: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        weightless, size, held = 0, 0, 0
        try:
            for batch in stream:
                # Batches are not validated yet; their offsets may be arbitrary.
                batch.validate(full=True)
                weightless += sum(map(_weightless, batch.columns)) if batch.columns else len(batch)
                size += batch.get_total_buffer_size()
                held += batch.nbytes
                if self._is_held_in_memory and held > settings.MONODON_MAX_MERGE_BYTES:
                    limit = settings.MONODON_MAX_MERGE_BYTES
                    raise self._fail(DataTooLarge(limit, "MONODON_MAX_MERGE_BYTES"))
                if sum(map(_viewed, batch.columns)) > MOST_EXPANDED:
                    raise Bomb(
                        f"the views of a batch refer to more than {MOST_EXPANDED >> 20} MiB; send smaller ones"
                    )
                if weightless > _MOST_WEIGHTLESS + _WEIGHTLESS_BY_BYTE * size:
                    raise Bomb(f"{weightless} values that take no bytes")
                yield batch
            if self._unread is None and self._tail != _END:
                # Only the end marker distinguishes the end of a chunked body from a lost client.
                raise self._fail(_broken("its end is missing"))
            # Only a read to the end shows whether the body is complete.
            while self._take(min(1 << 16, self._unread or 1)):
                if self._unread is None:
                    raise self._fail(_broken("there is more after its end"))
        except _SPOILED as error:
            raise self._fail(_broken(error)) from None

    def _fail(self, error: CatalogError) -> CatalogError:
        self.failure = self.failure or error
        return self.failure


def _options(start: bytes) -> pa.ipc.IpcReadOptions:
    """The read options for a stream with this beginning."""
    try:
        is_wide = _has_wide_values(pa.ipc.read_schema(pa.py_buffer(start)))
    except _SPOILED:
        return _ALIGNED_TO_64
    return _ALIGNED_TO_64 if is_wide else _ALIGNED_TO_8


def _has_wide_values(schema: pa.Schema) -> bool:
    kinds = schema.to_string(show_field_metadata=False, show_schema_metadata=False)
    return any(name in kinds for name in _WIDE)


def _weightless(array: pa.Array) -> int:
    """Number of values of an array that have no bytes, so that a sender can declare any number of them.

    All other values have at least a bit, which ``validate`` has checked.
    """
    kind = array.type
    if pa.types.is_null(kind) or (pa.types.is_fixed_size_binary(kind) and not kind.byte_width):
        return len(array)
    if isinstance(array, pa.ExtensionArray):
        return _weightless(array.storage)
    if pa.types.is_dictionary(kind):
        return _weightless(array.dictionary)
    inner = _children(array)
    if (pa.types.is_struct(kind) or pa.types.is_union(kind)) and not inner:
        return len(array)
    runs = len(array) if pa.types.is_run_end_encoded(kind) else 0
    return runs + sum(map(_weightless, inner))


def _viewed(array: pa.Array) -> int:
    """Number of bytes of the values in an array that views refer to.

    Views of 16 bytes may all refer to the same megabytes, which Lance copies for each of them.
    """
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _viewed(array.storage)
    if pa.types.is_dictionary(kind):
        return _viewed(array.dictionary)
    if kind in _VIEWS:
        if not len(array):
            return 0  # it may have no buffers
        views = np.frombuffer(array.buffers()[1], np.int32)  # each begins with its length
        start = 4 * array.offset
        lengths = views[start : start + 4 * len(array) : 4]
        if array.null_count:
            lengths = lengths[array.is_valid().to_numpy(zero_copy_only=False)]
        return int(lengths.sum(dtype=np.int64))
    return sum(map(_viewed, _children(array)))


def _children(array: pa.Array) -> list[pa.Array]:
    """The arrays inside an array of a nested type."""
    kind = array.type
    if pa.types.is_struct(kind) or pa.types.is_union(kind):
        return [array.field(n) for n in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [array.keys, array.items]
    return [array.values] if kind.num_fields else []  # some type of list, or runs


def _look_at(schema: pa.Schema) -> None:
    """Raise ValueError for a name that is not valid text, on which Arrow's readers in other
    languages fail."""
    level: list[Any] = list(schema)
    while level:
        inner = []
        for field in level:
            field.name  # noqa: B018 -- decodes it
            inner += [field.type.field(n) for n in range(field.type.num_fields)]
        level = inner


def _broken(error: object) -> InvalidInput:
    return InvalidInput(f"The request body is not a whole Arrow IPC stream: {error}")


def file_response(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> HttpResponseBase:
    """The batches as an Arrow IPC file.

    The first two are read immediately, so that early errors become refusals and small answers have a length.
    """
    first = list(islice(batches, 2))
    if len(first) < 2:
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_file(buffer, schema, options=_WRITE_OPTIONS) as file:
            for batch in first:
                file.write_batch(batch)
        return HttpResponse(buffer.getvalue().to_pybytes(), content_type=FILE_TYPE)
    sink = _Sink()
    writer = pa.ipc.new_file(sink, schema, options=_WRITE_OPTIONS)
    remaining = _remaining_content(sink, writer, chain(first, batches))
    return StreamingHttpResponse(remaining, content_type=FILE_TYPE)


def _remaining_content(
    sink: "_Sink", writer: pa.RecordBatchFileWriter, batches: Iterator[pa.RecordBatch]
) -> Iterator[bytes]:
    for batch in batches:
        writer.write_batch(batch)
        yield sink.take()
    writer.close()
    yield sink.take()


class _Sink(io.RawIOBase):
    """Collects written bytes until they are taken."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self._parts.append(bytes(content))
        return len(self._parts[-1])

    def take(self) -> bytes:
        content = b"".join(self._parts)
        self._parts.clear()
        return content
