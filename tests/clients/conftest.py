"""Clients of a live server."""

from tests.live import killable, live, live_template

__all__ = ["killable", "live", "live_template"]
