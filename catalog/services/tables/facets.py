"""The most frequent values of the tables of a list, with their numbers."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from django.db import connection

from catalog.services.tables import candidates, terms
from catalog.services.tables.listing import Matches

_VALUES = 8
"""The number of values of each facet, the most frequent ones."""


@dataclass(frozen=True)
class FacetValue:
    """A value of a facet, with the number of matching tables that have it."""

    facet: str
    value: str
    count: int


_COUNTED = """
    WITH matching AS MATERIALIZED (
        SELECT t.id, t.format, t.kind, t.state, t.owner
        FROM unnest(%(ids)s::bigint[]) AS chosen (id) JOIN catalog_table t ON t.id = chosen.id
    )
    SELECT 'format' AS facet, format AS value, count(*) FROM matching GROUP BY format
    UNION ALL SELECT 'kind', kind, count(*) FROM matching GROUP BY kind
    UNION ALL SELECT 'state', state, count(*) FROM matching GROUP BY state
    UNION ALL SELECT 'owner', owner, count(*) FROM matching WHERE owner <> '' GROUP BY owner
    UNION ALL
    SELECT 'health', CASE
            WHEN h.statistics IS NULL OR NOT h.statistics ? 'rows' THEN 'unknown'
            WHEN h.score < %(fair)s THEN 'poor' WHEN h.score < %(good)s THEN 'fair'
            ELSE 'good' END AS grade,
        count(*)
    FROM matching m LEFT JOIN catalog_tablehealth h ON h.table_id = m.id AND h.is_newest
    WHERE m.kind = 'table' GROUP BY grade
    UNION ALL
    SELECT 'label', d.key, count(DISTINCT m.id)
    FROM matching m
    JOIN catalog_labelassignment a ON a.table_id = m.id AND a."column" = ''
    JOIN catalog_labeldefinition d ON d.id = a.definition_id
    GROUP BY d.key
"""


def facets(matching: Matches, *, fair: int, good: int) -> list[FacetValue]:
    """The most frequent values of each facet, the most frequent first. Two statements at most.

    ``fair`` and ``good`` are the lowest scores of these grades of health.
    """
    counts: dict[str, Counter[str]] = {}
    ids, singly = matching.ids, matching.ids
    if matching.without_terms is not None:
        singly = [pk for pk in ids if pk in matching.without_terms]
        marked = [pk for pk in ids if pk not in matching.without_terms] if singly else ids
        for facet, value, count in _marked_facets(marked, fair, good) if marked else ():
            counts.setdefault(facet, Counter())[value] += count
    if singly:
        with connection.cursor() as cursor:
            cursor.execute(_COUNTED, {"ids": candidates.array(singly), "fair": fair, "good": good})
            for facet, value, count in cursor.fetchall():
                counts.setdefault(facet, Counter())[value] += count
    return [
        FacetValue(facet, value, matching.scaled(count))
        for facet, values in sorted(counts.items())
        for value, count in sorted(values.items(), key=lambda item: (-item[1], item[0]))[:_VALUES]
    ]


def _marked_facets(ids: Sequence[int], fair: int, good: int) -> Iterator[tuple[str, str, int]]:
    with candidates.by_index() as cursor:
        cursor.execute(
            "SELECT mark, count(*) FROM (SELECT unnest(marks) AS mark FROM catalog_tableterms"
            " WHERE table_id IN (SELECT unnest(%s::bigint[]))) marked GROUP BY mark",
            [candidates.array(ids)],
        )
        rows = cursor.fetchall()
    for mark, count in rows:
        facet, value = terms.FACETS.get(mark[0]), mark[2:]
        if facet is None or len(mark) == terms.LONGEST:  # shortened: no value
            continue
        if facet == "health":
            score = None if mark == terms.NOT_MEASURED else int(value) * terms.SCORES
            yield facet, _grade(score, fair, good), count
        elif value:
            yield facet, value, count


def _grade(score: int | None, fair: int, good: int) -> str:
    if score is None:
        return "unknown"
    return "poor" if score < fair else "fair" if score < good else "good"
