"""Authentication, authorization, protection and approval."""

from collections.abc import Sequence

from catalog.errors.base import CatalogError, Name

_MAX_NAMED = 10  # protected objects that a message names


class Unauthenticated(CatalogError):
    pass


class TokenExpired(Unauthenticated):
    def __init__(self) -> None:
        super().__init__("The access token has expired")


class PermissionDenied(CatalogError):
    pass


class TooManyAttempts(CatalogError):
    """``seconds`` is the time to wait, rounded up."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"Too many wrong credentials; try again in {seconds} seconds")
        self.seconds = seconds


class Protected(CatalogError):
    """``things`` are the protected objects that the request would drop, each with its kind."""

    def __init__(self, things: Sequence[tuple[str, Sequence[str]]]) -> None:
        self.things = tuple((kind, tuple(identifier)) for kind, identifier in things)
        super().__init__(
            "{things} protected",
            detail="Remove the protection first, which requires the privilege manage.",
        )

    def worded(self, name: Name, template: str | None = None) -> str:
        names = ", ".join(f"{kind} '{name(path)}'" for kind, path in self.things[:_MAX_NAMED])
        extra = len(self.things) - _MAX_NAMED
        more = f" and {extra} more" if extra > 0 else ""
        verb = "is" if len(self.things) == 1 else "are"
        text = self.template if template is None else template
        return text.format(things=f"{names[:1].upper()}{names[1:]}{more} {verb}")


class ApprovalRequired(CatalogError):
    """``request`` is the number of the pending approval request; None if there is none."""

    request: int | None = None
    draft: object = None
    """The content of the approval request."""

    def __init__(self, action: str, target: Sequence[str]) -> None:
        """``action`` is the action, up to the kind of its target: ``dropping namespace``."""
        self.action, self.target = action, tuple(target)
        super().__init__(
            "{action} '{target}' needs the approval of a second person",
            action=f"{action[:1].upper()}{action[1:]}",
            target=self.target,
        )

    def ask(self, request: int) -> None:
        """Add the number of the pending request to the message."""
        self.request = request
        self.template += ": request {request} waits for it"
        self.facts["request"] = request
