"""JSON schemas of requests that have another form than those of the Lance protocol."""

from typing import Any

Schema = dict[str, Any]

_NUMBERS: Schema = {"type": "array", "items": {"type": "number"}}
_NAMES: Schema = {"type": "array", "items": {"type": "string"}}
_COUNT: Schema = {"type": ["integer", "null"], "minimum": 0}
_BOUND: Schema = {"type": ["number", "null"]}
_FLAG: Schema = {"type": ["boolean", "null"]}
_TEXT: Schema = {"type": ["string", "null"]}

QUERY: Schema = {
    "type": "object",
    "properties": {
        "vector": {
            "description": "A vector, or several; empty for none.",
            "oneOf": [_NUMBERS, {"type": "array", "items": _NUMBERS, "minItems": 1}],
        },
        "k": {"description": "The number of results; by default all.", **_COUNT},
        "columns": {
            "description": "Names of columns, or expressions by their names.",
            "oneOf": [_NAMES, {"type": "object", "additionalProperties": {"type": "string"}}],
        },
        "full_text_query": {
            "type": "object",
            "properties": {
                "query": {
                    "description": "A text, or a structured query.",
                    "oneOf": [{"type": "string"}, {"type": "object"}],
                },
                "columns": _NAMES,
            },
        },
        **dict.fromkeys(("filter", "vector_column", "distance_type", "branch"), _TEXT),
        **dict.fromkeys(("prefilter", "fast_search", "bypass_vector_index", "with_row_id"), _FLAG),
        **dict.fromkeys(("offset", "version", "nprobes", "refine_factor", "ef"), _COUNT),
        **dict.fromkeys(("minimum_nprobes", "maximum_nprobes"), _COUNT),
        **dict.fromkeys(("lower_bound", "upper_bound"), _BOUND),
        "search_effort": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
        "order_by": {
            "description": "The columns to sort the results by; the results of a search are its nearest rows.",
            "type": ["array", "null"],
            "items": {
                "type": "object",
                "properties": {
                    "column_name": {"type": "string"},
                    "ascending": {"type": "boolean", "default": True},
                    "nulls_first": {"type": "boolean", "default": False},
                },
                "required": ["column_name"],
            },
            "maxItems": 16,
        },
        "approx_mode": {"enum": ["fast", "normal", "accurate", None]},
    },
}
EXPLAIN: Schema = {
    "type": "object",
    "properties": {"query": QUERY, "verbose": _FLAG},
    "required": ["query"],
}
RENAME: Schema = {
    "type": "object",
    "properties": {"new_table_name": {"type": "string"}, "new_namespace": _NAMES},
    "required": ["new_table_name"],
}
