"""The mutants of a file, and putting one into effect in this process."""

import ast
import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType

import libcst as cst
from mutmut.mutation.file_mutation import Mutation, create_mutations


@dataclass(frozen=True, slots=True)
class Mutant:
    """A function with one changed expression or statement."""

    name: str
    """Module and function, with the number of the mutant in the file: ``catalog.access.identity.named#7``."""
    path: Path
    class_name: str
    """Empty for a function outside of a class."""
    function: str
    before: str
    after: str
    code: str
    """The mutated function as a module, inside a class of that name if it is a method."""

    @property
    def qualified_name(self) -> str:
        return self.name.partition("#")[0]

    @property
    def diff(self) -> list[str]:
        lines = difflib.unified_diff(
            self.before.splitlines(), self.after.splitlines(), lineterm="", n=2
        )
        return list(lines)[3:]

    @property
    def change(self) -> list[str]:
        """The changed lines without indentation: ``- old``, ``+ new``."""
        return [f"{line[0]} {line[1:].strip()}" for line in self.diff if line[0] in "+-"]

    def lines(self) -> range:
        """The lines of the file that hold the changed statement, or the head of a compound statement.

        All lines of the function if its signature is changed.
        """
        top = _definition(ast.parse(self.path.read_text()), self.class_name, self.function)
        pairs = zip(self.before.splitlines(), self.after.splitlines(), strict=False)
        offset = next((i for i, (old, new) in enumerate(pairs) if old != new), 0)
        line = top.lineno + offset
        statement: ast.stmt = top
        for node in ast.walk(top):
            holds_line = isinstance(node, ast.stmt) and node.lineno <= line <= (
                node.end_lineno or 0
            )
            if holds_line and node.lineno >= statement.lineno:
                statement = node
        body: list[ast.stmt] = getattr(statement, "body", [])
        if statement is top or not body:
            return range(statement.lineno, (statement.end_lineno or 0) + 1)
        return range(statement.lineno, max(body[0].lineno, statement.lineno + 1))


def _definition(tree: ast.Module, class_name: str, function: str) -> ast.FunctionDef:
    body = tree.body
    if class_name:
        body = next(n.body for n in body if isinstance(n, ast.ClassDef) and n.name == class_name)
    return next(n for n in body if isinstance(n, ast.FunctionDef) and n.name == function)


def mutants_of(path: Path) -> list[Callable[[], Mutant]]:
    """All mutants of a file, each as a function that renders it."""
    tree, mutations, _, _ = create_mutations(str(path), path.read_text())
    owners: dict[cst.FunctionDef, str] = {}
    for node in tree.body:
        if isinstance(node, cst.FunctionDef):
            owners[node] = ""
        elif isinstance(node, cst.ClassDef):
            for member in node.body.body:
                if isinstance(member, cst.FunctionDef):
                    owners[member] = node.name.value
    numbered = enumerate(m for m in mutations if m.contained_by_top_level_function in owners)
    return [
        lambda number=number, mutation=mutation: _render(path, number, mutation, owners)
        for number, mutation in numbered
    ]


def _render(
    path: Path, number: int, mutation: Mutation, owners: dict[cst.FunctionDef, str]
) -> Mutant:
    function = mutation.contained_by_top_level_function
    class_name = owners[function]
    old = function.with_changes(leading_lines=())
    new = old.deep_replace(mutation.original_node, mutation.mutated_node)
    member: cst.BaseStatement = new
    if class_name:
        member = cst.ClassDef(cst.Name(class_name), cst.IndentedBlock([new]))
    module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    qualified = ".".join(filter(None, (module, class_name, function.name.value)))
    return Mutant(
        f"{qualified}#{number}",
        path,
        class_name,
        function.name.value,
        cst.Module([old]).code,
        cst.Module([new]).code,
        cst.Module([member]).code,
    )


def activate(mutant: Mutant) -> None:
    """Let the function of this process behave as the mutant does, wherever it was imported.

    Raises ValueError if the mutated code does not fit the function.
    """
    module = importlib.import_module(".".join(mutant.path.with_suffix("").parts))
    # Annotations may name types that are imported for the type checker only.
    code = f"from __future__ import annotations\n{mutant.code}"
    names = dict(vars(module))
    exec(compile(code, str(mutant.path), "exec"), names)  # noqa: S102 -- our own code
    owner, mutated_owner = vars(module), names
    if mutant.class_name:
        owner, mutated_owner = (vars(scope[mutant.class_name]) for scope in (owner, names))
    function, mutated = (_plain(scope[mutant.function]) for scope in (owner, mutated_owner))
    function.__code__ = mutated.__code__
    function.__defaults__ = mutated.__defaults__
    function.__kwdefaults__ = mutated.__kwdefaults__


def _plain(function: object) -> FunctionType:
    plain = getattr(function, "__func__", function)  # of a class method or a static method
    if not isinstance(plain, FunctionType):
        raise TypeError(f"{function!r} is not a plain function")
    return plain
