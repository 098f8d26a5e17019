"""Errors that end a job, and their kinds."""

_CONFLICTS = (
    "CommitFailedException",
    "ValidationException",
    "CommitStateUnknownException",
    # A file of another table came in, or rights were lost, since the job began. The next attempt leaves the file out.
    "and may not be read for it",
)
_STOPPED = ("NotAuthorizedException", "Not authorized")
_REFUSALS = (
    "ForbiddenException",
    "NoSuchTableException",
    "IllegalArgumentException",
    "TABLE_OR_VIEW_NOT_FOUND",
    "No FileSystem for scheme",
)


class Failed(Exception):
    """An error that ends the job. A retry fails again if ``kind`` is ``refused``, and may succeed if
    it is ``conflict``."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def describe(error: BaseException) -> tuple[str, str]:
    """The kind and the message of an error of ``run``."""
    if isinstance(error, Failed):
        return error.kind, str(error)
    return kind_of(error), first_line(error)[:2000]


def kind_of(error: BaseException) -> str:
    text = str(error)
    for kind, marks in (("stopped", _STOPPED), ("conflict", _CONFLICTS), ("refused", _REFUSALS)):
        if any(mark in text for mark in marks):
            return kind
    return "error"


def first_line(error: BaseException) -> str:
    """The first line of an error's message; of the Java exception if there is one."""
    cause = getattr(error, "java_exception", None)
    text = str(cause.toString()) if cause is not None else str(error)
    return next((line for line in text.splitlines() if line.strip()), repr(error))
