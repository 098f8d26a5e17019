"""The files that the metadata of a table names, by whatever path."""

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame, functions

from .paths import is_link, is_plain, lenient_path, local_path, readings, real_path

_MAX_SEGMENTS = 512  # of a key, which has at most 1,024 bytes


class NeededFiles:
    """Files that must stay, whatever path names them.

    Iceberg compares paths as text, but a local path has several spellings and may lead through links.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._directories: dict[str, str] = {}
        self._real = {self._real_path(text) for path in paths for text in readings(path)}

    def __contains__(self, path: str) -> bool:
        return bool(self._real) and self._real_path(path) in self._real

    def _real_path(self, path: str) -> str:
        local = local_path(path)
        if local is None or not is_plain(path) or is_link(local):
            return real_path(lenient_path(path))
        directory, _, name = local.rpartition("/")
        if directory not in self._directories:
            self._directories[directory] = real_path(directory)
        return f"{self._directories[directory]}/{name}"


def without_same_objects(files: DataFrame, needed: DataFrame) -> DataFrame:
    """The files in an object store without those that ``needed`` names, by whatever path.

    Iceberg compares paths as text, but opens the same object for the schemes ``s3`` and ``s3a``, for example.
    """
    objects = needed.select(_object("path").alias("object"))
    return files.join(objects, _object("path") == objects["object"], "left_anti")


def _object(column: str) -> Column:
    """The bucket, or the container and the account, and the key that a path names.

    Iceberg ignores the scheme, and what follows a question mark or a number sign. Some libraries ignore empty segments, and
    apply ``.`` and ``..``.
    """
    named = functions.col(column)
    for pattern, text in (
        (r"(?s)^[^:]*:/*([^/@]+(@[^/.]+)?)[^/]*", "$1"),
        (r"(?s)[?#].*$", ""),
    ):
        named = functions.regexp_replace(named, pattern, text)
    segments = functions.filter(functions.split(named, "/"), lambda name: ~name.isin("", "."))
    no_segments = functions.array().cast("array<string>")
    # To apply ".." takes time with the square of the length.
    is_normalized = functions.array_contains(segments, "..") & (
        functions.size(segments) <= _MAX_SEGMENTS
    )
    normalized = functions.aggregate(segments, no_segments, _with_segment)
    return functions.concat_ws("/", functions.when(is_normalized, normalized).otherwise(segments))


def _with_segment(path: Column, name: Column) -> Column:
    above = functions.slice(path, 1, functions.greatest(functions.size(path) - 1, functions.lit(0)))
    below = functions.concat(path, functions.array(name))
    return functions.when(name == "..", above).otherwise(below)
