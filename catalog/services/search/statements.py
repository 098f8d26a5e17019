"""SQL statements of a search.

A word may be in a million documents, and a text index has no order. So ``DEPTH`` documents are taken
and ranked: first those whose name is the whole query, then those with all words in their names, then
all others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson
from django.db import connection
from django.db.models import BooleanField, Q
from django.db.models.expressions import RawSQL

from catalog import access
from catalog.access import Principal
from catalog.models import SearchDocument, Sensitivity, TableState
from catalog.privileges import Privilege
from catalog.services.search import words as search_words
from catalog.services.search.query import Query
from catalog.services.search.words import all_of, any_of, mark, term

DEPTH = 500
_MOST_SIMILAR = 1000  # words of the dictionary that are looked up for a word of a query

EXACT_TIER, _NAME_TIER, _ANY_TIER = 3, 2, 1


@dataclass(frozen=True, slots=True)
class _Carrier:
    """A namespace with a label or a sensitivity that its descendants inherit."""

    pk: int
    ancestors: Sequence[int]
    values: Sequence[str]


@dataclass(frozen=True, slots=True)
class Position:
    """Sort key of the last result of a page."""

    tier: int
    rank: float
    path: list[str]
    pk: int
    is_corrected: bool

    @classmethod
    def of(cls, row: Mapping[str, Any], *, is_corrected: bool) -> "Position":
        return cls(row["tier"], row["rank"], list(row["path"]), row["id"], is_corrected)


# --- the statements ----------------------------------------------------------------------------

_CARRIERS = """
    SELECT d.key, n.id, n.ancestors, array_agg(a.value)
    FROM catalog_labelassignment a
    JOIN catalog_labeldefinition d ON d.id = a.definition_id
    JOIN catalog_namespace n ON n.id = a.namespace_id
    WHERE d.key = ANY(%s) AND n.dropped_at IS NULL
    GROUP BY d.key, n.id
    UNION ALL
    SELECT '', n.id, n.ancestors, ARRAY[f.sensitivity]
    FROM catalog_facts f JOIN catalog_namespace n ON n.id = f.namespace_id
    WHERE %s AND f.table_id IS NULL AND f.sensitivity <> '' AND n.dropped_at IS NULL
"""

# Details for display are read only for the rows of the page.
_PAGE = """
    {near}
    {hits},
    best AS (SELECT id, max(tier) AS tier FROM ({all_hits}) AS hit GROUP BY id),
    ranked AS (
        SELECT d.id, best.tier,
            {rank} AS rank,
            CASE WHEN t.id IS NULL THEN o.path ELSE n.path || t.name END AS path
        FROM best JOIN catalog_searchdocument d ON d.id = best.id
        LEFT JOIN catalog_table t ON t.id = d.table_id
        LEFT JOIN catalog_namespace n ON n.id = t.namespace_id
        LEFT JOIN catalog_namespace o ON o.id = d.namespace_id
    ),
    page AS (
        SELECT * FROM ranked {behind}
        ORDER BY tier DESC, rank DESC, path, id LIMIT {size}
    )
    SELECT page.id, page.tier, page.rank, page.path, t.id AS table_id, o.id AS namespace_id,
        t.kind, t.format, coalesce(t.owner, o.owner) AS owner, d.columns,
        coalesce(
            (SELECT f.description FROM catalog_facts f WHERE f.table_id = t.id AND f.column = ''),
            (SELECT f.description FROM catalog_facts f WHERE f.namespace_id = o.id),
            ''
        ) AS description,
        ARRAY(
            SELECT jsonb_build_array(l.key, a.value, a.column)
            FROM catalog_labelassignment a JOIN catalog_labeldefinition l ON l.id = a.definition_id
            WHERE a.table_id = t.id OR a.namespace_id = o.id
            ORDER BY a.id LIMIT 200
        ) AS labels,
        ARRAY(
            SELECT jsonb_build_array(c.column, left(c.description, 4000))
            FROM catalog_facts c
            WHERE c.table_id = t.id AND c.column <> '' AND c.description <> ''
            ORDER BY c.id LIMIT 200
        ) AS column_descriptions
        {likely}
    FROM page JOIN catalog_searchdocument d ON d.id = page.id
    LEFT JOIN catalog_table t ON t.id = d.table_id
    LEFT JOIN catalog_namespace o ON o.id = d.namespace_id
    ORDER BY page.tier DESC, page.rank DESC, page.path, page.id
"""

# Words similar to each word of the query, with their similarity: the share of common trigrams, as in
# pg_trgm, plus 0.5 for a missing letter or two swapped ones. Only words that the actor may browse count.
_NEAR = """
    near AS MATERIALIZED (
        SELECT q.slot, q.mark, w.word
        FROM jsonb_to_recordset(%s::jsonb) AS q (slot int, mark text, word text, keys text[])
        CROSS JOIN LATERAL (
            SELECT word, likeness, max(likeness) OVER () AS most FROM (
                SELECT word, likeness FROM (
                    SELECT word,
                        count(*) FILTER (WHERE key NOT LIKE '-%%')::float8
                            / (length(q.word) + length(word) + 2
                                - count(*) FILTER (WHERE key NOT LIKE '-%%'))
                        + CASE WHEN bool_or(key LIKE '-%%') THEN 0.5 ELSE 0 END AS likeness
                    FROM catalog_searchword WHERE key = ANY(q.keys) GROUP BY word
                    ORDER BY likeness DESC, word LIMIT {most_similar}
                ) similar_words
                WHERE likeness >= 0.3 {visible}
                ORDER BY likeness DESC, word LIMIT 8
            ) known_words
        ) w
        WHERE w.likeness >= 0.7 * w.most
    ),
"""


# Each tier takes as many hits as the tiers before it leave of DEPTH.
_HIT = """
    hit{tier} (id, tier) AS MATERIALIZED (
        SELECT id, {tier} FROM ({rows}) AS matching (id) LIMIT greatest(0, {depth}{before})
    )
"""
_LESS = " - (SELECT count(*) FROM hit{tier})"
_ALL = "SELECT * FROM hit{tier}"

_REACH = """
    SELECT string_agg(quote_literal(mark), ' | ')::tsquery FROM (
        SELECT unnest(ARRAY[':p:' || root, ':w:' || root])
            FROM unnest(monodon_roots(%s::bigint[], %s::text[])) root
        UNION SELECT ':w:' || passage
            FROM unnest(monodon_passages(%s::bigint[], %s::text[], %s::bigint[])) passage
        UNION SELECT ':d:' || table_id FROM catalog_grant
            WHERE principal_id = ANY(%s::bigint[]) AND table_id IS NOT NULL
                AND (expires_at IS NULL OR expires_at > now())
        UNION SELECT ':d:' || pk FROM unnest(%s::bigint[]) pk
        UNION SELECT unnest(%s::text[])
    ) AS reach (mark)
"""
_WITHIN = """
    SELECT string_agg(quote_literal(mark), ' | ')::tsquery FROM (
        SELECT ':p:' || %s::bigint
        UNION SELECT ':w:' || unnest(ancestors) FROM catalog_namespace WHERE id = %s
    ) AS reach (mark)
"""

# Fills the positions of a query with words. A word without similar words becomes a word that is in
# no document.
_PUT_IN = """
    (SELECT format(%s::text, VARIADIC ARRAY(
        SELECT coalesce(
            string_agg(quote_literal({mark} || near.word), ' | '), quote_literal(':none:')
        )
        FROM generate_series(1, %s) AS p LEFT JOIN near ON near.slot = p
        GROUP BY p ORDER BY p
    ))::tsquery)
"""


class Lookup:
    """One search: builds and runs its statements."""

    def __init__(self, actor: Principal, query: Query, size: int, after: Position | None) -> None:
        self._actor = actor
        self._query = query
        self._size = size
        self._after = after
        self.likely: list[str] = []
        """The similar words that replaced the words of the query."""

    def exactly(self) -> list[dict[str, Any]]:
        terms, filters = self._query.terms, self._filters
        if not terms:
            return self._run([(_ANY_TIER, all_of(filters), [])], "0::float8", [])
        words = all_of([*(query_term.query() for query_term in terms), *filters])
        plain = [query_term for query_term in terms if not query_term.in_columns]
        tiers: list[tuple[int, str, Sequence[Any]]] = [(_ANY_TIER, words, [])]
        if plain:
            # A word of the name is also a plain word, so the marks make the plain term redundant.
            in_name = [query_term.in_marks("n") for query_term in plain]
            others = [
                query_term.query()
                for query_term in terms
                if query_term.in_columns or query_term.is_in_order
            ]
            tiers.insert(0, (_NAME_TIER, all_of([*in_name, *others, *filters]), []))
            whole = term(mark("e", self._query.whole))
            tiers.insert(0, (EXACT_TIER, all_of([whole, *filters]), []))
        rank = "ts_rank(d.vector, %s::tsquery, 1)::float8"
        return self._run(tiers, rank, [all_of(query_term.query() for query_term in terms)])

    def nearly(self) -> list[dict[str, Any]]:
        """Search for words similar to those of the query, which the same statement looks up."""
        placeholders: dict[tuple[str, str], int] = {}

        def placeholder(kind: str, word: str) -> str:
            return f"%{placeholders.setdefault((kind, word), len(placeholders) + 1)}$s"

        # PostgreSQL's format() inserts the words. Words contain no percent sign; filters may.
        near = all_of(query_term.near(placeholder) for query_term in self._query.terms)
        template_filters = [condition.replace("%", "%%") for condition in self._filters]
        template = all_of([near, *template_filters])
        words = [
            {
                "slot": number,
                "mark": kind,
                "word": word,
                "keys": sorted(search_words.likeness(word)),
            }
            for (kind, word), number in placeholders.items()
        ]
        parameters = [template, len(placeholders)]
        put_in = _PUT_IN.format(mark="near.mark")
        tiers: list[tuple[int, str, Sequence[Any]]] = [(_ANY_TIER, put_in, parameters)]
        if len(placeholders) == 1 and not self._query.terms[0].in_columns:
            # Results with a similar word as their whole name come first.
            whole = all_of(["%1$s", *template_filters])
            tiers.insert(0, (EXACT_TIER, _PUT_IN.format(mark="':e:'"), [whole, 1]))
        return self._run(
            tiers,
            f"ts_rank(d.vector, {put_in}, 1)::float8",
            parameters,
            near=orjson.dumps(words).decode(),
        )

    def _run(
        self,
        tiers: Sequence[tuple[int, str, Sequence[Any]]],
        rank: str,
        rank_parameters: Sequence[Any],
        *,
        near: str | None = None,
    ) -> list[dict[str, Any]]:
        hits: list[str] = []
        parameters: list[Any] = []
        similar = ""
        if near is not None:
            visible, of_visible = self._has_visible_document
            similar = _NEAR.format(most_similar=_MOST_SIMILAR, visible=visible)
            parameters += [near, *of_visible]
        for number, (tier, query, of_query) in enumerate(tiers):
            # A query that the statement builds is SQL text; any other query is a parameter.
            text = query if of_query else "%s::tsquery"
            sql, row_parameters = self._visible_with(text, list(of_query) or [query])
            before = "".join(_LESS.format(tier=other) for other, _, _ in tiers[:number])
            hits.append(_HIT.format(tier=tier, rows=sql, depth=DEPTH, before=before))
            parameters += row_parameters
        parameters += rank_parameters
        behind = ""
        if self._after is not None:
            behind = "WHERE (-tier, -rank, path, id) > (%s, %s, %s::text[], %s)"
            position = self._after
            parameters += [-position.tier, -position.rank, position.path, position.pk]
        likely = ""
        if near is not None:
            likely = ", ARRAY(SELECT DISTINCT word FROM near) AS likely"
        text = _PAGE.format(
            near=similar,
            hits=",\n".join(hits),
            all_hits=" UNION ALL ".join(_ALL.format(tier=tier) for tier, _, _ in tiers),
            rank=rank,
            behind=behind,
            size=self._size + 1,
            likely=likely,
        )
        with connection.cursor() as cursor:
            cursor.execute(f"WITH {text}", parameters)
            names = [column.name for column in cursor.description or ()]
            rows_found = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        if rows_found and near is not None:
            self.likely = rows_found[0]["likely"]
        return rows_found

    def _visible_with(self, query: str, parameters: Sequence[Any]) -> tuple[str, Sequence[Any]]:
        """SQL for the documents that match a tsquery and that the actor may browse."""
        within, of_reach = self._reach
        condition = RawSQL(  # noqa: S611 -- a fixed text
            f"catalog_searchdocument.vector @@ ({query}{within})",
            [*parameters, *of_reach],
            output_field=BooleanField(),
        )
        rows = SearchDocument.objects.filter(self._visible).filter(condition)
        return rows.order_by().values("pk").query.sql_with_params()

    @property
    def _has_visible_document(self) -> tuple[str, Sequence[Any]]:
        """SQL condition that a similar word is in a document that the actor may browse."""
        if Privilege.BROWSE in self._actor.everywhere and self._actor.within is None:
            return "", ()
        sql, parameters = self._visible_with("quote_literal(q.mark || word)::tsquery", [])
        return f"AND EXISTS ({sql})", parameters

    @cached_property
    def _visible(self) -> Q:
        tables = Q(table__isnull=False) & ~Q(table__state=TableState.DROPPED)
        namespaces = Q(namespace__isnull=False, namespace__dropped_at=None)
        return (tables & access.visible_tables(self._actor, "table__")) | (
            namespaces & access.visible_namespaces(self._actor, "namespace__")
        )

    @cached_property
    def _reach(self) -> tuple[str, list[Any]]:
        """Marks of everything that the actor may browse, so that the index skips other documents.

        The marks cover slightly more; ``_visible`` checks each document that the index returns.
        """
        actor = self._actor
        text, parameters = "", []
        if Privilege.BROWSE not in actor.everywhere:
            text += f" && ({_REACH})"
            ids, names, tables = list(actor.ids), list(actor.names), list(actor.tables)
            owners = [mark("o", name) for name in names]
            parameters += [ids, names, ids, names, tables, ids, tables, owners]
        if actor.within is not None:
            text += f" && ({_WITHIN})"
            parameters += [actor.within, actor.within]
        return text, parameters

    @cached_property
    def _filters(self) -> list[str]:
        query = self._query
        if not (query.labels or query.sensitivities):
            return list(query.filters)
        carriers: dict[str, list[_Carrier]] = {}
        with connection.cursor() as cursor:
            keys = [key for key, _ in query.labels]
            cursor.execute(_CARRIERS, [keys, bool(query.sensitivities)])
            for key, *values in cursor.fetchall():
                carriers.setdefault(key, []).append(_Carrier(*values))
        return [
            *query.filters,
            *(_of_label(key, value, carriers.get(key, ())) for key, value in query.labels),
            *(
                _of_sensitivity(sensitivity, carriers.get("", ()))
                for sensitivity in query.sensitivities
            ),
        ]


def _of_label(key: str, value: str | None, carriers: Sequence[_Carrier]) -> str:
    text = key if value is None else f"{key}={value}"
    matching = {
        carrier.pk
        for carrier in carriers
        if value is None
        or any(
            search_words.fold(assigned, search_words.MAX_MARK) == value
            for assigned in carrier.values
        )
    }
    own = [term(mark("l", text)), term(mark("m", text))]
    return any_of([*own, *_inherited(mark("l", key), carriers, matching)])


def _of_sensitivity(sensitivity: Sensitivity, carriers: Sequence[_Carrier]) -> str:
    matching = {carrier.pk for carrier in carriers if sensitivity in carrier.values}
    own = [term(mark("s", sensitivity)), term(mark("t", sensitivity))]
    return any_of([*own, *_inherited(mark("s"), carriers, matching)])


def _inherited(own: str, carriers: Sequence[_Carrier], matching: set[int]) -> list[str]:
    """Query for documents below a matching namespace with neither a nearer carrier nor an own value."""
    if not matching:
        return []
    carrier_ids = {carrier.pk for carrier in carriers}
    below: dict[int, list[int]] = {}
    for carrier in carriers:
        nearest = next((pk for pk in reversed(carrier.ancestors[:-1]) if pk in carrier_ids), None)
        if nearest is not None:
            below.setdefault(nearest, []).append(carrier.pk)
    subtrees = []
    for pk in sorted(matching):
        inside = term(mark("p", str(pk)))
        if nearer := below.get(pk):
            inside = f"({inside} & !{any_of(term(mark('p', str(carrier))) for carrier in nearer)})"
        subtrees.append(inside)
    return [f"(!{term(own)} & {any_of(subtrees)})"]
