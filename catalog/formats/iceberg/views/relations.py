"""The relations that a query reads, and where the value of a column in them comes from.

Schemas of tables are not known here. A column without a qualifier may belong to any table of its
query, so a reference is a set of origins: the query reads exactly one of them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

Origin = tuple[tuple[str, ...], str]
"""The parts of the name of a table, and the name of a column."""
ALL = "*"
"""The name of the column of an origin that stands for all columns."""

AMBIGUOUS = "More than one source of the query has such a column."
ALIAS = "The name may be that of a column of a source, or of another column of the view."
UNKNOWN = "No source of the query has such a column."
BY_POSITION = "The query matches columns by their position among those of '*'."
UNSUPPORTED = "The query has a clause that is not supported here."


@dataclass(frozen=True, slots=True)
class Value:
    """What a column of a query is made from."""

    references: frozenset[frozenset[Origin]] = frozenset()
    is_copy: bool = False
    """True if it is the value of a column of the source, unchanged."""
    problem: str = ""
    """A sentence, if the references are not certain or not complete."""

    def computed(self) -> Self:
        return replace(self, is_copy=False)

    def with_problem(self, problem: str) -> Self:
        return replace(self, problem=self.problem or problem)


def computed_from(values: Iterable[Value], *, is_copy: bool = False) -> Value:
    """A value made from all of these."""
    references: set[frozenset[Origin]] = set()
    problem = ""
    for value in values:
        references |= value.references
        problem = problem or value.problem
    return Value(frozenset(references), is_copy, problem)


class Matches(NamedTuple):
    """The values of a column that certainly exists, else the columns that may exist."""

    values: tuple[Value, ...] = ()
    possible: frozenset[Origin] = frozenset()

    def value(self) -> Value | None:
        """None if nothing matches."""
        if self.values:
            distinct = set(self.values)
            if len(distinct) == 1:
                return self.values[0]
            return computed_from(distinct).with_problem(AMBIGUOUS)
        if self.possible:
            return Value(frozenset({self.possible}), is_copy=True)
        return None


def _merged(matches: Iterable[Matches]) -> Matches:
    values: dict[Value, None] = {}
    possible: set[Origin] = set()
    for result in matches:
        values.update(dict.fromkeys(result.values))
        possible |= result.possible
    # Names in a valid query are unique: a column that exists excludes those that may exist.
    return Matches(tuple(values)) if values else Matches(possible=frozenset(possible))


@dataclass(frozen=True, slots=True)
class Item:
    """A column in the SELECT list of a query."""

    name: str
    value: Value


@dataclass(eq=False, slots=True)
class Star:
    """``*`` or ``t.*`` in the SELECT list of a query."""

    scope: "Scope"
    only: "Relation | None" = None
    excluded: frozenset[str] = frozenset()
    replaced: Mapping[str, Value] = field(default_factory=dict)
    problem: str = ""

    def find(self, name: str) -> Matches:
        key = name.casefold()
        if key in self.replaced:
            return Matches((self.replaced[key],))
        if key in self.excluded:
            return Matches()
        matches = self.only.find(name) if self.only else self.scope.find(name)
        value = matches.value()
        if self.problem and value:
            return Matches((value.with_problem(self.problem),))
        return matches

    def items(self) -> Iterator[Item]:
        """The columns, as far as the SQL names them; ALL for those of a table."""
        replaced = {key: Item(key, value) for key, value in self.replaced.items()}
        for relation in [self.only] if self.only else self.scope.relations:
            if relation.parts:
                origin = frozenset({(relation.parts, ALL)})
                yield Item(ALL, Value(frozenset({origin}), is_copy=True, problem=self.problem))
            for item in relation.items:
                for inner in item.items() if isinstance(item, Star) else (item,):
                    key = inner.name.casefold()
                    if key not in self.excluded:
                        yield replaced.pop(key, inner)
        yield from replaced.values()


Items = tuple[Item | Star, ...]


@dataclass(eq=False, slots=True)
class Relation:
    """A table, or the result of a query."""

    alias: str = ""
    parts: tuple[str, ...] = ()
    """The parts of the name of a table, whose columns are not known; empty for a query."""
    items: Items = ()
    others: Value | None = None
    """The value of any other column, such as a column of a function."""
    _matches: dict[str, Matches] = field(default_factory=dict)

    def find(self, name: str) -> Matches:
        if self.parts:
            return Matches(possible=frozenset({(self.parts, name)}))
        key = name.casefold()
        if key not in self._matches:
            named = [
                Matches((item.value,))
                for item in self.items
                if isinstance(item, Item) and item.name.casefold() == key
            ]
            stars = [item for item in self.items if isinstance(item, Star)]
            self._matches[key] = _merged(named or [star.find(name) for star in stars])
        return self._matches[key]

    def value(self, name: str) -> Value:
        return self.find(name).value() or self.others or Value(problem=UNKNOWN)

    def is_called(self, qualifier: Sequence[str]) -> bool:
        """True if the qualifier of a column means this relation."""
        parts = [part.casefold() for part in qualifier]
        if len(parts) == 1 and self.alias:
            return self.alias.casefold() == parts[0]
        return bool(self.parts) and [name.casefold() for name in self.parts[-len(parts) :]] == parts

    def named(self, alias: str, columns: Sequence[str]) -> "Relation":
        """The relation under an alias, which may also name its columns, by position."""
        if not columns:
            return Relation(alias, self.parts, self.items, self.others)
        items = [item for item in self.items if isinstance(item, Item)]
        if self.parts or len(items) != len(self.items) or len(columns) > len(items):
            others = self.others or Value(problem=BY_POSITION)
            return Relation(alias, others=others)
        names = [*columns, *(item.name for item in items[len(columns) :])]
        renamed = [Item(name, item.value) for name, item in zip(names, items, strict=True)]
        return Relation(alias, items=tuple(renamed))


@dataclass(eq=False, slots=True)
class Scope:
    """The relations whose columns the expressions of a SELECT may name."""

    parent: "Scope | None" = None
    """That of the query around a subquery."""
    relations: list[Relation] = field(default_factory=list)
    using: dict[str, Value] = field(default_factory=dict)
    """Columns that joins with USING have in common."""
    aliases: dict[str, Value] = field(default_factory=dict)
    """Columns before in the SELECT list, which some dialects let later ones name."""

    def find(self, name: str) -> Matches:
        """The column in the relations, without those of the query around."""
        if (shared := self.using.get(name.casefold())) is not None:
            return Matches((shared,))
        matches = _merged(relation.find(name) for relation in self.relations)
        if matches.value() is None:
            others = (relation.others for relation in self.relations)
            return Matches(tuple(value for value in others if value is not None))
        return matches

    def column(self, name: str) -> Value:
        """The value of a column without a qualifier."""
        matches = self.find(name)
        outer = self.parent.column(name) if self.parent else Value(problem=UNKNOWN)
        others = [value for value in (self.aliases.get(name.casefold()),) if value is not None]
        if not outer.problem:
            others.append(outer)
        value = matches.value()
        if matches.values and value:
            return value
        if value is None:
            return others[0] if others else outer
        # The column may exist, else it is the alias, or a column of the query around.
        possible = set(matches.possible)
        for other in others:
            if len(other.references) != 1:
                return value.with_problem(ALIAS)
            possible.update(*other.references)
        return Value(frozenset({frozenset(possible)}), all(other.is_copy for other in others))

    def relation(self, qualifier: Sequence[str]) -> Relation | None:
        """The relation that the qualifier of a column means, also in the queries around."""
        matches = [relation for relation in self.relations if relation.is_called(qualifier)]
        if len(matches) > 1:
            return Relation(others=Value(problem=AMBIGUOUS))
        if matches:
            return matches[0]
        return self.parent.relation(qualifier) if self.parent else None

    def share(self, name: str, right: Sequence[Relation]) -> None:
        """A column in the USING clause of a join with these relations: it is made from both sides."""
        both = [self.find(name), _merged(relation.find(name) for relation in right)]
        values = [value for value in (matches.value() for matches in both) if value is not None]
        self.using[name.casefold()] = computed_from(values, is_copy=True)
