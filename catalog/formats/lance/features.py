"""Facts of a Lance manifest that decide whether clients can write a later version, and whether they clean up.

The flags and their rules are those of Lance's ``feature_flags.rs``.
"""

from collections.abc import Sequence

from catalog.formats.lance import wire
from catalog.formats.lance.wire import Field

# message Manifest
_READER_FLAGS, _WRITER_FLAGS, _MAX_FRAGMENT_ID = 9, 10, 11
_CONFIG, _MAX_FIELD_ID = 16, 24
FIELDS = frozenset({_READER_FLAGS, _WRITER_FLAGS, _MAX_FRAGMENT_ID, _CONFIG, _MAX_FIELD_ID})
"""The fields of a manifest that the functions of this module read."""
_KEY, _VALUE = 1, 2

_FLAGS = 18
"""The number of flags that the installed Lance distinguishes; it refuses a manifest with any other."""
_UNSUPPORTED = frozenset({6, 9, 12, 13, 16, 17})
"""Flags with a name that the installed Lance does not support."""
SUPPORTED_FLAGS = sum(1 << flag for flag in range(_FLAGS) if flag not in _UNSUPPORTED)
_PAIRED_FLAGS = 1 << 8 | 1 << 10 | 1 << 14
"""Flags that a manifest must have both for readers and for writers."""
_STABLE_ROW_IDS = 1 << 1
_NON_REUSABLE_FIELD_IDS = 1 << 15

MAX_FRAGMENT_ID = 2**31
"""Lance numbers fragments with 32 bits, never uses a number again and fails after the last one."""

_AUTO_CLEANUP = "lance.auto_cleanup."


def obstacle(message: Sequence[Field]) -> str:
    """Why clients cannot read the version or write a later one; empty if they can.

    Raises MalformedMessage.
    """
    reader = wire.number(message, _READER_FLAGS) or 0
    writer = wire.number(message, _WRITER_FLAGS) or 0
    if (reader | writer) & ~SUPPORTED_FLAGS:
        unsupported = (reader | writer) & ~SUPPORTED_FLAGS
        return (
            f"it requires features that this release of Lance does not have: flags {unsupported:#x}"
        )
    if (reader ^ writer) & _PAIRED_FLAGS:
        return "its feature flags for readers and for writers contradict each other"
    has_field_ids = wire.number(message, _MAX_FIELD_ID) is not None
    if reader & _NON_REUSABLE_FIELD_IDS or bool(writer & _NON_REUSABLE_FIELD_IDS) != has_field_ids:
        return "its feature flags contradict its highest field id"
    return _room_obstacle(wire.number(message, _MAX_FRAGMENT_ID, bits=32) or 0)


def fragments_obstacle(message: Sequence[Field], ids: Sequence[int], with_row_ids: int) -> str:
    """The same because of the ids of the fragments, and of the number of fragments with stable row ids."""
    highest, stated = max(ids, default=0), wire.number(message, _MAX_FRAGMENT_ID, bits=32)
    if len(set(ids)) < len(ids):
        return "it repeats the id of a fragment"
    if stated is not None and stated < highest:
        return f"its highest fragment id is {highest}, and it states {stated}"
    has_row_ids = (wire.number(message, _READER_FLAGS) or 0) & _STABLE_ROW_IDS
    if with_row_ids != (len(ids) if has_row_ids else 0):
        return "its feature flags contradict the row ids of its fragments"
    return _room_obstacle(highest)


def _room_obstacle(highest: int) -> str:
    if highest <= MAX_FRAGMENT_ID:
        return ""
    return (
        f"its highest fragment id is {highest}; above {MAX_FRAGMENT_ID} there is no room for more"
    )


def auto_cleanup(data: bytes, message: Sequence[Field]) -> tuple[tuple[str, str], ...]:
    """The settings of Lance's automatic clean-up, as keys and values. Raises MalformedMessage."""
    return tuple(
        (key, wire.text(data, entry, _VALUE) or "")
        for entry in wire.messages(data, message, _CONFIG)
        if (key := wire.text(data, entry, _KEY) or "").startswith(_AUTO_CLEANUP)
    )


def configures_auto_cleanup(data: bytes, field: Field) -> bool:
    """True if a field of a manifest is a setting of Lance's automatic clean-up."""
    return field[0] == _CONFIG and bool(auto_cleanup(data, [field]))
