"""The statements that read the state of the catalog at a past moment, ``%(at)s``.

``{namespaces}`` and ``{tables}`` are placeholders for conditions on ``n`` and ``t``: the selected
namespaces, and the objects that the actor may browse.
"""

# The event that dropped the object restored by an event ``u``: the last one before it. If the object
# was overwritten, that event has the name of the object that replaced it.
_DROP = """
    SELECT d.{column} FROM catalog_auditevent d
    WHERE d.table_uuid = u.table_uuid AND d.id < u.id AND d.outcome = 'done' AND (
        d.action IN ('table.drop', 'table.deregister', 'view.drop', 'namespace.drop')
        OR (d.before->'location' IS NOT NULL AND d.after IS NULL)
    )
    ORDER BY d.id DESC LIMIT 1
"""

# The time of the drop: as recorded in the event ``u``, or that of the event above.
GONE_AT = f"""
    COALESCE((u.before->>'dropped_at')::timestamptz, ({_DROP.format(column="at")}))
"""

# ``OFFSET 0`` keeps these subqueries index probes; as joins they would read all tables.
_TABLE_WAS = f"""
    t.created_at <= %(at)s AND (t.dropped_at IS NULL OR t.dropped_at > %(at)s)
    AND NOT EXISTS (
        SELECT FROM catalog_auditevent u
        WHERE u.table_uuid = t.uuid AND u.action = 'table.undrop' AND u.at > %(at)s
            AND u.outcome = 'done' AND {GONE_AT} <= %(at)s
        OFFSET 0
    )
"""

# A namespace is restored with the objects below it, or because of one of them, in a single event.
NAMESPACE_WAS = """
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
                    -- Overwritten namespaces as well.
                    AND d.action IN ('namespace.drop', 'namespace.create') AND d.after IS NULL
                    AND d.target = COALESCE(u.before->>'name', u.target)
                        || substr(l.label, length(u.target) + 1)
                 ORDER BY d.id DESC LIMIT 1)
            ) BETWEEN n.created_at AND %(at)s
        OFFSET 0
    )
"""

# The events after which a table may have a different name than at the moment.
_RENAMES = """
    u.action IN ('table.rename', 'view.rename', 'table.undrop') AND u.table_uuid IS NOT NULL
    AND u.outcome = 'done' AND u.at > %(at)s
"""

# The places of tables with such an event since the moment: the first event that records a name has
# the earlier one. Names in the trail are dotted; among the namespaces whose dotted path is a prefix,
# the deepest that existed is taken. If none existed, the table is shown at its current place.
_MOVED = f"""
    moved{{of}} AS MATERIALIZED (
        SELECT DISTINCT ON (table_uuid) table_uuid, label FROM (
            SELECT u.table_uuid, u.id,
                COALESCE(u.before->>'name', CASE WHEN u.action = 'table.undrop' THEN (
                    {_DROP.format(column="target")}
                ) END) AS label
            FROM catalog_auditevent u WHERE {_RENAMES} {{of_these}}
        ) names
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
        WHERE i > 0 OR cardinality(m.parts) = 1  -- otherwise unresolved names would be in the root
        ORDER BY m.table_uuid, cardinality(n.path) DESC, n.id DESC
    ),
    place{{of}} AS MATERIALIZED (
        SELECT t.uuid AS table_uuid, COALESCE(r.namespace_id, t.namespace_id) AS namespace_id,
            COALESCE(r.name, t.name) AS name
        FROM moved{{of}} m JOIN catalog_table t ON t.uuid = m.table_uuid
        LEFT JOIN resolved{{of}} r ON r.table_uuid = m.table_uuid
    )
"""  # noqa: S608 -- constants


def moved(of_these: str = "", *, of: str = "", at: str = "at") -> str:
    text = _MOVED.replace("{of_these}", of_these).replace("{of}", of)
    return text.replace("%(at)s", f"%({at})s")


_KEPT_ITS_NAME = f"""
    NOT EXISTS (
        SELECT FROM catalog_auditevent u WHERE u.table_uuid = t.uuid AND {_RENAMES} OFFSET 0
    )
"""

_COLUMNS = "t.id, t.uuid, t.format, t.kind, t.is_materialized, t.created_at"


def _listed(state: str) -> str:
    """Tables that still have their name of the moment, by namespace and name.

    Each namespace contributes at most a page, in index order, so a page is as fast in a namespace of
    a million tables as in a million namespaces.
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
    WITH {moved()}
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
    WITH {moved("AND u.table_uuid = ANY(%(uuids)s::uuid[])")}
    SELECT n.id, n.path, COALESCE(p.name, t.name), {_COLUMNS}
    FROM catalog_table t
    LEFT JOIN place p ON p.table_uuid = t.uuid
    JOIN catalog_namespace n ON n.id = COALESCE(p.namespace_id, t.namespace_id)
    WHERE t.id = ANY(%(ids)s::bigint[]) AND {_TABLE_WAS} AND {{tables}} AND {{namespaces}}
    ORDER BY t.id
"""  # noqa: S608 -- constants

NAMESPACES = f"""
    SELECT n.id, n.path, n.created_at FROM catalog_namespace n
    WHERE n.id > %(after)s AND n.parent_id IS NOT NULL AND {NAMESPACE_WAS} AND {{namespaces}}
    ORDER BY n.id LIMIT %(limit)s
"""  # noqa: S608 -- constants

OF_NAMESPACES = f"""
    SELECT n.id, n.path, n.created_at FROM catalog_namespace n
    WHERE n.id = ANY(%(ids)s::bigint[]) AND {NAMESPACE_WAS} AND {{namespaces}} ORDER BY n.id
"""  # noqa: S608 -- constants

# The branches of a table by a loose scan of the ledger's index, and the newest version of each. The
# versions of a deleted branch are in the ledger under its name, two slashes and a number.
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
