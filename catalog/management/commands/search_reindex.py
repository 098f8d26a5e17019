"""Make all documents of the search anew; searches go on meanwhile."""

from typing import Any

from django.core.management import BaseCommand

from catalog.services.search import documents as search_documents


class Command(BaseCommand):
    requires_system_checks: list[str] = []
    help = "Make all documents of the search anew, and forget the words that are in none."

    def handle(self, *args: Any, **options: Any) -> None:
        def show_progress(count: int) -> None:
            if count % 10_000 == 0:
                self.stdout.write(f"{count:,} documents")
                self.stdout.flush()

        count = search_documents.reindex(told=show_progress)
        self.stdout.write(f"{count:,} documents were made")
