"""CreateTableIndex: every type of index with its parameters, and refusals."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from catalog.models import AuditEvent, Job, Table, TableVersion, Transaction
from catalog.services.engine import jobs
from catalog.services.maintenance import job_runner
from catalog.storage import locations
from tests.cases import shared_cases
from tests.factories import files, make_lance_table, make_table, make_version, open_lance

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.operation("CreateTableIndex"),
    pytest.mark.usefixtures("everywhere"),
]

ROWS = 300
PATH = "/v1/table/w$t/create_index"


def vectors(rows: int, dimension: int = 16) -> pa.Array:
    values = np.random.default_rng(7).random(rows * dimension, dtype="float32")
    return pa.FixedSizeListArray.from_arrays(pa.array(values), dimension)


def table(rows: int = ROWS) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "text": pa.array([f"word{n % 7} of many" for n in range(rows)], pa.string()),
            "tags": pa.array([["a", "b"] if n % 2 else ["c"] for n in range(rows)]),
            "v": vectors(rows),
            "Upper": pa.array(range(rows), pa.int32()),
            "st": pa.array([{"Xy": n, "a.b": {"c`d": n}} for n in range(rows)]),
            "ls": pa.array([[{"t": "some text"}] for _ in range(rows)]),
        }
    )


def make_lance_branch(row: Table, identifier: tuple[str, ...], name: str = "dev") -> None:
    """A branch of the table's newest version, in storage and in the ledger."""
    open_lance(row.location).create_branch(name)
    directory = f"tree/{name}/_versions"
    (manifest,) = (
        path
        for path in files(row.location)
        if path.startswith(directory) and path.endswith(".manifest")
    )
    path = locations.store_path(row.location, manifest)
    version = 2**64 - 1 - int(manifest.removeprefix(f"{directory}/").removesuffix(".manifest"))
    make_version(identifier, version, path, name)


def details(lance, name: str) -> dict[str, Any]:
    listed = lance.post("/v1/table/w$t/index/list", {})["indexes"]
    (index,) = [index for index in listed if index["index_name"] == name]
    return {**index, "index_details": json.loads(index["index_details"])}


def test_a_build_is_one_audited_version(lance):
    make_lance_table(("w", "t"), table())
    answer = lance.post(PATH, {"column": "id", "index_type": "BTREE"})
    assert list(TableVersion.objects.order_by("version").values_list("version", flat=True)) == [
        1,
        2,
    ]
    event = AuditEvent.objects.get(action="index.create")
    assert str(event.transaction_id) == answer["transaction_id"]
    assert event.after["version"] == 2
    assert event.after["name"] == "id_idx"
    assert event.after["column"] == "id"
    assert event.after["index_type"] == "BTREE"
    row = Transaction.objects.get(pk=answer["transaction_id"])
    assert (row.status, [operation["operation"] for operation in row.operations]) == (
        "Succeeded",
        ["CreateTableIndex"],
    )


@pytest.mark.parametrize(
    ("column", "spelled", "name"),
    [
        ("id", "BTREE", "BTREE"),
        ("id", "btree", "BTREE"),
        ("id", "B_Tree", "BTREE"),
        ("id", "SCALAR", "BTREE"),
        ("id", "Bitmap", "BITMAP"),
        ("tags", "LABEL_LIST", "LABEL_LIST"),
        ("tags", "LabelList", "LABEL_LIST"),
        ("text", "NGRAM", "NGRAM"),
        ("id", "ZONEMAP", "ZONEMAP"),
        ("id", "zone_map", "ZONEMAP"),
        ("id", "BLOOM_FILTER", "BLOOM_FILTER"),
        ("id", "BloomFilter", "BLOOM_FILTER"),
        ("text", "MINHASHLSH", "MINHASH_LSH"),
        ("text", "FTS", "INVERTED"),
        ("text", "inverted", "INVERTED"),
        ("v", "IVF_FLAT", "IVF_FLAT"),
        ("v", "IvfFlat", "IVF_FLAT"),
        ("v", "ivf_sq", "IVF_SQ"),
        ("v", "IVF_PQ", "IVF_PQ"),
        ("v", "VECTOR", "IVF_PQ"),
        ("v", "IVF_RQ", "IVF_RQ"),
        ("v", "IVF_HNSW_FLAT", "IVF_HNSW_FLAT"),
        ("v", "IVF_HNSW_SQ", "IVF_HNSW_SQ"),
        ("v", "ivfhnswpq", "IVF_HNSW_PQ"),
    ],
)
def test_every_type_is_built_in_every_spelling(lance, column, spelled, name):
    make_lance_table(("w", "t"), table())
    lance.post(PATH, {"column": column, "index_type": spelled})
    listed = details(lance, f"{column}_idx")
    assert (listed["index_type"], listed["status"]) == (name, "SUCCEEDED")
    assert (listed["num_indexed_rows"], listed["num_unindexed_rows"]) == (ROWS, 0)


@pytest.mark.parametrize("kind", ["point", "wkb"])
def test_an_rtree_is_built_on_geometries(lance, kind):
    point = pa.struct([pa.field("x", pa.float64(), False), pa.field("y", pa.float64(), False)])
    wkb = np.array([1], "<u1").tobytes() + np.array([1], "<u4").tobytes()
    values = {
        "point": pa.array([{"x": 1.0, "y": 2.0}] * 5, point),
        "wkb": pa.array([wkb + np.array([1.0, 2.0], "<f8").tobytes()] * 5, pa.binary()),
    }
    named = {"ARROW:extension:name": f"geoarrow.{kind}", "ARROW:extension:metadata": "{}"}
    field = pa.field("g", values[kind].type, metadata=named)
    make_lance_table(("w", "t"), pa.table([values[kind]], schema=pa.schema([field])))
    lance.post(PATH, {"column": "g", "index_type": "RTREE"})
    assert details(lance, "g_idx")["index_type"] == "RTREE"


def test_parameters_of_a_vector_index_reach_lance(lance):
    make_lance_table(("w", "t"), table())
    lance.post(
        PATH,
        {
            "column": "v",
            "index_type": "IVF_HNSW_PQ",
            "name": "mine",
            "distance_type": "Cosine",
            "num_partitions": 2,
            "num_sub_vectors": 4,
            "num_bits": 4,
            "sample_rate": 64,
            "max_iterations": 7,
            "m": 8,
            "ef_construction": 33,
        },
    )
    answer = details(lance, "mine")["index_details"]
    assert answer["metric_type"] == "COSINE"
    assert answer["compression"] == {"type": "pq", "num_bits": 4, "num_sub_vectors": 4}
    assert answer["hnsw"] == {"max_connections": 8, "construction_ef": 33, "max_level": 7}
    hints = answer["runtime_hints"]
    assert (hints["lance.ivf.sample_rate"], hints["lance.ivf.max_iters"]) == ("64", "7")


def test_the_target_partition_size_is_used(lance):
    make_lance_table(("w", "t"), table())
    request = {"column": "v", "index_type": "IVF_FLAT", "target_partition_size": 50}
    lance.post(PATH, request)
    assert details(lance, "v_idx")["index_details"]["target_partition_size"] == 50


def test_parameters_of_a_full_text_index_reach_lance(lance):
    make_lance_table(("w", "t"), table())
    request = {
        "with_position": True,
        "base_tokenizer": "Whitespace",
        "language": "german",
        "max_token_length": 12,
        "lower_case": False,
        "stem": False,
        "remove_stop_words": False,
        "ascii_folding": False,
    }
    lance.post(PATH, {"column": "text", "index_type": "FTS", **request})
    answer = details(lance, "text_idx")["index_details"]
    expected = {**request, "base_tokenizer": "whitespace", "language": "German"}
    assert {name: answer[name] for name in request} == expected


@pytest.mark.parametrize("tokenizer", ["simple", "raw", "ngram", "icu", "icu/split"])
def test_every_tokenizer_without_a_model(lance, tokenizer):
    make_lance_table(("w", "t"), table())
    lance.post(PATH, {"column": "text", "index_type": "FTS", "base_tokenizer": tokenizer})
    assert details(lance, "text_idx")["index_details"]["base_tokenizer"] == tokenizer


def test_sub_vectors_by_default(lance):
    """The reference server's number: one for 16 values of long vectors, and always a divisor."""
    for dimension, expected in ((16, 16), (24, 12), (7, 7), (512, 32), (17, 1)):
        make_lance_table(("w", f"d{dimension}"), pa.table({"v": vectors(ROWS, dimension)}))
        path = f"/v1/table/w$d{dimension}"
        lance.post(f"{path}/create_index", {"column": "v", "index_type": "IVF_PQ"})
        (response,) = lance.post(f"{path}/index/list", {})["indexes"]
        answer = json.loads(response["index_details"])["compression"]
        assert answer["num_sub_vectors"] == expected


def test_hamming_distance_of_bytes(lance):
    data = pa.array(np.arange(ROWS * 8) % 251, pa.uint8())
    make_lance_table(("w", "t"), pa.table({"v": pa.FixedSizeListArray.from_arrays(data, 8)}))
    lance.post(PATH, {"column": "v", "index_type": "IVF_FLAT", "distance_type": "hamming"})
    assert details(lance, "v_idx")["index_details"]["metric_type"] == "HAMMING"


@pytest.mark.parametrize(
    ("requested", "kind", "column", "name"),
    [
        ("upper", "BTREE", "Upper", "Upper_idx"),
        ("st.xy", "BTREE", "st.Xy", "st.Xy_idx"),
        ("st.`a.b`.`c``d`", "BTREE", "st.`a.b`.`c``d`", "st.`a.b`.`c``d`_idx"),
        ("ls.t", "FTS", "ls.item.t", "ls.t_idx"),
    ],
)
def test_columns_are_named_by_their_canonical_paths(lance, requested, kind, column, name):
    make_lance_table(("w", "t"), table())
    lance.post(PATH, {"column": requested, "index_type": kind})
    assert details(lance, name)["columns"] == [column]


def test_another_type_on_the_same_column_gets_another_name(lance):
    make_lance_table(("w", "t"), table())
    lance.post(PATH, {"column": "id", "index_type": "BTREE"})
    lance.post(PATH, {"column": "id", "index_type": "BITMAP"})
    lance.post(PATH, {"column": "id", "index_type": "ZONEMAP", "name": "third"})
    listed = lance.post("/v1/table/w$t/index/list", {})["indexes"]
    assert [(index["index_name"], index["index_type"]) for index in listed] == [
        ("id_idx", "BTREE"),
        ("id_idx_2", "BITMAP"),
        ("third", "ZONEMAP"),
    ]


def test_a_name_that_is_taken_is_refused(lance):
    make_lance_table(("w", "t"), table())
    lance.post(PATH, {"column": "id", "index_type": "BTREE", "name": "a b"})
    lance.post(PATH, {"column": "text", "index_type": "BTREE"})
    for body, name in (
        ({"column": "id", "index_type": "BTREE", "name": "a b"}, "a b"),
        ({"column": "id", "index_type": "BITMAP", "name": "a+b"}, "a+b"),
        ({"column": "text", "index_type": "BTREE"}, "text_idx"),
    ):
        lance.refused(409, 7, f"Table 'w.t' has index '{name}' already", PATH, body)


def test_branches_have_their_own_indexes(lance):
    make_lance_branch(make_lance_table(("w", "t"), table()), ("w", "t"))
    lance.post(PATH, {"column": "id", "index_type": "BTREE", "branch": "dev"})
    assert lance.post("/v1/table/w$t/index/list", {})["indexes"] == []
    (listed,) = lance.post("/v1/table/w$t/index/list", {"branch": "dev"})["indexes"]
    assert listed["index_name"] == "id_idx"
    lance.post(PATH, {"column": "id", "index_type": "BITMAP", "branch": "main"})
    assert details(lance, "id_idx")["index_type"] == "BITMAP"


BAD = [
    ({"column": "id", "index_type": "nonsense"}, "Index type 'nonsense' is not known"),
    ({"column": "id", "index_type": ""}, "Index type '' is not known"),
    ({"column": "id", "index_type": "IVF_HNSW_RQ"}, "is not known; use one of BTREE"),
    ({"column": "", "index_type": "BTREE"}, "at least 1 character"),
    ({"column": "id"}, "index_type"),
    ({"index_type": "BTREE"}, "column"),
    ({"column": "id", "index_type": "LABEL_LIST"}, "must be a list"),
    ({"column": "id", "index_type": "FTS"}, "must be string"),
    ({"column": "id", "index_type": "NGRAM"}, "must be a string"),
    ({"column": "id", "index_type": "RTREE"}, "GeoArrow"),
    ({"column": "text", "index_type": "RTREE"}, ""),
    ({"column": "st", "index_type": "BTREE"}, "must be int, float"),
    ({"column": "tags", "index_type": "BITMAP"}, "must be int, float"),
    ({"column": "tags", "index_type": "BLOOMFILTER"}, "non-nested"),
    ({"column": "ls.item.t", "index_type": "BTREE"}, "Cannot access field"),
    ({"column": "id", "index_type": "MINHASHLSH"}, "string column"),
    ({"column": "id", "index_type": "IVF_FLAT"}, "must be FixedSizeList"),
    ({"column": "text", "index_type": "IVF_PQ"}, "must be FixedSizeList"),
    ({"column": "v", "index_type": "BTREE"}, "must be int"),
    ({"column": "v", "index_type": "IVF_FLAT", "distance_type": "far"}, "distance_type 'far'"),
    ({"column": "v", "index_type": "IVF_FLAT", "distance_type": "hamming"}, "hamming"),
    ({"column": "v", "index_type": "IVF_RQ", "distance_type": "hamming"}, "does not support"),
    ({"column": "v", "index_type": "IVF_FLAT", "num_partitions": 0}, "greater than or equal"),
    ({"column": "v", "index_type": "IVF_FLAT", "num_partitions": "2"}, "valid integer"),
    ({"column": "v", "index_type": "IVF_FLAT", "num_partitions": 2**70}, "num_partitions is"),
    ({"column": "v", "index_type": "IVF_FLAT", "num_partitions": 301}, "has 300 vectors"),
    ({"column": "v", "index_type": "IVF_FLAT", "target_partition_size": 2**63}, "target_"),
    ({"column": "v", "index_type": "IVF_FLAT", "sample_rate": 2**63}, "sample_rate is"),
    ({"column": "v", "index_type": "IVF_FLAT", "max_iterations": 2**40}, "max_iterations is"),
    ({"column": "v", "index_type": "IVF_PQ", "num_sub_vectors": 5}, "dimension 16"),
    ({"column": "v", "index_type": "IVF_PQ", "num_bits": 3}, "IVF_PQ takes 4, 8"),
    ({"column": "v", "index_type": "IVF_PQ", "num_bits": 16}, "IVF_PQ takes 4, 8"),
    ({"column": "v", "index_type": "IVF_PQ", "num_bits": 4, "num_sub_vectors": 1}, "and even"),
    ({"column": "v", "index_type": "IVF_SQ", "num_bits": 4}, "IVF_SQ takes 8"),
    ({"column": "v", "index_type": "IVF_RQ", "num_bits": 10}, "IVF_RQ takes 1, 2"),
    ({"column": "v", "index_type": "IVF_HNSW_SQ", "m": 3}, "m is 3; use 4 to 1024"),
    ({"column": "v", "index_type": "IVF_HNSW_SQ", "m": 10**6}, "m is 1000000"),
    ({"column": "v", "index_type": "IVF_HNSW_SQ", "m": 64, "ef_construction": 8}, "at least m"),
    ({"column": "v", "index_type": "IVF_HNSW_SQ", "ef_construction": 10**9}, "ef_construction"),
    ({"column": "text", "index_type": "FTS", "base_tokenizer": "nope"}, "'nope' is not known"),
    ({"column": "text", "index_type": "FTS", "base_tokenizer": "jieba/../../etc"}, "not known"),
    (
        {"column": "text", "index_type": "FTS", "base_tokenizer": "lindera/x"},
        "This server has no language model 'lindera/x'",
    ),
    ({"column": "text", "index_type": "FTS", "language": "Klingon"}, "unknown variant `Klingon`"),
    ({"column": "text", "index_type": "FTS", "max_token_length": -1}, "greater than or equal"),
    ({"column": "text", "index_type": "FTS", "max_token_length": 2**70}, "max_token_length"),
    ({"column": "text", "index_type": "FTS", "stem": "perhaps"}, "valid boolean"),
    ({"column": "id", "index_type": "BTREE", "name": "x" * 513}, "at most 512"),
    ({"column": "id", "index_type": "BTREE", "name": "a\0b"}, "no control characters"),
    ({"column": "id", "index_type": "BTREE", "name": "__lance_x"}, "belong to Lance"),
]


def test_invalid_requests_are_refused(lance):
    make_lance_table(("w", "t"), table())
    for body, text in BAD:
        lance.refused(400, 13, text, PATH, body)


def test_errors_contain_no_server_path(lance):
    make_lance_table(("w", "t"), table())
    body = {"column": "text", "index_type": "FTS", "base_tokenizer": "jieba/default"}
    refused = lance.refused(400, 13, "no language model", PATH, body)
    assert b"/root" not in refused.content


@shared_cases(
    "body",
    [
        {"column": "nope", "index_type": "BTREE"},
        {"column": "nope", "index_type": "IVF_PQ"},
        {"column": "nope", "index_type": "FTS"},
        {"column": "Xy", "index_type": "BTREE"},  # the name of a leaf alone is not a path
        {"column": "st.a.b", "index_type": "BTREE"},
        {"column": "st.a.b", "index_type": "FTS"},
        {"column": "ls.nope", "index_type": "FTS"},
    ],
    prepare=lambda: make_lance_table(("w", "t"), table()),
)
def test_an_unknown_column_is_refused(lance, body):
    lance.refused(404, 12, "Table 'w.t'", PATH, body)


@pytest.mark.parametrize(
    ("rows", "body", "text"),
    [
        (0, {"index_type": "IVF_FLAT"}, "has 0 vectors, and this IVF_FLAT needs 1"),
        (255, {"index_type": "IVF_PQ"}, "has 255 vectors, and this IVF_PQ needs 256"),
        (15, {"index_type": "IVF_PQ", "num_bits": 4}, "needs 16 to train with"),
        (9, {"index_type": "IVF_FLAT", "num_partitions": 10}, "needs 10 to train with"),
    ],
)
def test_too_few_rows_to_train_with_are_refused(lance, rows, body, text):
    make_lance_table(("w", "t"), pa.table({"v": vectors(rows)}))
    lance.refused(400, 13, text, PATH, {"column": "v", **body})


def test_rows_without_a_vector_do_not_count(lance):
    some = [list(row) if n % 3 == 0 else None for n, row in enumerate(np.random.rand(600, 16))]
    make_lance_table(("w", "t"), pa.table({"V": pa.array(some, pa.list_(pa.float32(), 16))}))
    body = {"column": "V", "index_type": "IVF_PQ"}
    lance.refused(400, 13, "Column 'V' has 200 vectors", PATH, body)


def test_lists_of_vectors(lance):
    rows = pa.array(
        [[[1.0, n], [n, 2.0]] for n in range(ROWS)], pa.list_(pa.list_(pa.float32(), 2))
    )
    make_lance_table(("w", "t"), pa.table({"v": rows}))
    body = {"column": "v", "index_type": "IVF_FLAT"}
    lance.refused(400, 13, "only cosine", PATH, body)
    lance.post(PATH, {**body, "distance_type": "cosine"})
    assert details(lance, "v_idx")["index_details"]["metric_type"] == "COSINE"


def test_scalar_indexes_of_an_empty_table(lance):
    make_lance_table(("w", "t"), table(0))
    for column, kind in (("id", "BTREE"), ("text", "FTS")):
        lance.post(PATH, {"column": column, "index_type": kind})
        assert details(lance, f"{column}_idx")["num_indexed_rows"] == 0


def test_missing_and_empty_tables_are_refused(lance):
    make_table("w", "declared")
    body = {"column": "id", "index_type": "BTREE"}
    lance.refused(404, 4, "'w.nope'", "/v1/table/w$nope/create_index", body)
    lance.refused(409, 19, "has no data", "/v1/table/w$declared/create_index", body)
    make_lance_table(("w", "t"), table(3))
    lance.refused(404, 22, "has no branch 'nope'", PATH, {**body, "branch": "nope"})


def test_a_reader_is_refused(lance, reader):
    make_lance_table(("w", "t"), table(3))
    for column in ("id", "nope"):
        reader.refused(403, 15, "", PATH, {"column": column, "index_type": "BTREE"})


@pytest.fixture
def small(settings) -> None:
    """Reduce the limit so that requests leave nearly all builds to jobs."""
    settings.MONODON_INDEX_IN_REQUEST_ROWS = ROWS - 1


def status(lance, transaction_id: str) -> dict[str, Any]:
    return lance.post(f"/v1/transaction/{transaction_id}/describe", {})


def test_a_large_build_becomes_a_job(lance, small):
    make_lance_table(("w", "t"), table())
    request = {"column": "v", "index_type": "IVF_FLAT", "distance_type": "cosine"}
    answer = lance.post(PATH, request)
    assert TableVersion.objects.count() == 1
    assert status(lance, answer["transaction_id"])["status"] == "Queued"
    (listed,) = lance.post("/v1/table/w$t/index/list", {})["indexes"]
    assert listed == {
        "index_name": "v_idx",
        "index_uuid": answer["transaction_id"],
        "columns": ["v"],
        "status": "PENDING",
        "index_type": "IVF_FLAT",
        "num_indexed_rows": 0,
        "num_unindexed_rows": ROWS,
        "num_segments": 0,
    }
    stats = lance.post("/v1/table/w$t/index/v_idx/stats", {})
    assert (stats["num_indexed_rows"], stats["num_unindexed_rows"]) == (0, ROWS)
    lance.refused(409, 7, "index 'v_idx' already", PATH, request)

    job = Job.objects.get()
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (job.status, job.error, job.progress, job.total) == ("succeeded", "", ROWS, ROWS)
    assert (job.result["version"], job.result["rows"]) == (2, ROWS)
    assert status(lance, answer["transaction_id"])["status"] == "Succeeded"
    built = details(lance, "v_idx")
    assert (built["status"], built["index_details"]["metric_type"]) == ("SUCCEEDED", "COSINE")
    event = AuditEvent.objects.get(action="index.create")
    assert (event.after["name"], event.after["job"]) == ("v_idx", job.pk)
    assert str(event.transaction_id) == job.result["transaction_id"]


def test_a_job_reports_its_progress(lance, small):
    make_lance_table(("w", "t"), table())
    lance.post(PATH, {"column": "id", "index_type": "BITMAP"})
    Job.objects.update(status="running")
    (listed,) = lance.post("/v1/table/w$t/index/list", {})["indexes"]
    assert listed["status"] == "BUILDING"
    assert lance.post("/v1/table/w$t/index/list", {"version": 1})["indexes"] == []


def test_a_small_build_is_synchronous(lance, settings):
    make_lance_table(("w", "t"), table())
    settings.MONODON_INDEX_IN_REQUEST_ROWS = ROWS
    lance.post(PATH, {"column": "id", "index_type": "BTREE"})
    assert details(lance, "id_idx")["num_indexed_rows"] == ROWS
    lance.post(PATH, {"column": "text", "index_type": "FTS"})  # a row takes longer
    assert Job.objects.get().parameters["index_type"] == "INVERTED"


def test_invalid_large_builds_are_refused_at_once(lance, small):
    make_lance_table(("w", "t"), table())
    for body, text in BAD:
        lance.refused(400, 13, text, PATH, body)
    lance.refused(404, 12, "nope", PATH, {"column": "nope", "index_type": "BTREE"})
    lance.refused(404, 12, "'nope'", PATH, {"column": "ls.nope", "index_type": "FTS"})
    assert not Job.objects.exists()


@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_SQ", "IVF_PQ", "IVF_RQ", "IVF_HNSW_PQ"])
def test_every_vector_type_can_be_a_job(lance, small, kind):
    make_lance_table(("w", "t"), table())
    body = {"column": "v", "index_type": kind, "num_partitions": 3, "sample_rate": 100}
    lance.post(PATH, body)
    job_runner.run_job(Job.objects.get().pk)
    assert details(lance, "v_idx")["num_indexed_rows"] == ROWS


def test_a_failed_job_names_the_reason(lance, small):
    make_lance_table(("w", "t"), table())
    answer = lance.post(PATH, {"column": "id", "index_type": "BITMAP"})
    job = Job.objects.get()
    Job.objects.update(parameters={**job.parameters, "index_type": "NGRAM"})
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert job.status == "failed"
    assert "must be a string" in job.error
    report = status(lance, answer["transaction_id"])
    assert report["status"] == "Failed"
    assert "must be a string" in report["properties"]["monodon.job_error"]
    assert lance.post("/v1/table/w$t/index/list", {})["indexes"] == []


def test_a_job_fails_if_its_name_was_taken(lance, small, settings):
    make_lance_table(("w", "t"), table())
    lance.post(PATH, {"column": "id", "index_type": "BITMAP", "name": "n"})
    job = Job.objects.get()
    Job.objects.update(parameters={**job.parameters, "name": "other"})
    settings.MONODON_INDEX_IN_REQUEST_ROWS = 10**9
    lance.post(PATH, {"column": "id", "index_type": "BITMAP", "name": "n"})
    Job.objects.update(parameters=job.parameters)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (job.status, job.error) == ("failed", "Table 'w.t' has index 'n' already")


def test_a_job_that_died_after_its_commit_succeeds(lance, small):
    make_lance_table(("w", "t"), table())
    lance.post(PATH, {"column": "id", "index_type": "BITMAP"})
    job = Job.objects.get()
    job_runner.run_job(job.pk)
    Job.objects.update(status="queued", result=None)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (job.status, job.attempts, job.result) == ("succeeded", 2, {"rows": ROWS})
    assert TableVersion.objects.count() == 2


def test_a_job_on_a_branch(lance, small):
    make_lance_branch(make_lance_table(("w", "t"), table()), ("w", "t"))
    lance.post(PATH, {"column": "v", "index_type": "IVF_FLAT", "branch": "dev"})
    assert lance.post("/v1/table/w$t/index/list", {})["indexes"] == []
    job_runner.run_job(Job.objects.get().pk)
    (listed,) = lance.post("/v1/table/w$t/index/list", {"branch": "dev"})["indexes"]
    assert (listed["index_name"], listed["status"]) == ("v_idx", "SUCCEEDED")


def test_a_canceled_job_commits_nothing(lance, small, monkeypatch):
    make_lance_table(("w", "t"), table())
    lance.post(PATH, {"column": "id", "index_type": "BITMAP"})
    job = Job.objects.get()

    def report(heartbeat: object, completed: int, total: int | None = None) -> None:
        raise jobs.JobCanceled("canceled on request")

    calls = []

    def report_late(heartbeat: object, completed: int, total: int | None = None) -> None:
        calls.append(completed)
        if len(calls) > 1:  # while Lance builds, which ignores it
            report(heartbeat, completed)

    monkeypatch.setattr(jobs.LeaseHeartbeat, "report", report_late)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (job.status, job.error) == ("canceled", "canceled on request")
    assert TableVersion.objects.count() == 1


@pytest.mark.parametrize(
    "options",
    [
        {"index_type": "IVF_FLAT", "max_iterations": 100_000_000},
        {"index_type": "IVF_FLAT", "num_partitions": 4, "max_iterations": 2**32 - 1},
        {"index_type": "IVF_HNSW_SQ", "m": 1024, "ef_construction": 60_000},
    ],
)
def test_a_build_with_much_work_becomes_a_job(lance, options):
    """Its rows are few: the parameters make it slow."""
    make_lance_table(("w", "t"), table())
    lance.post(PATH, {"column": "v", "name": "plain", "index_type": options["index_type"]})
    assert not Job.objects.exists()
    lance.post(PATH, {"column": "v", "name": "slow", **options})
    assert Job.objects.get().parameters["name"] == "slow"
