"""The properties of a table that jobs on Spark get to see.

Iceberg's writers copy all properties of a table into a Hadoop configuration. Hadoop replaces ``${env.NAME}`` in
values that it reads, and ``${name}`` by other settings, such as credentials of the machine, and quotes the
result in errors. Names that are not Iceberg's, such as ``orc.key.provider``, would configure the libraries themselves.
"""

import json
from collections.abc import Collection, Mapping

from catalog.formats.iceberg.reading import Document

LEFT_OUT_FILES = "monodon.left-out-files"
"""Name of the property with the files that the driver of a job leaves out, as a JSON list."""
_OF_ICEBERG = (
    "commit.",
    "compatibility.",
    "encryption.",
    "engine.",
    "format-version",
    "gc.",
    "history.",
    "identifier-fields.",
    "read.",
    "schema.",
    "write.",
)
"""The beginnings of Iceberg's names. No setting of Hadoop, Parquet or ORC has such a name."""


def without_settings_of_libraries(document: Document) -> Document:
    """The metadata with only those properties that cannot be settings or variables of Hadoop.

    The document itself if all are such.
    """
    properties: Mapping[str, str] = document.get("properties") or {}
    usable = {name: value for name, value in properties.items() if _is_usable(name, value)}
    return document if len(usable) == len(properties) else {**document, "properties": usable}


def with_left_out_files(document: Document, files: Collection[str]) -> Document:
    """The metadata with the paths of files that the job must not open, as a property of the table.

    The driver of a job reads it from the same answer as the snapshot, so that both fit together. No path
    is a variable of Hadoop: JSON writes ``$`` as an escape.
    """
    if not files:
        return document
    text = json.dumps(sorted(files)).replace("$", "\\u0024")
    properties = {**(document.get("properties") or {}), LEFT_OUT_FILES: text}
    return {**document, "properties": properties}


def _is_usable(name: str, value: str) -> bool:
    return name.startswith(_OF_ICEBERG) and "${" not in value
