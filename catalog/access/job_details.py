"""What of a job a principal may see.

With BROWSE on its table, a principal sees that a job exists, its status and its progress. Parameters,
result, error and log name files, indexes and columns, and may quote values of rows. So they require READ.
"""

from collections.abc import Collection
from copy import copy

from catalog.access.principal import Principal
from catalog.access.visibility import readable_tables
from catalog.models import Job

WITHHELD = "The message is shown to principals that may read the table"


def limit_jobs(actor: Principal, rows: Collection[Job]) -> list[Job]:
    """The jobs; of tables that the actor may not read, copies without details, which are not to be saved.

    One statement at most.
    """
    readable = readable_tables(actor, {row.table_id for row in rows})
    return [row if row.table_id in readable else _without_details(row) for row in rows]


def _without_details(row: Job) -> Job:
    limited = copy(row)
    limited.has_details = False
    limited.parameters, limited.result = {}, None
    limited.error = WITHHELD if row.error else ""
    limited.engine_reason = limited.spark_ui = ""
    return limited
