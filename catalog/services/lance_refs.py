"""Tags and branches of Lance tables.

Storage is the truth of tags: clients tag there without asking the catalog, and Lance's cleanup
keeps what has a tag. The ledger is the truth of branches: one is there when its first version is.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from catalog import storage
from catalog.errors import InvalidLocation, TableHasNoData, TagNotFound
from catalog.formats import lance_refs as refs
from catalog.formats.lance_refs import TagFile
from catalog.identifiers import Identifier
from catalog.services import tables
from catalog.services.access import Principal

PAGE_SIZE = 10_000
_MAX_FILE = 1024 * 1024  # metadata included


@dataclass(frozen=True, slots=True)
class Tag:
    """A name of a version; the empty branch is main."""

    name: str
    version: int
    branch: str
    manifest_size: int


def resolve(*, actor: Principal, table: Identifier, tag: str) -> tuple[str, int]:
    """The branch (empty: main) and the version that a tag names, which need not exist any more.

    Raises NamespaceNotFound, TableNotFound, TableHasNoData, TagNotFound.
    """
    found = _read_tag(_location(actor, table), tag)
    if found is None:
        raise TagNotFound(table, tag)
    return found.branch, found.version


def list_tags(
    *, actor: Principal, table: Identifier, limit: int | None = None, page_token: str | None = None
) -> tuple[list[Tag], str | None]:
    """A page of a table's tags by name, and the token of the next page.

    Files that do not read as tags are passed over. Raises TableHasNoData.
    """
    location = _location(actor, table)
    size = min(limit, PAGE_SIZE) if limit is not None else PAGE_SIZE
    names = sorted(name for name in _names(location, refs.TAGS) if name > (page_token or ""))
    page = [(name, _read_tag(location, name)) for name in names[:size]]
    found = [Tag(name, tag.version, tag.branch, tag.manifest_size) for name, tag in page if tag]
    return found, names[size - 1] if len(names) > size else None


def _location(actor: Principal, table: Identifier) -> str:
    facts = tables.describe_table(actor=actor, table=table)
    if facts.is_only_declared:
        raise TableHasNoData(table)
    return facts.location


def _names(location: str, directory: str) -> Iterator[str]:
    for file in storage.list_files(location, directory):
        name = refs.name_of(file.name)
        if name is not None:
            yield name


def _read(location: str, directory: str, name: str) -> bytes | None:
    try:
        return storage.read_whole_file(f"{location}/{directory}/{refs.file_name(name)}", _MAX_FILE)
    except InvalidLocation:  # no file, or no tag of this size
        return None
    except OSError as error:
        if storage.is_missing(error):
            return None
        raise


def _read_tag(location: str, name: str) -> TagFile | None:
    content = _read(location, refs.TAGS, name)
    return None if content is None else refs.parse_tag(content)
