"""The RSGI entry point, which granian serves."""

from django.utils.module_loading import import_string

from api.front.application import Front
from config.wsgi import application as handler


def start() -> None:
    """Start the work of a web process beside its requests."""
    import_string("catalog.services.tables.usage.start")()  # imports models, after Django's start
    import_string("catalog.services.lance.containment.watcher.start")()


def stop() -> None:
    """Write what a web process has counted. It is a fork, which ends without the handlers of atexit."""
    import_string("catalog.services.audit.refusals.ledger").flush()
    import_string("catalog.services.tables.usage.write")()


application = Front(
    handler.answer,
    on_start=start,
    on_stop=stop,
    frequent_reads=import_string("api.front.frequent.FrequentReads")(
        [
            import_string("api.lance.frequent.LanceReads")(),
            import_string("api.iceberg.frequent.IcebergReads")(),
        ]
    ),
)
