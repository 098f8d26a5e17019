"""The RSGI entry point, which granian serves."""

from django.utils.module_loading import import_string

from api.front.application import Front
from config.wsgi import application as handler


def start() -> None:
    """Start the work of a web process beside its requests."""
    import_string("catalog.services.tables.usage.start")()  # imports models, after Django's start


application = Front(handler.answer, on_start=start)
