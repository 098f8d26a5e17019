"""Values that the shell completes: profiles, kinds of maintenance, and names of objects.

Completion asks no questions and prints no errors: without a valid key, or without an answer of the server in time, there
are no values.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice

import click

from monodon.client import Client, InvalidName, names
from monodon.profiles import ProfileError, Profiles

SECONDS = 2.0
"""How long a request may take."""
KINDS = (
    "compact",
    "clean_up",
    "remove_orphans",
    "optimize_indexes",
    "rebuild_indexes",
    "create_indexes",
    "measure_recall",
    "rewrite_manifests",
    "rewrite_position_deletes",
    "compute_statistics",
)
_LIMIT = 1000
"""Names of one kind in a namespace."""
_PLAIN = re.compile(r"[\w.-]+")
"""Names that need no quotes, neither here nor in a shell."""

Parts = Sequence[str]


def profiles(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    with suppress(ProfileError):
        return [name for name in Profiles.load().servers if name.startswith(typed)]
    return []


def kinds(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    return [kind for kind in KINDS if kind.startswith(typed)]


def objects(client: Client, typed: str) -> list[str]:
    """Names of namespaces, tables and views that begin with what is typed, with dots between the levels.

    If only a namespace does, what is in it follows.
    """
    above, _, beginning = typed.rpartition(".")
    try:
        namespace = names.parse(above)
    except InvalidName:
        return []
    children = [name for name in _children(client, namespace) if name[-1].startswith(beginning)]
    if len(children) == 1 and children[0][-1] in client.list_namespaces(namespace):
        children += _children(client, children[0])
    return [text for name in children if _PLAIN.fullmatch(text := names.display(name))]


def _children(client: Client, namespace: Parts) -> Iterator[Parts]:
    lists = (
        client.list_namespaces(namespace),
        client.list_lance_tables(namespace),
        client.list_iceberg_tables(namespace),
        client.list_iceberg_views(namespace),
    )
    for name in sorted(chain.from_iterable(islice(listed, _LIMIT) for listed in lists)):
        yield (*namespace, name)
