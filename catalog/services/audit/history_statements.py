"""The statements by which ``catalog.services.audit.history`` reads the past.

``{namespaces}`` and ``{tables}`` stand for conditions on ``n`` and ``t``: where, and what the actor may
browse. A moment is ``%(at)s``; what lies between two is behind ``before`` and not behind ``after``.
"""

# --- what was there ------------------------------------------------------------------------------

# The event by which what an event ``u`` brought back had gone: the last of those before it. One that
# was overwritten has it under the name of what overwrote it.
_DROP = """
    SELECT d.{column} FROM catalog_auditevent d
    WHERE d.table_uuid = u.table_uuid AND d.id < u.id AND d.outcome = 'done' AND (
        d.action IN ('table.drop', 'table.deregister', 'view.drop', 'namespace.drop')
        OR (d.before->'location' IS NOT NULL AND d.after IS NULL)
    )
    ORDER BY d.id DESC LIMIT 1
"""

# When it had gone: as the event says, or that one.
_GONE_AT = f"""
    COALESCE((u.before->>'dropped_at')::timestamptz, ({_DROP.format(column="at")}))
"""

# ``OFFSET 0`` keeps these probes of an index: as joins they would be done for all tables.
_TABLE_WAS = f"""
    t.created_at <= %(at)s AND (t.dropped_at IS NULL OR t.dropped_at > %(at)s)
    AND NOT EXISTS (
        SELECT FROM catalog_auditevent u
        WHERE u.table_uuid = t.uuid AND u.action = 'table.undrop' AND u.at > %(at)s
            AND u.outcome = 'done' AND {_GONE_AT} <= %(at)s
        OFFSET 0
    )
"""

# A namespace comes back with what is below it, or for what is below it, and one event tells of it.
_NAMESPACE_WAS = """
    n.created_at <= %(at)s AND (n.dropped_at IS NULL OR n.dropped_at > %(at)s)
    AND NOT EXISTS (
        SELECT FROM catalog_auditevent u
        CROSS JOIN LATERAL (SELECT array_to_string(n.path, '.') AS label) l
        WHERE u.action IN ('namespace.undrop', 'table.undrop') AND u.table_uuid IS NULL
            AND u.at > %(at)s AND u.outcome = 'done'
            AND (l.label = u.target OR starts_with(l.label, u.target || '.'))
            AND COALESCE(
                (u.before->>'dropped_at')::timestamptz,
                (SELECT d.at FROM catalog_auditevent d
                 WHERE d.table_uuid IS NULL AND d.id < u.id AND d.outcome = 'done'
                    -- Also what was overwritten.
                    AND d.action IN ('namespace.drop', 'namespace.create') AND d.after IS NULL
                    AND d.target = COALESCE(u.before->>'name', u.target)
                        || substr(l.label, length(u.target) + 1)
                 ORDER BY d.id DESC LIMIT 1)
            ) BETWEEN n.created_at AND %(at)s
        OFFSET 0
    )
"""

# The events by which a table may have another name than at the moment.
_RENAMES = """
    u.action IN ('table.rename', 'view.rename', 'table.undrop') AND u.table_uuid IS NOT NULL
    AND u.outcome = 'done' AND u.at > %(at)s
"""

# Where tables were that have had such an event since: the first that tells says what the name was
# before it. The trail has names dotted; of the namespaces whose dotted path begins one, the deepest
# that was there is taken. Where none was, the table is shown where it is now.
_MOVED = f"""
    moved{{of}} AS MATERIALIZED (
        SELECT DISTINCT ON (table_uuid) table_uuid, label FROM (
            SELECT u.table_uuid, u.id,
                COALESCE(u.before->>'name', CASE WHEN u.action = 'table.undrop' THEN (
                    {_DROP.format(column="target")}
                ) END) AS label
            FROM catalog_auditevent u WHERE {_RENAMES} {{of_these}}
        ) told
        ORDER BY table_uuid, label IS NULL, id
    ),
    resolved{{of}} AS MATERIALIZED (
        SELECT DISTINCT ON (m.table_uuid) m.table_uuid, n.id AS namespace_id,
            array_to_string(m.parts[i + 1:], '.') AS name
        FROM (SELECT table_uuid, string_to_array(label, '.') AS parts FROM moved{{of}}) m
        CROSS JOIN LATERAL generate_series(0, cardinality(m.parts) - 1) AS i
        JOIN catalog_namespace n
            ON array_to_string(n.path, '.') = array_to_string(m.parts[:i], '.')
            AND n.created_at <= %(at)s AND (n.dropped_at IS NULL OR n.dropped_at > %(at)s)
        WHERE i > 0 OR cardinality(m.parts) = 1  -- else all that is unknown would be in the root
        ORDER BY m.table_uuid, cardinality(n.path) DESC, n.id DESC
    ),
    place{{of}} AS MATERIALIZED (
        SELECT t.uuid AS table_uuid, COALESCE(r.namespace_id, t.namespace_id) AS namespace_id,
            COALESCE(r.name, t.name) AS name
        FROM moved{{of}} m JOIN catalog_table t ON t.uuid = m.table_uuid
        LEFT JOIN resolved{{of}} r ON r.table_uuid = m.table_uuid
    )
"""  # noqa: S608 -- constants


def _moved(of_these: str = "", *, of: str = "", at: str = "at") -> str:
    text = _MOVED.replace("{of_these}", of_these).replace("{of}", of)
    return text.replace("%(at)s", f"%({at})s")


_KEPT_ITS_NAME = f"""
    NOT EXISTS (
        SELECT FROM catalog_auditevent u WHERE u.table_uuid = t.uuid AND {_RENAMES} OFFSET 0
    )
"""

_COLUMNS = "t.id, t.uuid, t.format, t.kind, t.is_materialized, t.created_at"


def _listed(state: str) -> str:
    """Tables that have the name that they had, by namespace and name.

    Each namespace gives as many as a page holds, in the order of an index; so a page is as quick in
    a namespace of a million tables as in a million namespaces.
    """
    return f"""
        (SELECT n.id AS namespace_id, n.path, f.name, f.id, f.uuid, f.format, f.kind,
            f.is_materialized, f.created_at
         FROM catalog_namespace n CROSS JOIN LATERAL (
            SELECT t.name, {_COLUMNS}
            FROM catalog_table t
            WHERE t.namespace_id = n.id AND t.state {state} 'dropped'
                AND t.name >= CASE WHEN n.id = %(in)s THEN %(name)s ELSE '' END
                AND (n.id, t.name, t.id) > (%(in)s, %(name)s, %(id)s)
                AND {_TABLE_WAS} AND {_KEPT_ITS_NAME} AND {{tables}}
            ORDER BY t.name, t.id LIMIT %(limit)s
         ) f
         WHERE n.id >= %(in)s AND {{namespaces}}
         ORDER BY n.id, f.name, f.id LIMIT %(limit)s)
    """  # noqa: S608 -- constants


STATE = f"""
    WITH {_moved()}
    SELECT * FROM (
        {_listed("<>")}
        UNION ALL
        {_listed("=")}
        UNION ALL
        (SELECT n.id, n.path, p.name, {_COLUMNS}
         FROM place p JOIN catalog_table t ON t.uuid = p.table_uuid
         JOIN catalog_namespace n ON n.id = p.namespace_id
         WHERE (n.id, p.name, t.id) > (%(in)s, %(name)s, %(id)s)
            AND {_TABLE_WAS} AND {{tables}} AND {{namespaces}}
         ORDER BY n.id, p.name, t.id LIMIT %(limit)s)
    ) found
    ORDER BY namespace_id, name, id LIMIT %(limit)s
"""  # noqa: S608 -- constants

OF_TABLES = f"""
    WITH {_moved("AND u.table_uuid = ANY(%(uuids)s::uuid[])")}
    SELECT n.id, n.path, COALESCE(p.name, t.name), {_COLUMNS}
    FROM catalog_table t
    LEFT JOIN place p ON p.table_uuid = t.uuid
    JOIN catalog_namespace n ON n.id = COALESCE(p.namespace_id, t.namespace_id)
    WHERE t.id = ANY(%(ids)s::bigint[]) AND {_TABLE_WAS} AND {{tables}} AND {{namespaces}}
    ORDER BY t.id
"""  # noqa: S608 -- constants

NAMESPACES = f"""
    SELECT n.id, n.path, n.created_at FROM catalog_namespace n
    WHERE n.id > %(after)s AND n.parent_id IS NOT NULL AND {_NAMESPACE_WAS} AND {{namespaces}}
    ORDER BY n.id LIMIT %(limit)s
"""  # noqa: S608 -- constants

OF_NAMESPACES = f"""
    SELECT n.id, n.path, n.created_at FROM catalog_namespace n
    WHERE n.id = ANY(%(ids)s::bigint[]) AND {_NAMESPACE_WAS} AND {{namespaces}} ORDER BY n.id
"""  # noqa: S608 -- constants

# The branches of a table by leaps through the index of the ledger, and of each the newest version.
# What a deleted branch had is in the ledger under its name, two slashes and a number.
BRANCHES = """
    SELECT t.id, b.branch, v.version, v.manifest_path, v.created_at, v.transaction_id,
        COALESCE(x.actor, '')
    FROM unnest(%(ids)s::bigint[]) AS t (id)
    CROSS JOIN LATERAL (
        WITH RECURSIVE leap AS (
            (SELECT branch FROM catalog_tableversion
             WHERE table_id = t.id ORDER BY branch LIMIT 1)
            UNION ALL
            SELECT (
                SELECT v.branch FROM catalog_tableversion v
                WHERE v.table_id = t.id AND v.branch > leap.branch ORDER BY v.branch LIMIT 1
            ) FROM leap WHERE leap.branch IS NOT NULL
        )
        SELECT split_part(leap.branch, '//', 1) AS branch, newest.*
        FROM leap CROSS JOIN LATERAL (
            SELECT v.version, v.manifest_path, v.created_at, v.transaction_id
            FROM catalog_tableversion v
            WHERE v.table_id = t.id AND v.branch = leap.branch AND v.created_at <= %(at)s
                AND (v.deleted_at IS NULL OR v.deleted_at > %(at)s)
            ORDER BY v.version DESC LIMIT 1
        ) newest
        WHERE leap.branch IS NOT NULL
        LIMIT %(most)s
    ) AS v
    CROSS JOIN LATERAL (SELECT v.branch) b
    LEFT JOIN catalog_transaction x ON x.id = v.transaction_id
"""


# --- what became of it ---------------------------------------------------------------------------

_WINDOW = "{0} > %(before)s AND {0} <= %(after)s"
IS_WIDE = f"""
    SELECT (SELECT count(*) FROM (
        SELECT FROM catalog_tableversion WHERE {_WINDOW.format("created_at")} LIMIT %(most)s) v
    ) >= %(most)s OR (SELECT count(*) FROM (
        SELECT FROM catalog_auditevent WHERE {_WINDOW.format("at")} LIMIT %(most)s) e
    ) >= %(most)s
"""  # noqa: S608 -- constants

# Where a table is now, or was: the exact question is asked of the few that are left.
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
        -- As an array, of which each is looked up: a join would read all tables.
        UNION SELECT id FROM catalog_table WHERE uuid = ANY(ARRAY(
            SELECT e.table_uuid FROM catalog_auditevent e
            WHERE {_WINDOW.format("e.at")} AND e.outcome = 'done' AND e.table_uuid IS NOT NULL
            UNION
            -- What was dropped between and brought back later has no time of it any more.
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
    -- The last one walked, if there may be more behind it.
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

# Who changed a table last, and what is said of its properties first and last.
TRACES = f"""
    SELECT t.uuid,
        (SELECT e.actor FROM catalog_auditevent e
         WHERE e.table_uuid = t.uuid AND {_WINDOW.format("e.at")} AND e.outcome = 'done'
         ORDER BY e.id DESC LIMIT 1),
        told.is_told, told.before, told.after
    FROM unnest(%(uuids)s::uuid[]) AS t (uuid)
    LEFT JOIN LATERAL (
        SELECT true AS is_told,
            (array_agg(e.before->'properties' ORDER BY e.id))[1] AS before,
            (array_agg(e.after->'properties' ORDER BY e.id DESC))[1] AS after
        FROM catalog_auditevent e
        WHERE e.table_uuid = t.uuid AND {_WINDOW.format("e.at")} AND e.outcome = 'done' AND (
            e.after->'updates' ?| ARRAY['set-properties', 'remove-properties']
            OR (e.action = 'table.update' AND e.after->'properties' IS NOT NULL)
            OR e.before->'properties' <> e.after->'properties'
        )
        HAVING count(*) > 0
    ) told ON true
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
    """The tables that were away at a moment, and were brought back since."""
    return f"""
    away_{of} AS MATERIALIZED (
        SELECT DISTINCT u.table_uuid FROM catalog_auditevent u
        WHERE u.action = 'table.undrop' AND u.table_uuid IS NOT NULL AND u.at > %({of})s
            AND u.outcome = 'done' AND {_GONE_AT} <= %({of})s
    )
    """  # noqa: S608 -- constants


def _there(of: str) -> str:
    """Whether a table was there at a moment, in the namespaces that are asked for."""
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
    {_moved(of="_before", at="before")}, {_moved(of="_after", at="after")},
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
        SELECT t.id, {_there("before")} AS was, {_there("after")} AS is_there,
            (path_before.path, COALESCE(place_before.name, t.name))
                <> (path_after.path, COALESCE(place_after.name, t.name)) AS is_renamed
        FROM touched JOIN catalog_table t USING (id) {_joined("before")} {_joined("after")}
        WHERE {{tables}}
    ),
    paths AS (
        SELECT n.id, {_NAMESPACE_WAS.replace("%(at)s", "%(before)s")} AS was,
            {_NAMESPACE_WAS.replace("%(at)s", "%(after)s")} AS is_there
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
