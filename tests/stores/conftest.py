"""Profiles in the database of a live server."""

from tests.live import live_template

__all__ = ["live_template"]
