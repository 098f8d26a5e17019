"""How much a map or a list may hold, in a request and in what is stored of it.

Far above what clients send, and low enough that no request keeps a thread for seconds. docs/operations.md
has the table.
"""

from collections.abc import Mapping, Sized

from catalog.errors import InvalidInput

MAX_ENTRIES = 10_000
"""Of a map, such as properties, and of a list, such as updates, columns or the operations of a batch."""
LONGER_LISTS: Mapping[str, int] = {
    "single_vector": 65_536,  # the dimensions of a vector
    "values": 100_000,  # an IN of a filter
}
"""Lists that clients make longer, by the name of their field."""
MAX_VALUES = 1_000_000
"""Of a whole body: every member of every map and list."""


def check_map(name: str, entries: Sized) -> None:
    """Refuse a map that grew, perhaps by several requests, over the limit. Raises InvalidInput."""
    if len(entries) > MAX_ENTRIES:
        raise InvalidInput(f"{name} would have {len(entries)} entries; at most {MAX_ENTRIES} fit")
