"""Principals and their privileges.

A principal has privileges (``catalog.privileges``) from four sources: its level gives them
everywhere; grants to it or to its groups give them on a namespace and everything below it, or on a
table; and it holds all privileges on what it owns. An API key may hold fewer than its principal.
There are no deny rules: a privilege is held only if a source gives it. An object that a principal
may not browse is answered as not found; one that it may browse but not use is refused.

    require(actor, privilege, target)      before an object is read or changed
    visible_tables(actor), visible_...     conditions for the statements of lists
"""

from catalog.access.authorization import (
    NEVER,
    On,
    Target,
    ends_on,
    held_on,
    held_until,
    holds,
    holds_lasting,
    holds_somewhere,
    is_visible,
    require,
    sees_all_in,
)
from catalog.access.identity import (
    anonymous,
    committer,
    current,
    named,
    of_row,
    of_user,
    on_behalf_of,
    without_limits,
)
from catalog.access.job_details import limit_jobs
from catalog.access.principal import COMMAND, SYSTEM, IdempotencyKey, Principal, Progress
from catalog.access.reading import NamespaceRead, ObjectRead, TableRead
from catalog.access.visibility import (
    few_visible_tables,
    hidden_names,
    readable_namespaces,
    readable_tables,
    tables_with,
    visible_contents,
    visible_namespaces,
    visible_sources,
    visible_tables,
)

__all__ = [
    "COMMAND",
    "NEVER",
    "SYSTEM",
    "IdempotencyKey",
    "NamespaceRead",
    "ObjectRead",
    "On",
    "Principal",
    "Progress",
    "TableRead",
    "Target",
    "anonymous",
    "committer",
    "current",
    "ends_on",
    "few_visible_tables",
    "held_on",
    "held_until",
    "hidden_names",
    "holds",
    "holds_lasting",
    "holds_somewhere",
    "is_visible",
    "limit_jobs",
    "named",
    "of_row",
    "of_user",
    "on_behalf_of",
    "readable_namespaces",
    "readable_tables",
    "require",
    "sees_all_in",
    "tables_with",
    "visible_contents",
    "visible_namespaces",
    "visible_sources",
    "visible_tables",
    "without_limits",
]
