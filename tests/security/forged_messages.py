"""Random changes of single fields of a Lance manifest: missing, repeated, moved, of another type, or with odd values."""

import random
from collections.abc import Callable, Mapping
from typing import Any

from catalog.formats.lance import manifest as lance_manifest
from catalog.formats.lance import wire
from tests.security.lance_attacks import assemble

# The messages within a manifest, by field number (Lance's protos/table.proto and file.proto).
_PLAIN: Mapping[int, Any] = {}
_DATA_FILE: Mapping[int, Any] = {}
_FRAGMENT: Mapping[int, Any] = {
    2: _DATA_FILE,
    3: _PLAIN,
    6: _PLAIN,
    8: _PLAIN,
    10: _PLAIN,
    11: {1: _DATA_FILE},
}
_MANIFEST: Mapping[int, Any] = {
    1: {8: _PLAIN, 10: _PLAIN}, 2: _FRAGMENT, 5: _PLAIN, 7: _PLAIN, 13: _PLAIN, 15: _PLAIN, 16: _PLAIN, 18: _PLAIN, 19: _PLAIN,
}  # fmt: skip
_INDEX_SECTION: Mapping[int, Any] = {1: {1: _PLAIN, 6: _PLAIN, 7: _PLAIN, 10: _PLAIN}}

NUMBERS = (0, 1, 2, 3, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63, 2**64 - 2, 2**64 - 1)
TYPES = ("", "int32", "double", "struct", "list", "list.struct", "map", "dict:string:int32:false", "fixed_size_list:float:0",
    "fixed_size_list:float:2147483647", "fixed_size_list:fixed_size_list:float:9:999999999", "decimal:128:99:-9", "timestamp:us:-",
    "fixed_size_binary:2147483647", "null", "json", "blob", "large_binary", "extension", "bfloat16", "x" * 300)  # fmt: skip
TEXTS = (
    "",
    "id",
    "name",
    "a.b",
    "\x00",
    "_rowid",
    "é" * 50,
    "0.1",
    "2.0",
    "2.1",
    "2.2",
    "99.9",
    "legacy",
    "lance",
    "-1",
    *TYPES,
)


class Node:
    """A field with its content: a number, bytes, or the fields of a message."""

    def __init__(self, number: int, kind: int, content: Any) -> None:
        self.number, self.kind, self.content = number, kind, content

    def encode(self) -> bytes:
        key = wire.encode_varint(self.number << 3 | self.kind)
        if self.kind == wire.VARINT:
            return key + wire.encode_varint(self.content)
        content = encode(self.content) if isinstance(self.content, list) else self.content
        if self.kind == wire.BYTES:
            return key + wire.encode_varint(len(content)) + content
        return key + bytes(content)


def decode(data: bytes, shape: Mapping[int, Any]) -> list[Node]:
    nodes = []
    for number, kind, first, second in wire.fields(data, 0, len(data)):
        content: Any = first
        if kind != wire.VARINT:
            content = data[first:second]
            if kind == wire.BYTES and number in shape:
                content = decode(content, shape[number])
        nodes.append(Node(number, kind, content))
    return nodes


def encode(nodes: list[Node]) -> bytes:
    return b"".join(node.encode() for node in nodes)


def forge(manifest: bytes, random_: random.Random) -> bytes:
    """The manifest with one to three changed fields, of its message or of its index section."""
    start = lance_manifest.message_start(manifest[-16:], len(manifest))
    nodes = decode(manifest[start + 4 : -16], _MANIFEST)
    before = manifest[:start]
    position = next((node.content for node in nodes if node.number == 6), None)
    if position is not None and random_.random() < 0.2:
        size = int.from_bytes(before[position : position + 4], "little")
        indexes = decode(before[position + 4 : position + 4 + size], _INDEX_SECTION)
        change(indexes, random_)
        section = encode(indexes)
        before += len(section).to_bytes(4, "little") + section
        for node in nodes:
            if node.number == 6:
                node.content = start
    for _ in range(random_.choice([1, 1, 1, 2, 3])):
        change(nodes, random_)
    return assemble(before, encode(nodes), manifest[-16:])


def change(nodes: list[Node], random_: random.Random) -> None:
    """Change one field in a message, or in one of the messages within it."""
    groups: list[list[Node]] = []

    def collect(group: list[Node]) -> None:
        groups.append(group)
        for node in group:
            if isinstance(node.content, list):
                collect(node.content)

    collect(nodes)
    filled = [group for group in groups if group]
    if not filled:
        return
    if random_.random() < 0.3:
        # The same change in every message of a kind: of all fragments, files, or columns.
        group = random_.choice(filled)
        numbers = {node.number for node in group}
        alike = [other for other in filled if {node.number for node in other} == numbers]
        seed = random_.random()
        for other in alike:
            _change_one(other, random.Random(seed))
        return
    _change_one(random_.choice(filled), random_)


def _change_one(group: list[Node], random_: random.Random) -> None:
    if group:  # a repeated message may have been emptied already
        random_.choice(_CHANGES)(group, random_.randrange(len(group)), random_)


def _remove(group: list[Node], at: int, random_: random.Random) -> None:
    del group[at]


def _remove_all(group: list[Node], at: int, random_: random.Random) -> None:
    number = group[at].number
    group[:] = [node for node in group if node.number != number]


def _repeat(group: list[Node], at: int, random_: random.Random) -> None:
    group[at:at] = [group[at]] * random_.choice([1, 2, 50])


def _swap(group: list[Node], at: int, random_: random.Random) -> None:
    other = random_.randrange(len(group))
    group[at].content, group[other].content = group[other].content, group[at].content
    group[at].kind, group[other].kind = group[other].kind, group[at].kind


def _renumber(group: list[Node], at: int, random_: random.Random) -> None:
    group[at].number = random_.randrange(1, 25)


def _value(group: list[Node], at: int, random_: random.Random) -> None:
    node = group[at]
    if node.kind == wire.VARINT:
        node.content = random_.choice(NUMBERS)
    elif isinstance(node.content, list):
        node.content = []
    elif node.kind == wire.BYTES:
        node.content = random_.choice(
            [
                random_.choice(TEXTS).encode(),
                random_.choice(TYPES).encode(),
                b"".join(
                    wire.encode_varint(random_.choice(NUMBERS)) for _ in range(random_.randrange(5))
                ),
                wire.encode_varint(random_.choice([0, 1, 2, 3, 2**64 - 1, 2**64 - 2]))
                * random_.choice([1, len(node.content)]),
                node.content[: random_.randrange(len(node.content) + 1)],
            ]
        )


def _add(group: list[Node], at: int, random_: random.Random) -> None:
    number = random_.randrange(1, 26)
    if random_.random() < 0.5:
        group.insert(at, Node(number, wire.VARINT, random_.choice(NUMBERS)))
    else:
        group.insert(at, Node(number, wire.BYTES, random_.choice(TEXTS).encode()))


def _kind(group: list[Node], at: int, random_: random.Random) -> None:
    node = group[at]
    if node.kind == wire.VARINT:
        node.kind, node.content = wire.BYTES, b"\1"
    else:
        node.kind, node.content = wire.VARINT, random_.choice(NUMBERS)


_Change = Callable[[list[Node], int, random.Random], None]
_CHANGES: tuple[_Change, ...] = (
    _remove,
    _remove,
    _remove_all,
    _repeat,
    _swap,
    _renumber,
    _value,
    _value,
    _value,
    _value,
    _add,
    _kind,
)
