"""Every operation has a test, and every error of the catalog has a status and a title."""

import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api.errors import BodyTooLarge, MethodNotAllowed, RouteNotFound
from api.management import errors, urls
from api.management.viewsets import ManagementViewSet
from catalog.errors import CatalogError

_MARK = re.compile(r'mark\.operation\("(\w+)"\)')


@dataclass(frozen=True)
class Served:
    """An operation of a route."""

    path: str
    method: str
    view: type[ManagementViewSet]
    action: str

    @property
    def changes(self) -> bool:
        return self.method != "GET" and self.action not in self.view.dry_actions

    @property
    def query(self) -> set[str]:
        """The query parameters other than those of pages and the delimiter."""
        query_class = self.view.query_classes.get(self.action)
        return set(query_class.parameters()) if query_class else set()


def operations() -> dict[str, Served]:
    """The operations of the routes, by name."""
    served = {}
    for pattern in urls.urlpatterns:
        view: Any = pattern.callback
        path = re.sub(r"\(\?P<(\w+)>(?:\[[^]]+\])\+\)", r"{\1}", str(pattern.pattern)).strip("^$")
        for method in sorted(view.actions.keys() & {*view.cls.http_method_names}):
            action = view.actions[method]
            name = view.cls.operation_id(action)
            assert name not in served
            served[name] = Served(path, method.upper(), view.cls, action)
    return served


def marked() -> set[str]:
    """The operations whose tests are marked."""
    names = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        names.update(_MARK.findall(path.read_text()))
    return names - {"(\\w+)"}


def test_every_operation_has_a_test():
    assert marked() == set(operations())


def test_every_operation_has_a_description():
    for name, served in operations().items():
        summary = (inspect.getdoc(getattr(served.view, served.action)) or "").partition("\n")[0]
        assert re.fullmatch(r"[A-Z].+\.", summary), name
        assert served.changes or served.method in {"GET", "POST"}, name


def _subclasses(base: type) -> set[type]:
    direct = set(base.__subclasses__())
    return direct.union(*(_subclasses(subclass) for subclass in direct))


def test_every_error_has_a_status_and_a_unique_title():
    mapped = {
        c
        for c in _subclasses(CatalogError)
        if c.__module__.startswith(("catalog.errors.", "api.errors"))
    }
    assert mapped == set(errors.STATUS_AND_TITLE)
    assert {BodyTooLarge, MethodNotAllowed, RouteNotFound} <= mapped
    titles = [title for _, title in errors.STATUS_AND_TITLE.values()]
    assert len(set(titles)) == len(titles)
    for status, title in errors.STATUS_AND_TITLE.values():
        assert 400 <= status < 600
        assert re.fullmatch(r"urn:monodon:[a-z-]+", errors.kind(title))


def _documented() -> str:
    return (Path(__file__).parents[3] / "docs" / "management-api.md").read_text()


def test_every_operation_is_documented():
    documented = set()
    for row in re.findall(r"^\| (.+?) \| ", _documented(), re.MULTILINE):
        for entry in row.split(";"):
            words = " ".join(re.findall(r"`([^`]+)`", entry)).split()
            verbs = [word for word in words if word.isupper()]
            documented |= {(verb, path) for path in words if not path.isupper() for verb in verbs}
    served = {(operation.method, operation.path) for operation in operations().values()}
    assert served - documented == set()
    assert {path for _, path in documented if "/" in path} <= {path for _, path in served}


def test_every_error_is_documented():
    documented = {
        (int(status), kind)
        for status, row in re.findall(r"^\| (\d{3}) \| (.+) \|$", _documented(), re.MULTILINE)
        for kind in re.findall(r"`([a-z-]+)`", row)
    }
    kinds = {
        (status, errors.kind(title).removeprefix("urn:monodon:"))
        for status, title in errors.STATUS_AND_TITLE.values()
    }
    assert documented == kinds
