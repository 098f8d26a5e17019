"""Rebuild all search documents; searches continue meanwhile."""

from typing import Any

from django.core.management import BaseCommand

from catalog.services.search import documents as search_documents


class Command(BaseCommand):
    requires_system_checks: list[str] = []
    help = "Rebuild all search documents, and delete words that no document contains."

    def handle(self, *args: Any, **options: Any) -> None:
        def show_progress(count: int) -> None:
            if count % 10_000 == 0:
                self.stdout.write(f"{count:,} documents")
                self.stdout.flush()

        count = search_documents.reindex(progress=show_progress)
        self.stdout.write(f"Created {count:,} documents")
