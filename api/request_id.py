"""The id of the request that this thread is answering."""

from contextvars import ContextVar

request_id: ContextVar[str] = ContextVar("request_id", default="")
