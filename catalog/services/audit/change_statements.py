"""The statements that find and count the changes between two moments.

The placeholders are those of ``history_statements``. A change between the moments is later than
``before`` and not later than ``after``.
"""

from catalog.services.audit.history_statements import GONE_AT, NAMESPACE_WAS, moved

_WINDOW = "{0} > %(before)s AND {0} <= %(after)s"
IS_WIDE = f"""
    SELECT (SELECT count(*) FROM (
        SELECT FROM catalog_tableversion WHERE {_WINDOW.format("created_at")} LIMIT %(most)s) v
    ) >= %(most)s OR (SELECT count(*) FROM (
        SELECT FROM catalog_auditevent WHERE {_WINDOW.format("at")} LIMIT %(most)s) e
    ) >= %(most)s
"""  # noqa: S608 -- constants

# The table is, or was, in a selected namespace. The exact condition is checked on the few that remain.
_NEAR = """
    (t.namespace_id IN (SELECT n.id FROM catalog_namespace n WHERE {namespaces})
     OR t.uuid IN (
        SELECT e.table_uuid FROM catalog_auditevent e
        WHERE e.action IN ('table.rename', 'view.rename', 'table.undrop')
            AND e.table_uuid IS NOT NULL
            AND e.at > %(before)s))
"""

NARROW_TABLES = f"""
    WITH touched AS MATERIALIZED (
        SELECT table_id FROM catalog_tableversion WHERE {_WINDOW.format("created_at")}
        UNION SELECT table_id FROM catalog_tableversion WHERE {_WINDOW.format("deleted_at")}
        UNION SELECT id FROM catalog_table
            WHERE {_WINDOW.format("created_at")} OR {_WINDOW.format("dropped_at")}
        -- An array whose elements are looked up by the index: a join would read all tables.
        UNION SELECT id FROM catalog_table WHERE uuid = ANY(ARRAY(
            SELECT e.table_uuid FROM catalog_auditevent e
            WHERE {_WINDOW.format("e.at")} AND e.outcome = 'done' AND e.table_uuid IS NOT NULL
            UNION
            -- A table that was dropped between the moments and restored later has no drop time.
            SELECT e.table_uuid FROM catalog_auditevent e
            WHERE e.action = 'table.undrop' AND e.at > %(after)s
        ))
    )
    SELECT t.id, false FROM touched JOIN catalog_table t ON t.id = touched.table_id
    WHERE t.id > %(last)s AND {{tables}} AND {_NEAR}
    ORDER BY t.id LIMIT %(limit)s
"""  # noqa: S608 -- constants

WIDE_TABLES = f"""
    WITH walked AS MATERIALIZED (
        SELECT t.id, t.uuid, t.created_at, t.dropped_at FROM catalog_table t
        WHERE t.id > %(last)s AND t.created_at <= %(after)s AND {{tables}} AND {_NEAR}
        ORDER BY t.id LIMIT %(examined)s
    )
    (SELECT t.id, false FROM walked t
     WHERE {_WINDOW.format("t.created_at")} OR {_WINDOW.format("t.dropped_at")}
        OR EXISTS (SELECT FROM catalog_tableversion v WHERE v.table_id = t.id
            AND {_WINDOW.format("v.created_at")} OFFSET 0)
        OR EXISTS (SELECT FROM catalog_tableversion v WHERE v.table_id = t.id
            AND {_WINDOW.format("v.deleted_at")} OFFSET 0)
        OR EXISTS (SELECT FROM catalog_auditevent e WHERE e.table_uuid = t.uuid
            AND ({_WINDOW.format("e.at")} OR e.action = 'table.undrop' AND e.at > %(after)s)
            AND e.outcome = 'done' OFFSET 0)
     ORDER BY t.id LIMIT %(limit)s)
    UNION ALL
    -- The last examined table, if there may be more.
    (SELECT max(id), true FROM walked HAVING count(*) >= %(examined)s)
"""  # noqa: S608 -- constants

_BROUGHT_BACK = """
    EXISTS (
        SELECT FROM catalog_auditevent e
        WHERE e.action IN ('namespace.undrop', 'table.undrop') AND e.table_uuid IS NULL
            AND e.at > %(before)s AND e.outcome = 'done'
            AND starts_with(array_to_string(n.path, '.') || '.', e.target || '.')
        OFFSET 0
    )
"""

CHANGED_NAMESPACES = f"""
    SELECT n.id FROM catalog_namespace n
    WHERE n.id > %(last)s AND n.parent_id IS NOT NULL AND {{namespaces}} AND (
        {_WINDOW.format("n.created_at")} OR {_WINDOW.format("n.dropped_at")} OR {_BROUGHT_BACK}
        OR array_to_string(n.path, '.') IN (
            SELECT e.target FROM catalog_auditevent e
            WHERE {_WINDOW.format("e.at")} AND e.action = 'namespace.update'
                AND e.table_uuid IS NULL AND e.outcome = 'done'
        )
    )
    ORDER BY n.id LIMIT %(limit)s
"""  # noqa: S608 -- constants

COMMITS = f"""
    SELECT v.table_id, split_part(v.branch, '//', 1), count(*)
    FROM catalog_tableversion v
    WHERE v.table_id = ANY(%(ids)s::bigint[]) AND {_WINDOW.format("v.created_at")}
    GROUP BY 1, 2
"""  # noqa: S608 -- constants

# The last actor that changed a table, and its first and last recorded properties.
TRACES = f"""
    SELECT t.uuid,
        (SELECT e.actor FROM catalog_auditevent e
         WHERE e.table_uuid = t.uuid AND {_WINDOW.format("e.at")} AND e.outcome = 'done'
         ORDER BY e.id DESC LIMIT 1),
        recorded.has_properties, recorded.before, recorded.after
    FROM unnest(%(uuids)s::uuid[]) AS t (uuid)
    LEFT JOIN LATERAL (
        SELECT true AS has_properties,
            (array_agg(e.before->'properties' ORDER BY e.id))[1] AS before,
            (array_agg(e.after->'properties' ORDER BY e.id DESC))[1] AS after
        FROM catalog_auditevent e
        WHERE e.table_uuid = t.uuid AND {_WINDOW.format("e.at")} AND e.outcome = 'done' AND (
            e.after->'updates' ?| ARRAY['set-properties', 'remove-properties']
            OR (e.action = 'table.update' AND e.after->'properties' IS NOT NULL)
            OR e.before->'properties' <> e.after->'properties'
        )
        HAVING count(*) > 0
    ) recorded ON true
"""  # noqa: S608 -- constants

NAMESPACE_TRACES = f"""
    SELECT e.target,
        (array_agg(e.actor ORDER BY e.id DESC))[1],
        (array_agg(e.before->'properties' ORDER BY e.id)
            FILTER (WHERE e.action = 'namespace.update'))[1],
        (array_agg(e.after->'properties' ORDER BY e.id DESC)
            FILTER (WHERE e.action = 'namespace.update'))[1]
    FROM catalog_auditevent e
    WHERE {_WINDOW.format("e.at")} AND e.action LIKE 'namespace.%%' AND e.table_uuid IS NULL
        AND e.outcome = 'done' AND e.target = ANY(%(targets)s)
    GROUP BY e.target
"""  # noqa: S608 -- constants


def _away(of: str) -> str:
    """The tables that were dropped at a moment, and have been restored since."""
    return f"""
    away_{of} AS MATERIALIZED (
        SELECT DISTINCT u.table_uuid FROM catalog_auditevent u
        WHERE u.action = 'table.undrop' AND u.table_uuid IS NOT NULL AND u.at > %({of})s
            AND u.outcome = 'done' AND {GONE_AT} <= %({of})s
    )
    """  # noqa: S608 -- constants


def _existed(of: str) -> str:
    """The condition that a table existed at a moment, in the selected namespaces."""
    return f"""
        t.created_at <= %({of})s AND (t.dropped_at IS NULL OR t.dropped_at > %({of})s)
        AND away_{of}.table_uuid IS NULL
        AND path_{of}.id IN (SELECT id FROM scope)
    """  # noqa: S608 -- constants


def _joined(of: str) -> str:
    return f"""
        LEFT JOIN away_{of} ON away_{of}.table_uuid = t.uuid
        LEFT JOIN place_{of} ON place_{of}.table_uuid = t.uuid
        JOIN catalog_namespace path_{of}
            ON path_{of}.id = COALESCE(place_{of}.namespace_id, t.namespace_id)
    """


COUNTS = f"""
    WITH scope AS MATERIALIZED (SELECT n.id FROM catalog_namespace n WHERE {{namespaces}}),
    {moved(of="_before", at="before")}, {moved(of="_after", at="after")},
    {_away("before")}, {_away("after")},
    entered AS MATERIALIZED (
        SELECT table_id, count(*) AS commits FROM catalog_tableversion
        WHERE {_WINDOW.format("created_at")} GROUP BY table_id
    ),
    changed AS MATERIALIZED (
        SELECT table_id FROM entered
        UNION SELECT table_id FROM catalog_tableversion WHERE {_WINDOW.format("deleted_at")}
    ),
    touched AS (
        SELECT table_id AS id FROM changed
        UNION SELECT id FROM catalog_table
            WHERE {_WINDOW.format("created_at")} OR {_WINDOW.format("dropped_at")}
        UNION SELECT t.id FROM moved_before m JOIN catalog_table t ON t.uuid = m.table_uuid
        UNION SELECT t.id FROM away_before a JOIN catalog_table t ON t.uuid = a.table_uuid
        UNION SELECT t.id FROM away_after a JOIN catalog_table t ON t.uuid = a.table_uuid
    ),
    compared AS MATERIALIZED (
        SELECT t.id, {_existed("before")} AS was, {_existed("after")} AS is_there,
            (path_before.path, COALESCE(place_before.name, t.name))
                <> (path_after.path, COALESCE(place_after.name, t.name)) AS is_renamed
        FROM touched JOIN catalog_table t USING (id) {_joined("before")} {_joined("after")}
        WHERE {{tables}}
    ),
    paths AS (
        SELECT n.id, {NAMESPACE_WAS.replace("%(at)s", "%(before)s")} AS was,
            {NAMESPACE_WAS.replace("%(at)s", "%(after)s")} AS is_there
        FROM catalog_namespace n
        WHERE n.parent_id IS NOT NULL AND {{namespaces}} AND (
            {_WINDOW.format("n.created_at")} OR {_WINDOW.format("n.dropped_at")}
            OR {_BROUGHT_BACK}
        )
    )
    SELECT (SELECT count(*) FROM paths WHERE is_there AND NOT was),
        (SELECT count(*) FROM paths WHERE was AND NOT is_there),
        (SELECT count(*) FROM compared WHERE is_there AND NOT was),
        (SELECT count(*) FROM compared WHERE was AND NOT is_there),
        (SELECT count(*) FROM compared WHERE was AND is_there AND is_renamed),
        (SELECT count(*) FROM compared JOIN changed ON table_id = compared.id
         WHERE was AND is_there),
        (SELECT COALESCE(sum(commits), 0)::bigint FROM compared
         JOIN entered ON table_id = compared.id WHERE was OR is_there)
"""  # noqa: S608 -- constants
