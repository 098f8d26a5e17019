"""Make all documents of the search anew; searches go on meanwhile."""

from typing import Any

from django.core.management import BaseCommand

from catalog.services.search import documents as search_documents


class Command(BaseCommand):
    requires_system_checks: list[str] = []
    help = "Make all documents of the search anew, and forget the words that are in none."

    def handle(self, *args: Any, **options: Any) -> None:
        def told(made: int) -> None:
            if made % 10_000 == 0:
                self.stdout.write(f"{made:,} documents")
                self.stdout.flush()

        made = search_documents.reindex(progress=told)
        self.stdout.write(f"{made:,} documents were made")
