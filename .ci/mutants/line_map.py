"""Which tests execute a line, and how long each test takes."""

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest
from coverage import Coverage

_CACHED = type(lru_cache(len))


@dataclass(frozen=True)
class LineMap:
    tests: dict[str, dict[int, list[str]]]
    """By file and line."""
    seconds: dict[str, float]
    """Of each test, without its fixtures."""

    def reaching(self, path: Path, lines: Iterable[int]) -> list[str]:
        """The tests that execute one of these lines, the fastest first."""
        by_line = self.tests.get(str(path), {})
        names = {name for line in lines for name in by_line.get(line, ())}
        return sorted(names, key=lambda name: (self.seconds.get(name, 0.0), name))

    def save(self, file: Path) -> None:
        file.write_text(json.dumps([self.tests, self.seconds]))

    @classmethod
    def load(cls, file: Path) -> "LineMap":
        tests, seconds = json.loads(file.read_text())
        numbered = {
            path: {int(line): names for line, names in by_line.items()}
            for path, by_line in tests.items()
        }
        return cls(numbered, seconds)

    def updated(self, other: "LineMap") -> "LineMap":
        """This map, with the tests of another instead of its own in the same files."""
        files = {name.partition("::")[0] for name in other.seconds}
        tests = {
            path: {
                line: [name for name in names if name.partition("::")[0] not in files]
                for line, names in by_line.items()
            }
            for path, by_line in self.tests.items()
        }
        for path, by_line in other.tests.items():
            for line, names in by_line.items():
                tests.setdefault(path, {}).setdefault(line, []).extend(names)
        return LineMap(tests, self.seconds | other.seconds)


class Recorder:
    """A pytest plugin that records the lines of each test that passes.

    Outside of the folders ``complete``, it runs the first case of each test only. Each test starts with
    empty caches: otherwise the lines behind a cache would have only the first test that executes them.
    """

    def __init__(self, files: Iterable[str], complete: tuple[str, ...]) -> None:
        self._complete = complete
        files = list(files)
        self._packages = tuple(file.removesuffix("*").replace("/", ".") for file in files)
        self._coverage = Coverage(data_file=None, include=files, config_file=False)
        self._seconds: dict[str, float] = {}
        self.failed: set[str] = set()

    def pytest_sessionstart(self) -> None:
        self._coverage.start()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        first: dict[str, pytest.Item] = {}
        for item in items:
            first.setdefault(item.nodeid.partition("[")[0], item)
        chosen = {item.nodeid for item in first.values()}
        items[:] = [
            item
            for item in items
            if item.nodeid.startswith(self._complete) or item.nodeid in chosen
        ]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        clear_caches(self._packages)
        self._coverage.switch_context(item.nodeid)
        result = yield
        self._coverage.switch_context("")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.when == "call":
            self._seconds[report.nodeid] = report.duration

    def result(self) -> LineMap:
        self._coverage.stop()
        data = self._coverage.get_data()
        tests = {
            str(Path(file).relative_to(Path.cwd())): {
                line: [name for name in names if name and name not in self.failed]
                for line, names in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        return LineMap(tests, self._seconds)


def clear_caches(packages: tuple[str, ...]) -> None:
    """Clear the ``lru_cache`` of each function of these packages; one without a limit may be the only copy."""
    for name, module in list(sys.modules.items()):
        for value in list(vars(module).values()) if name.startswith(packages) else ():
            if isinstance(value, _CACHED) and value.cache_parameters()["maxsize"] is not None:
                value.cache_clear()
