"""Language models, which tokenizers of full-text indexes read from a directory of the machine.

Lance appends the name of a tokenizer such as ``jieba/default`` to the path of the directory, whatever the name contains.
"""

import json
import os
import re
from collections.abc import Mapping

from lance.file import LanceFileReader

from catalog.formats.lance.wire import MalformedMessage

_KINDS = ("jieba", "lindera")
_NAME = re.compile(r"(?:jieba|lindera)/[A-Za-z0-9_-]+")
SOURCES = {"metadata.lance": b"params", "tokens.lance": b"tokenizer"}
"""The files of an index that name its tokenizer, the second in Lance's older format, and the key in their metadata."""


def is_model(name: str) -> bool:
    """True if a name is that of a language model directly below its kind, whether it is installed or not."""
    return _NAME.fullmatch(name) is not None


def are_installed() -> bool:
    """True if this machine has a directory of language models."""
    directory = _directory()
    return any(os.path.exists(f"{directory}/{kind}") for kind in _KINDS)  # noqa: PTH110 -- for each use of an index


def outside_model(index_directory: str, storage_options: Mapping[str, str] | None) -> str | None:
    """Return the tokenizer of a full-text index that is a language model of another directory, else None.

    Lance reads the tokenizer from a file of the index, not from the manifest. Raises MalformedMessage for parameters that
    only Lance might be able to read, and the errors of Lance.
    """
    for name, key in SOURCES.items():
        tokenizer = _tokenizer(f"{index_directory}/{name}", key, storage_options)
        is_file = "/" in tokenizer and tokenizer != "icu/split"
        if is_file and not is_model(tokenizer):
            return tokenizer
    return None


def _tokenizer(path: str, key: bytes, storage_options: Mapping[str, str] | None) -> str:
    """The tokenizer that a file names; empty if there is none, or no file."""
    try:
        reader = LanceFileReader(path, storage_options=dict(storage_options or {}))
    except ValueError as error:
        if str(error).startswith("Not found"):  # an index of another type, or format
            return ""
        raise
    text = (reader.metadata().schema.metadata or {}).get(key, b"{}")
    try:
        tokenizer = json.loads(text).get("base_tokenizer")
    except (ValueError, AttributeError, RecursionError) as error:
        # Lance ignores fields that it does not know, whatever their value, such as a number of 5,000 digits.
        raise MalformedMessage(f"the parameters of the index in {path} cannot be read") from error
    return tokenizer if isinstance(tokenizer, str) else ""


def _directory() -> str:
    """The directory that Lance reads models from."""
    home = os.environ.get("LANCE_LANGUAGE_MODEL_HOME")
    if home is not None:
        return home
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")  # noqa: PTH111
    return f"{data}/lance/language_models"
