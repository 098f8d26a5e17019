"""What the columns of an Iceberg view are made from, by its SQL alone.

``relations`` says what is not certain without the schemas of the tables. Columns that only decide
which rows the view has (WHERE, ON, GROUP BY) do not count.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from sqlglot import exp

from catalog.formats.iceberg.views.parsing import Query, Unparsable, printable, reporting
from catalog.formats.iceberg.views.relations import (
    ALL,
    BY_POSITION,
    UNKNOWN,
    UNSUPPORTED,
    Item,
    Items,
    Origin,
    Relation,
    Scope,
    Star,
    Value,
    computed_from,
)

MAX_COLUMNS = 2_000
"""Columns of a view that are stored, of all dialects together."""
MAX_ORIGINS = 5_000
"""Origins that are stored, of all columns together."""
_MAX_PASSES = 20  # over a recursive query, until its columns stay the same
_MAX_NAME = 255

_Tables = Mapping[str, Relation]
"""The common table expressions, by normalized name."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a view."""

    name: str
    references: tuple[tuple[Origin, ...], ...] = ()
    """The columns that it is made from; of several origins in a reference, the view reads one."""
    is_copy: bool = False
    problem: str = ""
    """A sentence, if the references are not certain or not complete."""


class Derivation:
    """The columns of a view so far, by dialect."""

    def __init__(
        self, queries: Sequence[Query], fields: tuple[str, ...], names: frozenset[tuple[str, ...]]
    ) -> None:
        self._queries = queries
        self._fields = fields
        self._names = names
        self._origins = 0
        self.columns: list[tuple[str, tuple[Column, ...]]] = []
        self.problems: list[str] = []

    def run(self) -> None:
        """Derive the columns in each dialect, within the limits."""
        unused = MAX_COLUMNS
        for query in self._queries:
            dialect = printable(query.dialect[:40])
            try:
                with reporting():
                    relation = _Reader(query).relation(query.statement, {}, None)
                    items = list(islice(_outputs(relation, self._fields), unused + 1))
                    columns = tuple(self._column(item) for item in items[:unused])
            except Unparsable as error:
                self.problems.append(
                    f"The columns of dialect '{dialect}' cannot be derived: {error}."
                )
                continue
            if len(items) > unused:
                self.problems.append(f"Only {MAX_COLUMNS:,} columns are recorded.")
            unused -= len(columns)
            self.columns.append((dialect, columns))

    def _column(self, item: Item) -> Column:
        references: list[tuple[Origin, ...]] = []
        problem = item.value.problem
        for reference in sorted(map(sorted, item.value.references)):
            origins = tuple(
                (parts, printable(name[:_MAX_NAME]))
                for parts, name in reference
                if parts in self._names
            )
            self._origins += len(origins)
            if len(origins) < len(reference) or self._origins > MAX_ORIGINS:
                problem = problem or "Not all sources are recorded, because there are too many."
                continue
            references.append(origins)
        name = printable(item.name[:_MAX_NAME])
        return Column(name, tuple(references), item.value.is_copy, problem)


def _outputs(relation: Relation, fields: Sequence[str]) -> Iterator[Item]:
    """The columns of a view with the names of its schema, which are in the order of its query."""
    items = relation.items
    stars = [index for index, item in enumerate(items) if isinstance(item, Star)]
    if not items:
        value = relation.others or Value(problem=UNSUPPORTED)
        yield from (Item(name, value) for name in fields)
        return
    before = stars[0] if stars else len(items)
    after = len(items) - 1 - stars[-1] if stars else 0
    if not fields or len(fields) < before + after or (not stars and len(fields) != len(items)):
        # The schema does not fit the query.
        for item in items:
            yield from item.items() if isinstance(item, Star) else (item,)
        return
    inside = Relation(items=items[before : len(items) - after])
    for index, name in enumerate(fields):
        at = index if index < before else index - len(fields) + len(items)
        own = items[at] if index < before or index >= len(fields) - after else None
        value = own.value if isinstance(own, Item) else inside.value(name)
        yield Item(name, value)


class _Reader:
    """Reads the relations of a query. Every method may take exponential time for hostile SQL."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def relation(self, node: exp.Expr, tables: _Tables, parent: Scope | None) -> Relation:
        """The result of a query. ``parent`` is the scope of the query around it."""
        tables = self._with(node, tables, parent)
        if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Query | exp.Values):
            return self.relation(node.this, tables, parent)
        if isinstance(node, exp.SetOperation):
            return self._combined(node, tables, parent)
        if isinstance(node, exp.Select) and not node.args.get("kind"):
            return self._select(node, tables, parent)
        if isinstance(node, exp.Values) and node.expressions:
            value = self._expression(node, tables, parent or Scope())
            return Relation(items=(Item("", value),) * len(node.expressions[0].expressions))
        return Relation(others=Value(problem=UNSUPPORTED))

    # -- common table expressions, and set operations

    def _with(self, node: exp.Expr, tables: _Tables, parent: Scope | None) -> _Tables:
        clause = node.args.get("with_")
        if not isinstance(clause, exp.With):
            return tables
        tables = dict(tables)
        for cte in clause.expressions:
            name = self._query.normalized(cte.args["alias"].this)
            columns = cte.alias_column_names
            if clause.recursive and isinstance(cte.this, exp.SetOperation):
                tables[name] = self._recursive(cte.this, name, columns, tables, parent)
            else:
                tables[name] = self.relation(cte.this, tables, parent).named("", columns)
        return tables

    def _recursive(
        self,
        node: exp.SetOperation,
        name: str,
        columns: Sequence[str],
        tables: _Tables,
        parent: Scope | None,
    ) -> Relation:
        """A query that may read itself: repeat it until its columns stay the same."""
        first = _operands(node)[0][0]
        result = self.relation(first, self._with(node, tables, parent), parent).named("", columns)
        for _ in range(_MAX_PASSES):
            again = self.relation(node, {**tables, name: result}, parent).named("", columns)
            if again.items == result.items:
                return result
            result = again
            if any(isinstance(item, Star) for item in again.items):
                break
        return Relation(others=Value(problem="The query is recursive."))

    def _combined(self, node: exp.SetOperation, tables: _Tables, parent: Scope | None) -> Relation:
        (first, _), *others = _operands(node)
        result = self.relation(first, tables, parent)
        for operand, operation in others:
            # The rows of EXCEPT and INTERSECT are rows of the left side.
            if isinstance(operation, exp.Union):
                right = self.relation(operand, tables, parent)
                result = _union(result, right, by_name=bool(operation.args.get("by_name")))
        return result

    # -- SELECT

    def _select(self, node: exp.Select, tables: _Tables, parent: Scope | None) -> Relation:
        scope = Scope(parent)
        if (source := node.args.get("from_")) is not None:
            self._add(scope, source.this, tables)
        self._join(scope, node, tables)
        for lateral in node.args.get("laterals") or ():
            self._add(scope, lateral, tables)
        items: list[Item | Star] = []
        for expression in node.expressions:
            if expression.is_star and isinstance(expression, exp.Star | exp.Column):
                items.append(self._star(expression, scope, tables))
                continue
            value = self._expression(expression, tables, scope)
            if isinstance(expression, exp.Aliases):
                names = [alias.name for alias in expression.expressions]
            else:
                names = [expression.output_name]
            items += [Item(name, value) for name in names]
            scope.aliases.update({name.casefold(): value for name in names if name})
        return Relation(items=tuple(items))

    def _star(self, node: exp.Expr, scope: Scope, tables: _Tables) -> Item | Star:
        star, only = node, None
        if isinstance(node, exp.Column):
            star = node.this
            only = scope.relation([part.name for part in node.parts[:-1]])
            if only is None:
                return Item("*", Value(problem=UNKNOWN))
        replaced = {
            entry.output_name.casefold(): self._expression(entry, tables, scope)
            for entry in star.args.get("replace") or ()
        }
        excluded = {entry.name.casefold() for entry in star.args.get("except_") or ()}
        for entry in star.args.get("rename") or ():
            replaced[entry.alias.casefold()] = self._expression(entry, tables, scope)
            excluded.add(entry.this.name.casefold())
        return Star(scope, only, frozenset(excluded), replaced)

    def _join(self, scope: Scope, node: exp.Expr, tables: _Tables) -> None:
        for join in node.args.get("joins") or ():
            right = Scope(scope)
            self._add(right, join.this, tables)
            if join.kind in ("SEMI", "ANTI"):
                continue  # it only decides which rows remain
            for identifier in join.args.get("using") or ():
                scope.share(identifier.name, right.relations)
            scope.relations += right.relations

    def _add(self, scope: Scope, node: exp.Expr, tables: _Tables) -> None:
        """Add a table, a query or a function to the relations of a scope."""
        alias, columns = node.alias, _alias_columns(node)
        if node.args.get("pivots"):
            relation = Relation(others=Value(problem=UNSUPPORTED))
        elif isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table) and not alias:
            self._add(scope, node.this, tables)
            self._join(scope, node, tables)
            return
        elif isinstance(node, exp.Table) and (parts := self._query.parts(node)):
            common = tables.get(self._query.normalized(node.this)) if len(parts) == 1 else None
            alias = alias or parts[-1]
            # Without an alias, all parts of its name qualify the columns of a table.
            relation = common or Relation(parts=parts)
        elif isinstance(node, exp.Subquery | exp.Lateral) and isinstance(
            node.this if isinstance(node, exp.Lateral) else node, exp.Query
        ):
            query = node.this if isinstance(node, exp.Lateral) else node
            relation = self.relation(query, tables, scope)
        else:
            value = self._expression(node, tables, scope).computed()
            items = tuple(Item(name, value) for name in columns)
            relation = Relation(items=items, others=None if items else value)
            columns = ()
        scope.relations.append(relation.named(alias, columns))
        self._join(scope, node, tables)

    # -- expressions

    def _expression(self, node: exp.Expr, tables: _Tables, scope: Scope) -> Value:
        while isinstance(node, exp.Alias | exp.Paren):
            node = node.this
        if isinstance(node, exp.Column) and not node.is_star:
            return _column(node, scope)
        values: list[Value] = []
        nodes = [node]
        while nodes:
            inner = nodes.pop()
            if isinstance(inner, exp.Column):
                unknown = Value(problem=UNSUPPORTED)
                values.append(unknown if inner.is_star else _column(inner, scope))
            elif isinstance(inner, exp.Query):
                relation = self.relation(inner, tables, scope)
                values += [i.value for item in relation.items for i in _flat(item)]
                values += [relation.others] if relation.others else []
            elif isinstance(inner, exp.Columns):
                values.append(Value(problem=UNSUPPORTED))
            else:
                nodes.extend(inner.iter_expressions())
        return computed_from(values)


def _flat(item: Item | Star) -> Iterator[Item]:
    return item.items() if isinstance(item, Star) else iter((item,))


def _alias_columns(node: exp.Expr) -> Sequence[str]:
    alias = node.args.get("alias")
    return [column.name for column in alias.columns] if isinstance(alias, exp.TableAlias) else ()


def _column(node: exp.Column, scope: Scope) -> Value:
    """A column, or a field of one: ``t.point.x`` is made from the column ``point``."""
    names = [part.name for part in node.parts]
    for count in range(len(names) - 1, 0, -1):
        if (relation := scope.relation(names[:count])) is not None:
            value = relation.value(names[count])
            return value if count == len(names) - 1 else value.computed()
    value = scope.column(names[0])
    return value if len(names) == 1 else value.computed()


def _operands(node: exp.SetOperation) -> list[tuple[exp.Expr, exp.SetOperation]]:
    """The queries of a chain of set operations from the left, each with the operation before it."""
    operands: list[tuple[exp.Expr, exp.SetOperation]] = []
    left: exp.Expr = node
    while isinstance(left, exp.SetOperation):
        if left is not node and left.args.get("with_"):
            break
        operands.append((left.expression, left))
        last, left = left, left.this
    operands.append((left, last))
    return operands[::-1]


def _union(left: Relation, right: Relation, *, by_name: bool) -> Relation:
    if left.others or right.others:
        return Relation(others=Value(problem=UNSUPPORTED))
    ours, theirs = _listed(left), _listed(right)
    if by_name and ours and theirs:
        return Relation(items=_by_name(ours, theirs))
    if ours and theirs and len(ours) == len(theirs):
        return Relation(
            items=tuple(
                Item(our.name, _either(our.value, their.value))
                for our, their in zip(ours, theirs, strict=True)
            )
        )
    uncertain: Items = tuple(
        Item(item.name, item.value.with_problem(BY_POSITION))
        if isinstance(item, Item)
        else Star(item.scope, item.only, item.excluded, item.replaced, BY_POSITION)
        for item in left.items
    )
    return Relation(items=uncertain)


def _listed(relation: Relation) -> list[Item]:
    """All columns of a query in their order; none if they are not known."""
    for item in relation.items:
        if isinstance(item, Star) and (item.replaced or item.scope.using):
            return []
    items = [inner for item in relation.items for inner in _flat(item)]
    return [] if any(item.name == ALL for item in items) else items


def _by_name(ours: Sequence[Item], theirs: Sequence[Item]) -> tuple[Item, ...]:
    items = {item.name.casefold(): item for item in ours}
    for item in theirs:
        same = items.get(item.name.casefold())
        value = _either(same.value, item.value) if same else item.value
        items[item.name.casefold()] = Item(same.name if same else item.name, value)
    return tuple(items.values())


def _either(left: Value, right: Value) -> Value:
    """The value of a column of a union. A constant on a side does not count as a copy."""
    return computed_from((left, right), is_copy=left.is_copy and right.is_copy)
