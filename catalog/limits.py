"""Limits on the sizes of maps and lists, in requests and in stored documents.

They are far above what clients send, and low enough that no request occupies a thread for seconds.
docs/operations.md lists them.
"""

from collections.abc import Mapping, Sized

from catalog.errors import InvalidInput

MAX_ENTRIES = 10_000
"""The maximum entries of a map, such as properties, and of a list, such as updates, columns or the
operations of a batch."""
LONGER_LISTS: Mapping[str, int] = {
    "single_vector": 65_536,  # the dimensions of a vector
    "vector": 65_536,  # the same in the dialect of LanceDB's clients
    "values": 100_000,  # an IN of a filter
}
"""Higher limits for lists by the name of their field."""
MAX_VALUES = 1_000_000
"""The maximum members of all maps and lists of a request body."""


def check_map(name: str, entries: Sized) -> None:
    """Raise InvalidInput for a map that exceeds the limit, perhaps by several requests."""
    if len(entries) > MAX_ENTRIES:
        raise InvalidInput(f"{name} would have {len(entries)} entries; at most {MAX_ENTRIES} fit")
