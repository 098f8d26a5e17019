"""Every operation has a test, and every refusal of the catalog has a place in the form of problems."""

import inspect
import re
from pathlib import Path

from api.errors import BodyTooLarge, MethodNotAllowed, RouteNotFound
from api.management import errors, urls
from catalog.errors import CatalogError

_MARK = re.compile(r'mark\.operation\("(\w+)"\)')


def operations() -> dict[str, type]:
    """The operations that the routes serve, by name."""
    return {view.__name__: view for served in urls.ROUTES.values() for view in served.values()}


def marked() -> set[str]:
    """The operations whose tests are marked."""
    found = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        found.update(_MARK.findall(path.read_text()))
    return found - {"(\\w+)"}


def test_every_operation_has_a_test():
    assert marked() == set(operations())
    assert len(operations()) == sum(len(served) for served in urls.ROUTES.values())


def test_every_operation_says_what_it_is():
    for name, view in operations().items():
        assert (inspect.getdoc(view) or "").endswith("."), name
        assert view.changes or view.verb in {"GET", "POST"}, name


def _subclasses(base: type) -> set[type]:
    direct = set(base.__subclasses__())
    return direct.union(*(_subclasses(one) for one in direct))


def test_every_refusal_has_a_status_and_a_title_of_its_own():
    known = {
        c
        for c in _subclasses(CatalogError)
        if c.__module__.startswith(("catalog.errors.", "api.errors"))
    }
    assert known == set(errors.STATUS_AND_TITLE)
    assert {BodyTooLarge, MethodNotAllowed, RouteNotFound} <= known
    titles = [title for _, title in errors.STATUS_AND_TITLE.values()]
    assert len(set(titles)) == len(titles)
    for status, title in errors.STATUS_AND_TITLE.values():
        assert 400 <= status < 600
        assert re.fullmatch(r"urn:monodon:[a-z-]+", errors.kind(title))


def _documented() -> str:
    return (Path(__file__).parents[3] / "docs" / "management-api.md").read_text()


def test_every_operation_is_in_the_docs():
    found = set()
    for row in re.findall(r"^\| (.+?) \| ", _documented(), re.MULTILINE):
        for part in row.split(";"):
            words = " ".join(re.findall(r"`([^`]+)`", part)).split()
            verbs = [word for word in words if word.isupper()]
            found |= {(verb, path) for path in words if not path.isupper() for verb in verbs}
    served = {(verb, path) for path, by_verb in urls.ROUTES.items() for verb in by_verb}
    assert served - found == set()
    assert {path for _, path in found if "/" in path} <= set(urls.ROUTES)


def test_every_refusal_is_in_the_docs():
    told = {
        (int(status), kind)
        for status, row in re.findall(r"^\| (\d{3}) \| (.+) \|$", _documented(), re.MULTILINE)
        for kind in re.findall(r"`([a-z-]+)`", row)
    }
    kinds = {
        (status, errors.kind(title).removeprefix("urn:monodon:"))
        for status, title in errors.STATUS_AND_TITLE.values()
    }
    assert told == kinds
