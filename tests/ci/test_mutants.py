"""The modules of `make mutants`: mutants of a file, the map of tests, the summary."""

import ast
import importlib
import sys
import tomllib
from functools import cache, lru_cache
from pathlib import Path

import pytest
from mutmut import configuration

CI = Path(__file__).parents[2] / ".ci" / "mutants"
SAMPLE = '''"""A module."""

FIRST = 1 + 1


def double(number, factor=2):
    """A function."""
    if number > 10:
        return 0

    return number * factor


class Counter:
    def __init__(self):
        self.count = 0

    @classmethod
    def make(cls):
        return cls()

    def add(self, number):
        self.count = self.count + number
        return super().__hash__() is not None

    @property
    def half(self):
        return self.count / 2
'''


@pytest.fixture
def mutations(monkeypatch):
    monkeypatch.syspath_prepend(str(CI))
    return importlib.import_module("mutations")


@pytest.fixture
def mutants(mutations, tmp_path, monkeypatch):
    """All mutants of the sample, and the imported sample."""
    (tmp_path / "sample.py").write_text(SAMPLE)
    (tmp_path / "pyproject.toml").write_text('[tool.mutmut]\nsource_paths = ["."]\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sample", raising=False)
    configuration.reset_config()
    yield [render() for render in mutations.mutants_of(Path("sample.py"))]
    configuration.reset_config()
    sys.modules.pop("sample", None)


def by_change(mutants, *change):
    (mutant,) = [mutant for mutant in mutants if mutant.change == list(change)]
    return mutant


def test_functions_and_methods_have_mutants(mutants):
    names = {mutant.qualified_name for mutant in mutants}
    assert names == {"sample.double", "sample.Counter.__init__", "sample.Counter.add"}
    assert len({mutant.name for mutant in mutants}) == len(mutants)


def test_a_mutant_has_the_lines_of_its_statement(mutants):
    product = by_change(mutants, "- return number * factor", "+ return number / factor")
    assert list(product.lines()) == [11]
    condition = by_change(mutants, "- if number > 10:", "+ if number >= 10:")
    assert list(condition.lines()) == [8]
    assert condition.diff[-5:] == [
        '     """A function."""',
        "-    if number > 10:",
        "+    if number >= 10:",
        "         return 0",
        " ",
    ]
    signature = by_change(
        mutants, "- def double(number, factor=2):", "+ def double(number, factor=3):"
    )
    assert list(signature.lines()) == [6, 7, 8, 9, 10, 11]


def test_a_mutant_is_active_in_modules_that_imported_its_function(mutants, mutations):
    from sample import Counter, double

    mutations.activate(by_change(mutants, "- if number > 10:", "+ if number >= 10:"))
    assert [double(9), double(10)] == [18, 0]
    mutations.activate(
        by_change(mutants, "- def double(number, factor=2):", "+ def double(number, factor=3):")
    )
    assert [double(9), double(10)] == [27, 30]
    counter = Counter()
    assert (counter.add(3), counter.count) == (True, 3)
    mutations.activate(
        by_change(
            mutants,
            "- self.count = self.count + number",
            "+ self.count = self.count - number",
        )
    )
    assert (counter.add(2), counter.count) == (True, 1)


def test_the_map_names_the_fastest_tests_first(mutations):
    line_map = importlib.import_module("line_map").LineMap
    tests = {"a.py": {1: ["slow", "fast"], 2: ["other"]}}
    before = line_map(tests, {"slow": 2.0, "fast": 1.0, "other": 1.5})
    assert before.reaching(Path("a.py"), [1, 2]) == ["fast", "other", "slow"]
    assert before.reaching(Path("b.py"), [1]) == []
    after = before.updated(line_map({"a.py": {2: ["slow"]}}, {"slow": 0.5}))
    assert after.reaching(Path("a.py"), [1]) == ["fast"]
    assert after.reaching(Path("a.py"), [2]) == ["slow", "other"]
    # A test that has another name now.
    renamed = line_map({"a.py": {1: ["t.py::old", "u.py::old"]}}, {"t.py::old": 1.0})
    after = renamed.updated(line_map({"a.py": {1: ["t.py::new"]}}, {"t.py::new": 1.0}))
    assert after.reaching(Path("a.py"), [1]) == ["u.py::old", "t.py::new"]


def test_each_test_starts_with_empty_caches_that_have_a_limit(mutants, mutations):
    sample = importlib.import_module("sample")
    line_map = importlib.import_module("line_map")
    calls = []
    sample.limited = lru_cache(maxsize=4)(calls.append)
    sample.unlimited = cache(calls.append)
    for packages in (("sample",), ("other",)):
        sample.limited(1)
        sample.unlimited(2)
        line_map.clear_caches(packages)
    sample.limited(1)
    assert calls == [1, 2, 1]


def test_a_map_is_read_as_it_was_saved(mutations, tmp_path):
    line_map = importlib.import_module("line_map").LineMap
    saved = line_map({"a.py": {1: ["t"]}}, {"t": 1.0})
    saved.save(tmp_path / "map.json")
    assert line_map.load(tmp_path / "map.json") == saved


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("for a, b in zip(x, y, strict=True)", "for a, b in zip(x, y, strict=None)", "lengths"),
        ("for a, b in zip(x, y, strict=True)", "for a, b in zip(x, y, )", "lengths"),
        ("for a, b in zip(x, y, strict=True)", "for a, b in zip(x, strict=True)", None),
        ("run(x, strict=True)", "run(x, strict=False)", None),
        ('text = "SELECT a"', 'text = "select a"', "lower case"),
        ('text = "SELECT a WHERE b = %s"', 'text = "SELECT A WHERE B = %S"', None),
        ('text = "a message"', 'text = "A MESSAGE"', None),
    ],
)
def test_some_changes_are_equivalent_everywhere(mutations, old, new, reason):
    general_reason = importlib.import_module("equivalence").general_reason
    result = general_reason([f"- {old}", f"+ {new}"])
    assert (result is None) if reason is None else (reason in result)
    assert general_reason([f"- {old}", f"+ {new}", "+ more"]) is None


def test_equivalent_mutants_are_of_present_code():
    """An entry for code that has changed since has no effect, and its mutant survives again."""
    entries = tomllib.loads((CI / "equivalent.toml").read_text())["equivalent"]
    outdated = [entry for entry in entries if not _is_of_present_code(entry)]
    assert entries
    assert outdated == []
    assert not _is_of_present_code(entries[0] | {"change": "- no such line\n+ another"})


def _is_of_present_code(entry):
    module, _, name = entry["function"].rpartition(".")
    path = CI.parents[1] / f"{module.replace('.', '/')}.py"
    if not path.is_file():  # a method
        path = path.parent.with_suffix(".py")
    text = path.read_text()
    removed = {line[2:] for line in entry["change"].split("\n") if line.startswith("-")}
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
    return any(
        removed <= {line.strip() for line in ast.get_source_segment(text, function).splitlines()}
        for function in functions
        if function.name == name
    )
